"""The campaign against agents: servers with the office of one SDK are killed at random moments, nothing is repeated.

The model runs in its own process and counts its requests; the tools count their runs in a file. Both are compared with
the journals of the turns, and the answers with that of a turn that was not killed.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from msgspec import Struct, field

from tests.contracts.office import IDEMPOTENT
from tests.faults.checks import agree, differ, whole
from tests.faults.cluster import ServerProcess, StoreName, make_keys
from tests.faults.users import SimulatedUsers, StartedTurn
from tests.postgres_server import PostgresServer
from turnwire.core.contracts.stores import JournalEntry, Store
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import read_all
from turnwire.core.run.recovery import MAX_RESTARTS, OUTCOME_UNKNOWN
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore

_RUNNING_TURNS = 4
OFFICE_MESSAGES = ("Go", "Run")  # With and without an approval.
_SETTLE_SECONDS = 120.0
_START_SECONDS = 120.0
_LEASE_LOST = " ran out; its "
_ROOT = Path(__file__).parents[2]


class OfficeVerdict(Struct, kw_only=True):
    """The results of a campaign. `broken` lists the violated promises."""

    sdk: str
    store: StoreName
    seed: int
    kills: int = 0
    restarts: int = 0
    """Rolling restarts with SIGTERM."""
    turns: int = 0
    continued: int = 0
    closed: int = 0
    """Turns that ended because they were begun too often without a call that finished."""
    requests: int = 0
    replayed: int = 0
    tool_runs: int = 0
    repeats: int = 0
    takeovers: list[float] = field(default_factory=list[float])
    hindered: int = 0
    """Takeovers from a server that was not killed, but got no processor for the time of its lease."""
    broken: list[str] = field(default_factory=list[str])


class OfficeServer(ServerProcess):
    """One server of the campaign."""

    module = "tests.faults.office_server"

    def __init__(self, number: int, folder: Path, settings: dict[str, object], variables: dict[str, str]) -> None:
        super().__init__(number, folder)
        self._own_settings = settings
        self._own_variables = variables

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "shutdown_grace": 3, **self._own_settings}

    def variables(self) -> dict[str, str]:
        return self._own_variables


class OfficeCluster(Struct):
    """The servers, and the files in which the model and the tools count."""

    nodes: list[OfficeServer]
    keys: dict[str, str]
    folder: Path
    open_store: Callable[[], Store]

    @property
    def is_well(self) -> bool:
        return any(node.is_up for node in self.nodes)

    def client(self, principal: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers={"Authorization": f"Bearer {self.keys[principal]}"}, timeout=20)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def lost_leases(self) -> list[float]:
        """Return when servers that were not killed found that their lease had run out."""
        lines = [line for node in self.nodes for line in self.lines(f"node{node.number}.log") if _LEASE_LOST in line]
        return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]


@asynccontextmanager
async def office_cluster(sdk: str, store: StoreName, workers: int, folder: Path) -> AsyncIterator[OfficeCluster]:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(_model(folder))
        variables = {"FAULTS_SDK": sdk, "FAULTS_MODEL": model, "FAULTS_LEDGER": str(folder / "tools")}
        settings: dict[str, object]
        if store == "postgres":
            engine = await asyncio.to_thread(PostgresServer)
            stack.callback(engine.remove)
            url = engine.url(await asyncio.to_thread(engine.new_database))
            settings, count = dict[str, object](database_url=url), workers
            open_store: Callable[[], Any] = lambda: PostgresStore(url)  # noqa: E731
        else:
            settings, count = dict[str, object](data=folder / "data"), 1
            open_store = lambda: SqliteStore(folder / "data")  # noqa: E731
        keys = await make_keys(open_store())
        nodes = [OfficeServer(number, folder, settings, variables) for number in range(count)]
        try:
            for node in nodes:
                await node.start()
            yield OfficeCluster(nodes, keys, folder, open_store)
        finally:
            for node in nodes:
                await node.close()


@asynccontextmanager
async def _model(folder: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.office_model", str(folder / "requests")),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().split("listening on ")[1].strip()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class OfficeCampaign:
    def __init__(
        self, cluster: OfficeCluster, verdict: OfficeVerdict, takeover_seconds: float, report: Callable[[str], None]
    ) -> None:
        self.verdict = verdict
        self._takeover_seconds = takeover_seconds
        self._cluster = cluster
        self._rng = random.Random(verdict.seed)
        self._report = report
        self._users = SimulatedUsers(cluster, random.Random(verdict.seed + 1), lambda turn: None)  # type: ignore[arg-type]
        self._tags: dict[str, str] = {}
        self._messages: dict[str, str] = {}
        self._killed_at: list[float] = []
        self._is_over = False

    async def run(self, kills: int) -> OfficeVerdict:
        references = {message: await self._start(message, f"ref-{message}") for message in OFFICE_MESSAGES}
        for reference in references.values():
            await self._attend(reference)
        keeping = [asyncio.create_task(node.keep_up()) for node in self._cluster.nodes]
        talking = [asyncio.create_task(self._talk(number)) for number in range(_RUNNING_TURNS)]
        try:
            await self._strike(kills)
            self._is_over = True
            self._report("no more kills; all turns must end")
            _, late = await asyncio.wait(talking, timeout=_SETTLE_SECONDS)
            for task in late:
                self.verdict.broken.append("a turn did not end")
                task.cancel()
            for task in talking:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    self.verdict.broken.append(f"a user could not go on: {type(error).__name__}: {error}")
            await self._check_readers()
        finally:
            for task in (*keeping, *talking):
                task.cancel()
            await asyncio.gather(*keeping, *talking, return_exceptions=True)
            await self._users.close()
        for node in self._cluster.nodes:
            await node.terminate()
        await self._check_turns(references)
        return self.verdict

    # Users

    async def _start(self, message: str, tag: str) -> StartedTurn:
        session = await self._users.call("POST", "/v1/sessions", json={"id": f"s-{uuid4().hex[:12]}"})
        session_id = session.json()["id"]
        body = {"message": f"{message} {tag}", "on_disconnect": "continue"}
        path = f"/v1/sessions/{session_id}/turns"
        answer = await self._users.call("POST", path, json=body, headers={"Idempotency-Key": uuid4().hex})
        assert answer.status_code == 202, answer.text
        turn = StartedTurn(
            turn_id=answer.json()["turn_id"], session_id=session_id, agent="asking", words=0, leaves=False
        )
        self._users.turns.append(turn)
        self._tags[turn.turn_id] = tag
        self._messages[turn.turn_id] = message
        return turn

    async def _attend(self, turn: StartedTurn) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._users.allow(turn))
            group.create_task(self._users.read(turn))
            group.create_task(self._users.read(turn))

    async def _talk(self, number: int) -> None:
        count = 0
        while not self._is_over:
            count += 1
            await self._attend(await self._start(OFFICE_MESSAGES[count % 2], f"{number}-{count}"))

    # Faults

    async def _strike(self, kills: int) -> None:
        while self.verdict.kills < kills:
            node = self._rng.choice(self._cluster.nodes)
            await self._wait_for(node)
            await self._wait_for_progress()
            await asyncio.sleep(self._rng.uniform(0.05, 1.5) / len(self._cluster.nodes))
            if self._rng.random() < 0.1:
                await self._restart_all()
            elif node.is_ready:
                self._killed_at.append(time.time())
                await node.kill()
                self.verdict.kills += 1
                if self.verdict.kills % 20 == 0:
                    self._report(f"{self.verdict.kills} kills, {len(self._users.turns)} turns")

    async def _wait_for_progress(self) -> None:
        """Wait for some calls of the model: a turn that never gets further is closed, as it should be."""
        # The first requests after a restart repeat those that broke off.
        count = len(self._cluster.lines("requests")) + 2 * _RUNNING_TURNS
        while len(self._cluster.lines("requests")) < count:  # noqa: ASYNC110 - another process writes this file.
            await asyncio.sleep(0.1)

    async def _restart_all(self) -> None:
        """Restart all servers with SIGTERM, one after another, as a deploy does."""
        self.verdict.restarts += 1
        for node in self._cluster.nodes:
            await node.terminate()
            await self._wait_for(node)

    async def _wait_for(self, node: OfficeServer) -> None:
        while not node.is_ready:  # noqa: ASYNC110 - another process becomes ready.
            await asyncio.sleep(0.02)

    # Checks

    async def _check_readers(self) -> None:
        client = self._cluster.client("ann")
        for node in self._cluster.nodes:
            await self._wait_for(node)
        for turn in self._users.turns:
            for reader in turn.readers:
                truth = await whole(client, self._cluster, type(reader), turn)  # type: ignore[arg-type]
                if not agree(reader, truth):
                    self.verdict.broken.append(
                        f"turn {turn.turn_id}: a reader on {reader.wire} saw other events: {differ(reader, truth)}"
                    )
        self.verdict.broken += self._users.broken
        await client.aclose()

    async def _check_turns(self, references: dict[str, StartedTurn]) -> None:
        verdict = self.verdict
        requests = Counter(self._cluster.lines("requests"))
        runs = Counter(line.partition(" ")[2] for line in self._cluster.lines("tools") if line.startswith("began"))
        verdict.turns, verdict.requests, verdict.tool_runs = len(self._users.turns), requests.total(), runs.total()
        store: Any = self._cluster.open_store()
        await store.open()
        try:
            expected = {name: await _log(store, turn.turn_id) for name, turn in references.items()}
            for turn in self._users.turns:
                tag, wanted = self._tags[turn.turn_id], expected[self._messages[turn.turn_id]]
                log, entries = await _log(store, turn.turn_id), list(await store.journal(turn.turn_id))
                own = {name: count for name, count in runs.items() if name.split()[-1] == tag}
                for violation in self._check_turn(log, entries, requests[tag], own, wanted):
                    verdict.broken.append(f"turn {turn.turn_id} ({tag}): {violation}")
        finally:
            await store.close()

    def _check_turn(
        self,
        log: list[LoggedEvent],
        entries: list[JournalEntry],
        requests: int,
        runs: dict[str, int],
        reference: list[LoggedEvent],
    ) -> list[str]:
        verdict, broken = self.verdict, list[str]()
        events = [logged.event for logged in log]
        restarts = [logged for logged in log if isinstance(logged.event, RestartEvent)]
        verdict.continued += bool(restarts)
        self._note_takeovers(restarts)
        done = events[-1]
        if not isinstance(done, DoneEvent) or done.outcome != "completed":
            finished = max((entry.position for entry in entries if entry.state == "finished"), default=0)
            if sum(logged.position > finished for logged in restarts) >= MAX_RESTARTS:
                verdict.closed += 1
            else:
                broken.append(f"it ended with {events[-2:]}")
        elif answer(log) != answer(reference):
            broken.append(f"its answer is {answer(log)!r}, and {answer(reference)!r} without kills")
        elif sub_answers(log) != sub_answers(reference):
            broken.append(f"its sub-agents wrote {sub_answers(log)}, and {sub_answers(reference)} without kills")
        # Calls
        started, ended = Counter[tuple[int, str]](), set[tuple[int, str]]()
        tools: dict[str, tuple[str, int]] = {}
        models = 0
        for entry in entries:
            key = (entry.segment, entry.key)
            if entry.state == "started":
                started[key] += 1
                models += entry.kind == "model"
                if entry.kind == "tool":
                    _, times = tools.get(entry.call_id, ("", 0))
                    tools[entry.call_id] = (
                        " ".join([entry.names[0], *map(str, (entry.args or {}).values())]),
                        times + 1,
                    )
                if key in ended:
                    broken.append(f"the finished call {key} was made again")
            elif entry.state == "finished" and entry.kind != "segment":
                ended.add(key)
        if requests > models:
            broken.append(f"the model was called {requests} times, and {models} calls were recorded")
        verdict.replayed += sum(1 for key in ended if started[key]) if restarts else 0
        # Tools
        allowed = _allowed_repeats(events)
        verdict.repeats += allowed.total()
        for call_id, (name, times) in tools.items():
            if runs.get(name, 0) > times:
                broken.append(f"{name} ran {runs[name]} times, and {times} runs were recorded")
            if name.split()[0] not in IDEMPOTENT and runs.get(name, 0) > 1 + allowed[call_id]:
                broken.append(f"{name} ran {runs[name]} times, and a person allowed {allowed[call_id]} repeats")
        if isinstance(done, DoneEvent) and done.outcome != "completed":
            return broken
        results = Counter(event.call_id for event in standing(log) if isinstance(event, ToolResultEvent))
        calls = Counter(event.call_id for event in standing(log) if isinstance(event, ToolCallEvent))
        if doubled := [call_id for call_id, count in (results + calls).items() if count != 2]:
            broken.append(f"calls or results are missing or doubled: {doubled}")
        return broken

    def _note_takeovers(self, restarts: list[LoggedEvent]) -> None:
        """Note the time from the last kill to the restart of a turn, on servers that are not the only one."""
        if len(self._cluster.nodes) == 1:
            return
        lost_leases = self._cluster.lost_leases() if restarts else []
        for logged in restarts:
            if any(abs(logged.at / 1000 - at) < self._takeover_seconds for at in lost_leases):
                self.verdict.hindered += 1
            elif before := [at for at in self._killed_at if at * 1000 <= logged.at + 1]:
                self.verdict.takeovers.append(seconds := logged.at / 1000 - before[-1])
                if seconds > self._takeover_seconds:
                    self.verdict.broken.append(f"a turn was taken over {seconds:.1f} s after the last kill")


async def _log(store: Store, turn_id: str) -> list[LoggedEvent]:
    return [logged async for events in read_all(store, turn_id, 0) for logged in events]


def standing(log: list[LoggedEvent]) -> list[Event]:
    """Return the events that no restart has made void."""
    valid: list[LoggedEvent] = []
    for logged in log:
        valid.append(logged)
        if isinstance(logged.event, RestartEvent):
            valid = [each for each in valid if each.position <= logged.event.from_position]
    return [logged.event for logged in valid]


def answer(log: list[LoggedEvent]) -> str:
    events = standing(log)
    return "".join(event.content for event in events if isinstance(event, TokenEvent) and not event.agent_path)


def sub_answers(log: list[LoggedEvent]) -> Counter[str]:
    """Count the sentences of sub-agents. Their paths differ from run to run."""
    texts: dict[tuple[str, ...], str] = {}
    for event in standing(log):
        if isinstance(event, TokenEvent) and event.agent_path:
            texts[event.agent_path] = texts.get(event.agent_path, "") + event.content
    return Counter(sentence.strip() for text in texts.values() for sentence in text.split("."))


def _allowed_repeats(events: list[Event]) -> Counter[str]:
    """Count how often a person allowed a call whose outcome was unknown to run again."""
    unknown, allowed = set[str](), Counter[str]()
    for event in events:
        if isinstance(event, ApprovalRequestEvent):
            (unknown.add if event.reason == OUTCOME_UNKNOWN else unknown.discard)(event.call_id)
        elif isinstance(event, ApprovalResponseEvent) and event.approved and event.call_id in unknown:
            allowed[event.call_id] += 1
    return allowed


def office_sdks() -> list[str]:
    """Return the names of the agent cases that have an office."""
    # The modules are not imported: that takes seconds for each SDK.
    paths = sorted((_ROOT / "tests" / "contracts" / "agent_cases").glob("*.py"))
    return [path.stem for path in paths if "\ndef build_office(" in path.read_text()]


async def run_office_campaign(
    sdk: str,
    store: StoreName,
    *,
    kills: int,
    seed: int,
    workers: int,
    folder: Path,
    takeover_seconds: float,
    report: Callable[[str], None],
) -> OfficeVerdict:
    verdict = OfficeVerdict(sdk=sdk, store=store, seed=seed)
    async with office_cluster(sdk, store, workers, folder) as cluster:
        return await OfficeCampaign(cluster, verdict, takeover_seconds, report).run(kills)
