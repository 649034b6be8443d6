"""The contract of continuation: a turn is lost after every single write, and continues on another worker.

What a store has committed when a process dies is always a beginning of what the turn has written, so the execution is
abandoned after the first write, after the second, and so on: one turn for each, all at once.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.contracts.agents import MODULES
from tests.contracts.office import FINAL, IDEMPOTENT, LOCATE, Note, office_tools, reply, tag_of
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, completed_answer, lose_worker, open_actor_desk, settle, wait_for_events
from tests.examples import some
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Answer, Request, ScriptedModel, calls, conversation_of, model_server, says
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.loader import as_agent
from turnwire.core import metrics
from turnwire.core.contracts.stores import JournalEntry, Store
from turnwire.core.journal.turn_journal import fold_journal
from turnwire.core.log.codec import LoggedEvent, begins_wait
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    HandoffEvent,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.run.recovery import BEGUN_AGAIN, OUTCOME_UNKNOWN
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED

OFFICES = [module for module in MODULES if hasattr(module, "build_office")]
# All turns run at once, on one worker.
_PATIENCE = 4 * BOUND


@pytest.fixture(params=OFFICES, ids=lambda module: module.NAME)
def case(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(autouse=True)
def slow_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the log behind the SDK, so that nothing is in it by good luck when a call ends."""
    events = EventQueue.events

    async def slow_events(queue: EventQueue) -> AsyncIterator[Event | str]:
        async for event in events(queue):
            await settle()
            yield event

    monkeypatch.setattr(EventQueue, "events", slow_events)


class WriteCounter:
    """Counts the writes of each turn to its log and its journal, and abandons its execution after one of them.

    The tag of a turn, the last word of its message, is the number of that write; 0 is for a turn that is not lost.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk: Desk | None = None
        self.writes: Counter[str] = Counter()
        self.lost: dict[str, TurnLog] = {}
        self._tags: dict[str, str] = {}
        self._changed = asyncio.Event()
        for name in ("append", "append_token", "record"):
            monkeypatch.setattr(TurnLog, name, self._counted(getattr(TurnLog, name)))
        monkeypatch.setattr(TurnLog, "__init__", self._tagged(TurnLog.__init__))

    def _tagged(self, init: Callable[..., None]) -> Callable[..., None]:
        def tagged(log: TurnLog, store: Store, record: TurnRecord, *args: Any) -> None:
            init(log, store, record, *args)
            self._tags[record.id] = record.message.split()[-1]

        return tagged

    def _counted(self, write: Callable[[TurnLog, Any], None]) -> Callable[[TurnLog, Any], None]:
        def counted(log: TurnLog, item: Any) -> None:
            write(log, item)
            match item:
                case TokenEvent(agent_path=()):
                    pass  # `append` has called `append_token`.
                case ApprovalRequestEvent() | ApprovalResponseEvent() | QuestionEvent() | ReplyEvent():
                    pass  # Committed together with the suspension or its end, which is not the agent's write.
                case ToolCallEvent(runs_on="client") | JournalEntry(state="waiting"):
                    pass
                case ToolResultEvent(call_id=call_id) if log.fold.requests.client_calls.get(call_id):
                    pass
                case _:
                    self._note(log)

        return counted

    def _note(self, log: TurnLog) -> None:
        self.writes[log.turn_id] += 1
        if self.desk is not None and f"{self.writes[log.turn_id]:03}" == self._tags[log.turn_id]:
            self.desk.runner.worker.running[log.turn_id].abandon()
            self.lost[log.turn_id] = log
            self._changed.set()

    async def all_lost(self, turns: Mapping[str, TurnRecord]) -> None:
        """Wait until every turn is lost, and what it had written is committed."""
        async with asyncio.timeout(_PATIENCE):
            while len(self.lost) < len(turns):
                await self._changed.wait()
                self._changed.clear()
            for log in self.lost.values():
                await log.flush()


@dataclass
class Ledger:
    """Counts what the tools and the model of all turns did."""

    server: ScriptedModel
    began: list[Counter[str]] = field(default_factory=list[Counter[str]])
    """The tool calls of each worker: one in a thread of the lost worker may begin when the next worker runs."""
    requests: Counter[str] = field(default_factory=Counter[str])

    def reply(self, request: Request) -> Answer:
        self.requests[tag_of(request)] += 1
        return reply(request)

    def note_of_worker(self) -> Note:
        """Return what the tools of one more worker call."""
        began = Counter[str]()
        self.began.append(began)

        def note(what: str, call: str) -> None:
            if what == "began":
                began[call] += 1

        return note

    def runs_of(self, call: str) -> int:
        return sum(began[call] for began in self.began)


@asynccontextmanager
async def open_office(case: ModuleType, store: Store, ledger: Ledger) -> AsyncIterator[Desk]:
    built = case.build_office(ledger.server.url, office_tools(ledger.note_of_worker()))
    try:
        # A worker that renews its lease also runs the turns again that it has abandoned, which is too early here.
        limits = {"max_running_turns": 1_000, "lease": 4 * _PATIENCE}
        async with open_actor_desk(store, case.adapt_office(built), **limits) as desk:
            yield desk
    finally:
        await case.close(built)


async def decide_all(desk: Desk, turn: TurnRecord, ledger: Ledger, lost: Container[str] = ()) -> list[str]:
    """Allow everything that a turn asks for until it ends or is lost; return the calls whose outcome was unknown."""
    unknown: list[str] = []
    async with asyncio.timeout(_PATIENCE), aclosing(follow(desk.store, turn.id)) as batches:
        async for batch in batches:
            for logged in batch:
                event = logged.event
                if not begins_wait(logged):
                    continue
                if turn.id in lost:
                    return unknown
                if not isinstance(event, ApprovalRequestEvent):
                    await answer(desk, turn, event)
                    continue
                if event.reason == OUTCOME_UNKNOWN:
                    unknown.append(event.call_id)
                    assert ledger.runs_of(name_of(event)) <= 1
                if logged.position in undecided(await whole_log(desk.store, turn.id, page=1_000)):
                    await desk.runner.decide(turn.id, event.call_id, approved=True)
    return unknown


async def answer(desk: Desk, turn: TurnRecord, event: Event) -> None:
    """Answer what a turn asks the user or the client, again if that was done before."""
    if isinstance(event, QuestionEvent):
        await desk.runner.reply(turn.id, event.id, "red" if "tea" in event.prompt else "blue")
    elif isinstance(event, ToolCallEvent):
        await desk.runner.send_tool_result(turn.id, event.call_id, {"place": event.args["near"]})


def undecided(log: list[LoggedEvent]) -> set[int]:
    """Return the positions of requests that nobody has decided about."""
    waiting: dict[str, int] = {}
    for logged in log:
        match logged.event:
            case ApprovalRequestEvent(call_id=call_id):
                waiting[call_id] = logged.position
            case ApprovalResponseEvent(call_id=call_id):
                waiting.pop(call_id, None)
            case _:
                pass
    return set(waiting.values())


def name_of(call: ToolCallEvent | ApprovalRequestEvent) -> str:
    """Return the name that a tool's call has in the ledger."""
    return " ".join([call.tool, *call.args.values()])


def standing(log: list[LoggedEvent]) -> list[Event]:
    """Return the events that no restart has made void."""
    valid: list[LoggedEvent] = []
    for logged in log:
        valid.append(logged)
        if isinstance(logged.event, RestartEvent):
            valid = [each for each in valid if each.position <= logged.event.from_position]
    return [logged.event for logged in valid]


def summary(log: list[LoggedEvent], tag: str) -> dict[str, Any]:
    """Return what a reader knows in the end, in a form that does not depend on which parallel call was first."""
    events = standing(log)
    texts: dict[tuple[str, ...], str] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            texts[event.agent_path] = texts.get(event.agent_path, "") + event.content
    calls = [event for event in events if isinstance(event, ToolCallEvent)]
    paths = {event.call_id: event.agent_path for event in calls}
    results = [event for event in events if isinstance(event, ToolResultEvent)]
    assert all(event.agent_path == paths[event.call_id] for event in results)
    return {
        "text": texts.pop(()),
        "words of sub-agents": sorted(" ".join(texts.values()).split()),
        "calls": sorted((call.call_id, name_of(call).replace(tag, ""), len(call.agent_path)) for call in calls),
        "results": sorted((each.call_id, each.success, str(each.result).replace(tag, "")) for each in results),
        "handoffs": sum(isinstance(event, HandoffEvent) for event in events),
        "questions": sorted(
            each.event.prompt.replace(tag, "") for each in log if isinstance(each.event, QuestionEvent)
        ),
        "replies": sorted(str(each.event.value) for each in log if isinstance(each.event, ReplyEvent)),
        "end": events[-1].outcome if isinstance(events[-1], DoneEvent) else None,
    }


def finished(entries: list[JournalEntry], kind: str) -> list[JournalEntry]:
    return [entry for entry in entries if entry.kind == kind and entry.state == "finished"]


@pytest.mark.long
@pytest.mark.rotated("backend", "message")
@pytest.mark.parametrize("message", ["Go", "Ask"])
async def test_turn_that_is_lost_after_any_write_continues_and_repeats_nothing(
    case: ModuleType, message: str, model_server: ScriptedModel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, counter = Ledger(model_server), WriteCounter(monkeypatch)
    model_server.otherwise = ledger.reply
    options = {"client_tools": [LOCATE]} if message == "Ask" else {}
    async with open_office(case, store, ledger) as desk:
        turn = await desk.start(f"{message} 000", options=options)
        assert await decide_all(desk, turn, ledger) == []
        whole = summary(await whole_log(store, turn.id, page=1_000), "000")
        assert whole["text"].endswith(FINAL)
        models = len(finished(list(await store.journal(turn.id)), "model"))
        assert models == ledger.requests["000"]
        # Parallel calls may interleave, so no turn writes less; the last write is always made.
        counter.desk = desk
        # The stores differ in nothing that an agent sees, so the positions are shared between them.
        first, step = {MemoryStore: (1, 2), SqliteStore: (2, 4), PostgresStore: (4, 4)}[type(store)]
        tags = [f"{number:03}" for number in some(range(first, counter.writes[turn.id] + 1, step), 7)]
        turns = {tag: await desk.start(f"{message} {tag}", options=options) for tag in tags}
        deciding = [asyncio.create_task(decide_all(desk, each, ledger, counter.lost)) for each in turns.values()]
        await counter.all_lost(turns)
        for task in deciding:
            task.cancel()
        await asyncio.gather(*deciding, return_exceptions=True)
        counter.desk = None
        await lose_worker(desk)
    before = {tag: await state_of(store, turn, ledger) for tag, turn in turns.items()}
    saved = [metrics.CONTINUED.values.copy(), metrics.SAVED_CALLS.values.copy(), metrics.SAVED_TOKENS.values.copy()]
    async with open_office(case, store, ledger) as desk:
        unknown = await asyncio.gather(*(decide_all(desk, each, ledger) for each in turns.values()))
    check_saved(saved, list(before.values()))
    for (tag, turn), doubtful in zip(turns.items(), unknown, strict=True):
        before[tag].check(tag, doubtful, ledger, models)
        assert summary(await whole_log(store, turn.id, page=1_000), tag) == whole, f"lost after write {tag}"


def check_saved(earlier: list[dict[str, int]], states: "list[LostState]") -> None:
    """Check the metrics against the journals of turns that were continued."""
    journals = [each for state in states if (each := fold_journal(state.entries).calls.values())]
    finished = Counter(call.entry.kind for each in journals for call in each if call.is_finished)
    assert metrics.CONTINUED.values[""] - earlier[0][""] == len(journals)
    for kind in ("model", "tool"):
        assert metrics.SAVED_CALLS.values[kind] - earlier[1][kind] == finished[kind]
    # The scripted model reports the same usage for each call.
    for direction, tokens in (("input", 11), ("output", 7)):
        assert metrics.SAVED_TOKENS.values[direction] - earlier[2][direction] == tokens * finished["model"]


@dataclass
class LostState:
    """The commits and requests at the moment when a turn was lost."""

    entries: list[JournalEntry]
    log: list[LoggedEvent]
    requests: int

    def check(self, tag: str, doubtful: list[str], ledger: Ledger, models: int) -> None:
        where = f"lost after write {tag}"
        # Every model call that had not finished is requested once more, and no other.
        assert ledger.requests[tag] - self.requests == models - len(finished(self.entries, "model")), where
        ended = {entry.call_id for entry in finished(self.entries, "tool")}
        ended |= {event.call_id for event in standing(self.log) if isinstance(event, ToolResultEvent)}
        running = {
            call.entry.call_id: call.entry.names[0]
            for call in fold_journal(self.entries).calls.values()
            if call.entry.kind == "tool" and not (call.is_finished or call.is_waiting or call.entry.repeatable)
        }
        # A person is asked about each tool that may have run, unless it may run twice.
        assert sorted(doubtful) == sorted(call for call, tool in running.items() if tool not in IDEMPOTENT), where
        began = ledger.began[-1]
        for logged in self.log:
            if isinstance(logged.event, ToolCallEvent) and logged.event.call_id in ended:
                assert not began[name_of(logged.event)], f"{name_of(logged.event)} ran again, {where}"
        for name, times in began.items():
            if name.endswith(f" {tag}"):
                assert times <= 1, where


async def state_of(store: Store, turn: TurnRecord, ledger: Ledger) -> LostState:
    entries = list(await store.journal(turn.id))
    tag = turn.message.split()[-1]
    return LostState(entries, await whole_log(store, turn.id, page=1_000), ledger.requests[tag])


# Agents that have changed


def change(case: ModuleType, built: Any) -> None:
    """Change the names by which the calls of an agent are known."""
    if case.NAME == "chat_completions":
        built.model.name = "other"
    elif case.NAME == "langgraph":
        built.model.model_name = "other"
    else:
        built.name = "Other"


@asynccontextmanager
async def open_agent(
    case: ModuleType, url: str, store: Store, tool: Any, *, policy: str, changed: bool
) -> AsyncIterator[Desk]:
    built = case.build(url, [tool], api="chat", timeout=BOUND)
    if changed:
        change(case, built)
    agent: Any = as_agent(built)
    agent.on_divergence = policy
    try:
        async with open_actor_desk(store, agent) as desk:
            yield desk
    finally:
        await case.close(built)


@pytest.mark.parametrize("policy", ["continue", "end"])
async def test_changed_agent_ends_or_continues_from_its_last_finished_tool(
    case: ModuleType, model_server: ScriptedModel, policy: str
) -> None:
    """It is lost twice: before it has changed, and after it has begun again."""
    runs: Counter[str] = Counter()

    async def look(city: str) -> str:
        """Look up the weather."""
        runs[city] += 1
        return f"snow in {city}"

    never, store = asyncio.Event(), MemoryStore()
    model_server.plan(calls(("look", {"city": "Oslo"}), text="I look.", ids=["a1"]), says("It", never))
    open_desk = partial(open_agent, case, model_server.url, store, look, policy=policy)
    async with open_desk(changed=False) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("It"))
        await lose_worker(desk)
    if policy == "end":
        async with open_desk(changed=True) as desk:
            assert (await desk.end(turn)).reason == "diverged"
        assert len(model_server.requests) == 2
        return
    model_server.plan(calls(("look", {"city": "Rome"}), ids=["b1"]), says("Then", never), says("Snow."))
    async with open_desk(changed=True) as desk:
        await wait_for_events(desk, turn, TokenEvent("\n\n"), TokenEvent("Then"))
        await lose_worker(desk)
    async with open_desk(changed=True) as desk:
        assert await completed_answer(desk, turn) == "I look.\n\nSnow."
        events = await desk.events(turn)
    assert runs == {"Oslo": 1, "Rome": 1}
    results = [[entry for kind, entry in conversation_of(body) if kind == "result"] for body in model_server.bodies]
    oslo, rome = ("a1", "snow in Oslo"), ("b1", "snow in Rome")
    assert results == [[], [oslo], [oslo], [oslo, rome], [oslo, rome]]
    assert [event.reason for event in events if isinstance(event, RestartEvent)][:2] == ["worker_lost", "diverged"]
    assert StatusEvent(BEGUN_AGAIN) in events
