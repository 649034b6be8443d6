"""Talk into turns from the replica that does not run them: steer, client result, answer, cancel, with kill -9.

Two servers share a PostgreSQL database. Each repetition starts a turn, waits until it runs or waits for its client, and
sends to the other server. In some repetitions one of the two is killed in that moment, and the sender repeats its
request at a server that is up. What was sent must be in the log once, and must have reached the agent once.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal, get_args

import httpx

from tests.process.server_process import ServerProcess, served
from tests.process.shared_database import temporary_database
from turnwire.client import AsyncClient, ReceivedEvent, ReconnectLimits, ServerAddress
from turnwire.core.log.events import (
    CustomEvent,
    DoneEvent,
    Event,
    InputEvent,
    QuestionEvent,
    ReplyEvent,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)

LEASE = 2.0
PATIENCE = 120.0
Action = Literal["steer", "tool_result", "reply", "cancel"]
ACTIONS: tuple[Action, ...] = get_args(Action)
TOOLS = [{"name": "locate", "description": "Find the user.", "parameters": {"type": "object", "properties": {}}}]
AGENT = '''
import asyncio
import os

from turnwire import CustomEvent, ask, call_client_tool, take_inputs


class Listening:
    """Wait for what the message says, and yield what came."""

    on_crash = "resume"
    takes_client_tools = True

    async def answer(self, turn):
        yield CustomEvent("process", os.getpid())
        match turn.message:
            case "steer":
                while not (came := await take_inputs()):
                    await asyncio.sleep(0.01)
                yield str(came)
            case "tool_result":
                yield str([await call_client_tool("locate", {})])
            case "reply":
                yield str([await ask("Which?")])
            case "cancel":
                await asyncio.Event().wait()

listening = Listening()
'''


@dataclass
class ReplicaVerdict:
    kills: int = 0
    seconds: dict[Action, list[float]] = field(default_factory=lambda: {action: [] for action in ACTIONS})
    """From the request to its effect, in repetitions without a kill."""
    repeated: int = 0
    """Requests that were sent again, because a server was lost."""
    broken: list[str] = field(default_factory=list)


async def run_replica_campaign(
    *, repetitions: int, kills: Collection[int], seed: int, folder: Path, report: Callable[[str], None]
) -> ReplicaVerdict:
    """Repeat the actions in turn; the repetitions with these numbers have a kill."""
    with temporary_database() as url:
        async with AsyncExitStack() as stack:
            campaign = _ReplicaCampaign(url, random.Random(seed), folder, stack)
            await asyncio.gather(campaign.start_server(), campaign.start_server())
            for number in range(1, repetitions + 1):
                action = ACTIONS[number % len(ACTIONS)]
                is_kill = number in kills
                try:
                    async with asyncio.timeout(PATIENCE):
                        await campaign.repeat(number, action, is_kill=is_kill)
                except TimeoutError:
                    campaign.verdict.broken.append(f"{number}: {action} did not end")
                report(f"{number} of {repetitions}: {action}{' with a kill' if is_kill else ''}")
                if campaign.verdict.broken:
                    break
            return campaign.verdict


class _ReplicaCampaign:
    def __init__(self, url: str, choices: random.Random, folder: Path, stack: AsyncExitStack) -> None:
        self.verdict = ReplicaVerdict()
        self.choices = choices
        self._url = url
        self._folder = folder
        self._stack = stack
        self._servers: dict[int, ServerProcess] = {}
        self._started = 0

    async def start_server(self) -> None:
        self._started += 1
        data = self._folder / f"server-{self._started}" / "data"
        data.mkdir(parents=True)
        (data.parent / "listening_agent.py").write_text(AGENT)
        options = ("--agent", "listening_agent:listening")
        server = await self._stack.enter_async_context(
            served(data, *options, agents=(), database_url=self._url, lease=str(LEASE), cancel_patience="2")
        )
        self._servers[server.process.pid] = server

    async def repeat(self, number: int, action: Action, *, is_kill: bool) -> None:
        session, text = f"session-{number}", f"value {number}"
        turn_id = await self._start(session, action)
        log = _Log(self._address, turn_id)
        async with log:
            runner = await log.until(lambda event: event.data if isinstance(event, CustomEvent) else None)
            target = await log.until(lambda event: _target(action, event))
            other = next(server for pid, server in self._servers.items() if pid != runner)
            killing = asyncio.create_task(self._kill()) if is_kill else None
            sent_at = monotonic()
            path, body = _request(action, session, turn_id, target, text)
            await self._send(other, path, body, key=f"{action}-{number}")
            ended = await log.until(lambda event: event if isinstance(event, DoneEvent) else None)
            if killing is not None:
                await killing
            else:
                self.verdict.seconds[action].append(log.seen_at(action) - sent_at)
        problem = _problem(action, text, [event for _, event in log.events], ended)
        if problem:
            self.verdict.broken.append(f"{number}: {action} of turn {turn_id}: {problem}")

    async def _start(self, session: str, action: Action) -> str:
        server = self.choices.choice([*self._servers.values()])
        (await server.http.post("/v1/sessions", json={"id": session})).raise_for_status()
        body = {"message": action, **({"tools": TOOLS} if action == "tool_result" else {})}
        answer = await server.http.post(f"/v1/sessions/{session}/turns", json=body)
        answer.raise_for_status()
        return answer.json()["turn_id"]

    async def _send(self, server: ServerProcess, path: str, body: dict[str, Any], key: str) -> None:
        """Send a request until a server has answered it, first to this one."""
        while True:
            with suppress(httpx.HTTPError):
                answer = await server.http.post(path, json=body, headers={"Idempotency-Key": key})
                if answer.status_code < 500:
                    answer.raise_for_status()
                    return
            self.verdict.repeated += 1
            await asyncio.sleep(0.05)
            server = self.choices.choice([*self._servers.values()])

    async def _kill(self) -> None:
        """Kill one of the servers about now, and start another one."""
        await asyncio.sleep(self.choices.uniform(0, 0.06))
        pid = self.choices.choice([*self._servers])
        killed = self._servers.pop(pid)
        await killed.kill()
        self.verdict.kills += 1
        await self.start_server()

    def _address(self) -> ServerAddress:
        return ServerAddress(self.choices.choice([*self._servers.values()]).url)


class _Log:
    """The log of a turn as a client reads it, with the time of each event."""

    def __init__(self, find: Callable[[], ServerAddress], turn_id: str) -> None:
        self.events: list[tuple[float, Event]] = []
        self._client = AsyncClient(find, limits=ReconnectLimits(give_up_seconds=PATIENCE))
        self._turn_id = turn_id
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._client.close()

    async def _read(self) -> None:
        async for update in self._client.turn(self._turn_id).updates():
            if isinstance(update, ReceivedEvent):
                self.events.append((monotonic(), update.event))
                self._changed.set()

    async def until(self, find: Callable[[Event], Any]) -> Any:
        """Return the first thing that is found in an event."""
        while True:
            for _, event in self.events:
                if (found := find(event)) is not None:
                    return found
            assert self._reading is not None
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait([changed, self._reading], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            self._changed.clear()
            if self._reading.done():
                self._reading.result()

    def seen_at(self, action: Action) -> float:
        """Return when the effect of an action was seen: the agent's word, or the end of the turn."""
        kind = DoneEvent if action == "cancel" else TokenEvent
        return next(at for at, event in self.events if isinstance(event, kind))


def _target(action: Action, event: Event) -> str | None:
    """Return the id of what a turn waits for, when it can be sent to."""
    match event:
        case QuestionEvent(id=id) if action == "reply":
            return id
        case ToolCallEvent(call_id=id) if action == "tool_result":
            return id
        case CustomEvent() if action in ("steer", "cancel"):
            return ""
        case _:
            return None


def _request(action: Action, session: str, turn_id: str, target: str, text: str) -> tuple[str, dict[str, Any]]:
    match action:
        case "steer":
            return f"/v1/sessions/{session}/turns", {"message": text, "on_busy": "steer"}
        case "tool_result":
            return f"/v1/turns/{turn_id}/tool-results", {"call_id": target, "output": text}
        case "reply":
            return f"/v1/turns/{turn_id}/replies", {"question_id": target, "value": text}
        case "cancel":
            return f"/v1/turns/{turn_id}/cancel", {}


def _problem(action: Action, text: str, events: list[Event], end: DoneEvent) -> str | None:
    """Return what is wrong with a log, in which a text was sent once; None if nothing is."""
    if action == "cancel":
        return None if end.outcome == "cancelled" else f"the outcome is {end.outcome}"
    kinds = {"steer": InputEvent, "tool_result": ToolResultEvent, "reply": ReplyEvent}
    count = sum(isinstance(event, kinds[action]) for event in events)
    answer = next((event.content for event in events if isinstance(event, ResponseEvent)), None)
    if (end.outcome, count, answer) == ("completed", 1, str([text])):
        return None
    return f"the outcome is {end.outcome}, the log has it {count} times, and the agent has said {answer!r}"
