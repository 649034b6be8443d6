"""Simulated users: they start, read, cancel and approve turns, and record what they see."""

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

# Long enough for a restarted database and a lost worker.
_TRY_SECONDS = 120.0
_ANSWER_SECONDS = 4.0


class NoServerAnsweredError(Exception):
    """A request that no server has answered for long, although one was there: it says nothing about the promises."""


class StartedTurn(Struct, kw_only=True):
    """A turn that a server accepted, and its readers."""

    turn_id: str
    session_id: str
    agent: str
    words: int
    leaves: bool
    readers: list[Reader] = field(default_factory=list[Reader])
    is_stopped: bool = False
    has_waited: bool = False
    """Whether it has waited for a person."""
    is_unattended: bool = False
    """Whether a request of its user was given up, so that nobody may have approved what it asks for."""
    stopped: str | None = None
    """The outcome that the cancel request returned."""


class SimulatedUsers:
    """Users that send requests to random servers and retry elsewhere. `broken` lists violations."""

    def __init__(self, cluster: Cluster, rng: random.Random, attend: Callable[[StartedTurn], None]) -> None:
        self._cluster = cluster
        self._attend = attend
        self._rng = rng
        self._ann = cluster.client("ann")
        self._bob = cluster.client("bob")
        self.turns: list[StartedTurn] = []
        self.sessions: dict[str, int] = {}
        self.unsure: set[str] = set()
        self.broken: list[str] = []
        self.stops: list[float] = []
        self.repeated = self.strangers = 0

    async def close(self) -> None:
        await self._ann.aclose()
        await self._bob.aclose()

    async def talk(self) -> None:
        """Run one session of a few turns, which may queue behind or interrupt each other."""
        name = f"s-{uuid4().hex[:12]}"
        session = await self.call("POST", "/v1/sessions", json={"id": name})
        assert session.status_code in (200, 201), session.text
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            try:
                turn = await self._start_turn(session.json()["id"])
            except (AssertionError, NoServerAnsweredError):
                self.unsure.add(session.json()["id"])  # The turn may have been accepted.
                raise
            self.sessions[turn.session_id] = self.sessions.get(turn.session_id, 0) + 1
            self.turns.append(turn)
            self._attend(turn)
            await asyncio.sleep(self._rng.uniform(0, 0.2))

    async def _start_turn(self, session_id: str) -> StartedTurn:
        rng = self._rng
        agent = rng.choices(("counting", "stubborn", "asking", "resuming"), (6, 1, 2, 2))[0]
        words = rng.choice((5, 20, 60, 150))
        leaves = rng.random() < 0.08
        body = {
            "message": f"{words} {rng.choice((0.002, 0.01, 0.03))}",
            "agent": agent,
            "on_busy": rng.choices(("enqueue", "interrupt"), (5, 1))[0],
            "on_disconnect": {"grace": 0.2} if leaves else "continue",
        }
        key = uuid4().hex
        turn_id = await self._post_turn(session_id, body, key)
        if rng.random() < 0.15:
            self.repeated += 1
            again = await self._post_turn(session_id, body, key)
            if again != turn_id:
                self.broken.append(f"one idempotency key started two turns: {turn_id} and {again}")
        return StartedTurn(turn_id=turn_id, session_id=session_id, agent=agent, words=words, leaves=leaves)

    async def _post_turn(self, session_id: str, body: dict[str, Any], key: str) -> str:
        path = f"/v1/sessions/{session_id}/turns"
        answer = await self.call("POST", path, json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text
        return answer.json()["turn_id"]

    async def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request until a server answers it. Requests must be safe to repeat.

        Raises NoServerAnsweredError; time in which no server can answer does not count.
        """
        waited = 0.0
        while waited < _TRY_SECONDS:
            since, was_well = time.monotonic(), self._cluster.is_well
            with contextlib.suppress(*BROKEN):
                answer = await asyncio.wait_for(
                    self._ann.request(method, self._random_url() + path, **request), _ANSWER_SECONDS
                )
                if answer.status_code not in AWAY:
                    return answer
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))
            if was_well and self._cluster.is_well:
                waited += time.monotonic() - since
        raise NoServerAnsweredError(f"{method} {path}")

    def _random_url(self) -> str:
        return self._rng.choice(self._cluster.nodes).address

    async def read(self, turn: StartedTurn) -> None:
        """Read a turn to its end on a random wire, in pieces, each at a random server."""
        reader = self._rng.choice(WIRES)(turn.turn_id)
        turn.readers.append(reader)
        is_last = False
        while not reader.is_whole:
            timeout = self._rng.choice((0.05, 0.3, 1, 3, 10))
            try:
                async with asyncio.timeout(timeout):
                    await reader.read(self._random_url(), self._ann)
            except BROKEN:
                await asyncio.sleep(self._rng.uniform(0.01, 0.1))
            if reader.is_whole and reader.ends_at_waits and not is_last:
                # The answer may have ended because the turn waited for a person: a client reads it again then.
                reader.is_whole = False
                has_ended = (await self.call("GET", f"/v1/turns/{turn.turn_id}")).json()["phase"] == "ended"
                # It may have waited unnoticed, if it was cancelled meanwhile.
                if not has_ended or turn.has_waited or turn.agent == "asking":
                    is_last = has_ended
                    reader.forget()
                else:
                    reader.is_whole = True

    async def stop(self, turn: StartedTurn) -> None:
        since = time.monotonic()
        turn.is_stopped = True
        answer = await self.call("POST", f"/v1/turns/{turn.turn_id}/cancel")
        self.stops.append(time.monotonic() - since)
        turn.stopped = answer.json().get("outcome")

    async def allow(self, turn: StartedTurn) -> None:
        """Approve the requests of the turn until it has ended."""
        while True:
            snapshot = (await self.call("GET", f"/v1/turns/{turn.turn_id}")).json()
            if snapshot["phase"] == "ended":
                return
            waiting = [step["id"] for step in snapshot["state"].get("steps", ()) if step.get("state") == "waiting"]
            turn.has_waited |= snapshot["phase"] == "waiting"
            for call_id in waiting if snapshot["phase"] == "waiting" else ():
                path = f"/v1/turns/{turn.turn_id}/approvals/{call_id}"
                answer = await self.call("POST", path, json={"approved": True})
                if answer.status_code not in (200, 404, 409):
                    self.broken.append(f"an approval was answered with {answer.status_code} {answer.text}")
            await asyncio.sleep(0.5)

    async def pry(self, turn: StartedTurn) -> None:
        """Request the turn as another principal."""
        for path in ("", "/events", "/events?wire=ai_sdk"):
            with contextlib.suppress(*BROKEN):
                answer = await asyncio.wait_for(self._bob.get(f"{self._random_url()}/v1/turns/{turn.turn_id}{path}"), 5)
                self.strangers += 1
                if answer.status_code not in (404, *AWAY):
                    self.broken.append(f"another principal was answered with {answer.status_code}")
