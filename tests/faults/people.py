"""Those who use the servers meanwhile: they ask, stop, allow, leave, and write down what they were told."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
from msgspec import Struct, field

from tests.faults.cluster import Cluster
from tests.faults.readers import AWAY, BROKEN, WIRES, Reader

# Long enough for a database that comes back, and for a worker that is taken for dead.
_TRY_SECONDS = 60.0
_ANSWER_SECONDS = 4.0


class Asked(Struct, kw_only=True):
    """A turn that a server has accepted, and all that was seen of it."""

    turn_id: str
    session_id: str
    agent: str
    words: int
    leaves: bool
    readers: list[Reader] = field(default_factory=list[Reader])
    is_stopped: bool = False
    stopped: str | None = None
    """The outcome that somebody was told who stopped it, unless that took too long."""


class People:
    """Ask servers at random, and others where one does not answer. `broken` is what should not have happened."""

    def __init__(self, cluster: Cluster, chance: random.Random, attend: Callable[[Asked], None]) -> None:
        self._cluster = cluster
        self._attend = attend
        self._chance = chance
        self._ann = cluster.client("ann")
        self._bob = cluster.client("bob")
        self.asked: list[Asked] = []
        self.sessions: dict[str, int] = {}
        self.unsure: set[str] = set()
        self.broken: list[str] = []
        self.stops: list[float] = []
        self.repeated = self.strangers = 0

    async def close(self) -> None:
        await self._ann.aclose()
        await self._bob.aclose()

    async def talk(self) -> None:
        """One conversation: some turns in a session, that may wait for or interrupt each other."""
        name = f"s-{uuid4().hex[:12]}"
        session = await self.call("POST", "/v1/sessions", json={"id": name})
        assert session.status_code in (200, 201), session.text
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            try:
                asked = await self._ask(session.json()["id"])
            except AssertionError:
                self.unsure.add(session.json()["id"])  # It may have been accepted all the same.
                raise
            self.sessions[asked.session_id] = self.sessions.get(asked.session_id, 0) + 1
            self.asked.append(asked)
            self._attend(asked)
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _ask(self, session_id: str) -> Asked:
        chance = self._chance
        agent = chance.choices(("counting", "stubborn", "asking", "resuming"), (6, 1, 2, 2))[0]
        words = chance.choice((5, 20, 60, 150))
        leaves = chance.random() < 0.08
        body = {
            "message": f"{words} {chance.choice((0.002, 0.01, 0.03))}",
            "agent": agent,
            "on_busy": chance.choices(("enqueue", "interrupt"), (5, 1))[0],
            "on_disconnect": {"grace": 0.2} if leaves else "continue",
        }
        key = uuid4().hex
        turn_id = await self._start(session_id, body, key)
        if chance.random() < 0.15:
            self.repeated += 1
            again = await self._start(session_id, body, key)
            if again != turn_id:
                self.broken.append(f"one key has started two turns: {turn_id} and {again}")
        return Asked(turn_id=turn_id, session_id=session_id, agent=agent, words=words, leaves=leaves)

    async def _start(self, session_id: str, body: dict[str, Any], key: str) -> str:
        path = f"/v1/sessions/{session_id}/turns"
        answer = await self.call("POST", path, json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text
        return answer.json()["turn_id"]

    async def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Asks until there is an answer, here or there. What was asked twice must have happened once."""
        end = time.monotonic() + _TRY_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(*BROKEN):
                answer = await asyncio.wait_for(
                    self._ann.request(method, self._somewhere() + path, **request), _ANSWER_SECONDS
                )
                if answer.status_code not in AWAY:
                    return answer
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))
        raise AssertionError(f"no server answered {method} {path}")

    def _somewhere(self) -> str:
        return self._chance.choice(self._cluster.nodes).address

    async def read(self, asked: Asked) -> None:
        """Reads a turn to its end on some wire, in pieces, each at some server."""
        kinds = WIRES[:3] if asked.agent in ("resuming", "asking") else WIRES
        reader = self._chance.choice(kinds)(asked.turn_id)
        asked.readers.append(reader)
        while not reader.is_whole:
            patience = self._chance.choice((0.05, 0.3, 1, 3, 10))
            try:
                async with asyncio.timeout(patience):
                    await reader.read(self._somewhere(), self._ann)
            except BROKEN:
                await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    async def stop(self, asked: Asked) -> None:
        since = time.monotonic()
        asked.is_stopped = True
        answer = await self.call("POST", f"/v1/turns/{asked.turn_id}/cancel")
        self.stops.append(time.monotonic() - since)
        asked.stopped = answer.json().get("outcome")

    async def allow(self, asked: Asked) -> None:
        """Allows what is asked for, when it is, as often as it takes until the answer has come."""
        while True:
            found = (await self.call("GET", f"/v1/turns/{asked.turn_id}")).json()
            if found["phase"] == "ended":
                return
            waiting = [step["id"] for step in found["state"].get("steps", ()) if step.get("state") == "waiting"]
            for call_id in waiting if found["phase"] == "waiting" else ():
                path = f"/v1/turns/{asked.turn_id}/approvals/{call_id}"
                answer = await self.call("POST", path, json={"approved": True})
                if answer.status_code not in (200, 404, 409):
                    self.broken.append(f"an approval was answered with {answer.status_code} {answer.text}")
            await asyncio.sleep(0.2)

    async def pry(self, asked: Asked) -> None:
        """Somebody else wants to see it."""
        for path in ("", "/events", "/events?wire=ai_sdk"):
            with contextlib.suppress(*BROKEN):
                answer = await asyncio.wait_for(self._bob.get(f"{self._somewhere()}/v1/turns/{asked.turn_id}{path}"), 5)
                self.strangers += 1
                if answer.status_code not in (404, *AWAY):
                    self.broken.append(f"a stranger was answered with {answer.status_code}")
