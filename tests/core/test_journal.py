"""Agents with a journal: a turn whose worker is lost or drained continues without repeating a finished call."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import (
    AgentEvents,
    Desk,
    Gate,
    completed_answer,
    failure,
    lose_worker,
    open_actor_desk,
    start_drain,
    wait_for_events,
    wait_until_suspended,
)
from turnwire.agents.agent_paths import enter_agent, leave_agent
from turnwire.core.contracts.stores import Store
from turnwire.core.journal.turn_journal import ToolDeniedError, current_journal, fold_journal, journaled
from turnwire.core.journal.waits import approval
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    HandoffEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.run.recovery import MOVING_ON, OUTCOME_UNKNOWN

Act = Callable[["Player"], Coroutine[Any, Any, None]]


class Player:
    """An agent whose calls the test scripts: it counts those that go live, and waits at the gate of the one it names.

    A call stands for the border of an SDK: `model` shows a text, `tool` returns a result.
    """

    on_crash = "resume"

    def __init__(self, act: Act, *, stops_at: str = "", idempotent: str = "", model: str = "small") -> None:
        self.live: Counter[str] = Counter()
        self.gate = Gate()
        self.stops_at = stops_at
        self.turn: Turn | None = None
        self._act = act
        self._idempotent = idempotent.split()
        self._model = model

    async def answer(self, turn: Turn) -> AgentEvents:
        self.turn = turn
        self._events: asyncio.Queue[Event | str | None] = asyncio.Queue()
        acting = asyncio.create_task(self._play())
        try:
            while (event := await self._events.get()) is not None:
                yield event
                self._events.task_done()
            await acting
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)

    async def _play(self) -> None:
        try:
            await self._act(self)
        finally:
            self._events.put_nowait(None)

    async def write(self, *events: Event | str) -> None:
        for event in events:
            self._events.put_nowait(event)
        await self._events.join()

    async def reach(self, what: str) -> None:
        self.live[what] += 1
        if what == self.stops_at:
            self.stops_at = ""
            await self.gate.wait()

    def _text(self, text: str, path: tuple[str, ...]) -> Event | str:
        return TokenEvent(text, agent_path=path) if path else text

    async def model(self, text: str, *, place: str = "", path: tuple[str, ...] = ()) -> str:
        """Show a text in two halves; the gate `text` is between them, the gate `text!` before the result."""
        journal = current_journal()
        assert journal is not None
        with await journal.begin_model(place, names=("player", self._model), agent_path=path) as call:
            if not call.is_live:
                if not call.is_shown:
                    await self.write(self._text(call.result, path))
                    call.show()
                return call.result
            half = len(text) // 2
            await self.write(self._text(text[:half], path))
            await self.reach(text)
            await self.write(self._text(text[half:], path), UsageEvent(input_tokens=1, agent_path=path))
            await self.reach(f"{text}!")
            call.finish(text)
        return text

    async def tool(self, name: str, call_id: str = "c1", *, place: str = "", path: tuple[str, ...] = ()) -> str:
        """Run a tool, with the gate `name` in it and the gate `name!` between its result and its event."""
        journal = current_journal()
        assert journal is not None
        await self.write(ToolCallEvent(call_id, name, {}, agent_path=path))
        repeatable = name in self._idempotent
        try:
            call = await journal.begin_tool(place, call_id, name, {}, agent_path=path, repeatable=repeatable)
        except ToolDeniedError as denied:
            await self.write(ToolResultEvent(call_id, name, False, str(denied), agent_path=path))
            return str(denied)
        with call:
            if call.is_live:
                emit(StatusEvent(f"{name} runs"))
                await self.reach(name)
                call.finish(f"did {name}")
        await self.reach(f"{name}!")
        await self.write(ToolResultEvent(call_id, name, True, f"did {name}", agent_path=path))
        return f"did {name}"


async def lose(store: Store, player: Player, **limits: Any) -> TurnRecord:
    """Run a turn to the player's gate, then lose its worker."""
    async with open_actor_desk(store, player, **limits) as desk:
        turn = await desk.start("tea?")
        await player.gate.reached()
        await _commit(desk, turn)
        await lose_worker(desk)
    return turn


async def _commit(desk: Desk, turn: TurnRecord) -> None:
    async with asyncio.timeout(BOUND):
        await desk.runner.worker.running[turn.id]._log.flush()


async def finish(store: Store, player: Player, turn: TurnRecord) -> tuple[str, list[Event]]:
    """Continue a lost turn to its end, and return its answer and its log."""
    async with open_actor_desk(store, player) as desk:
        return await completed_answer(desk, turn), await desk.events(turn)


def standing(log: list[LoggedEvent]) -> list[Event]:
    """Return the events that no restart has made void."""
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    return [logged.event for logged in log if not fold.restarts.is_void(logged.position)]


def restarts(events: list[Event]) -> list[RestartEvent]:
    return [event for event in events if isinstance(event, RestartEvent)]


def results(events: list[Event]) -> list[str]:
    return [event.call_id for event in events if isinstance(event, ToolResultEvent)]


async def two_steps(player: Player) -> None:
    await player.write(HandoffEvent("cook"))
    await player.model("Let me look. ")
    await player.tool("find")
    await player.model("It is green.")


@pytest.mark.parametrize(
    ("stops_at", "repeated", "void"),
    [
        ("Let me look. ", {"Let me look. "}, "Let me"),
        ("Let me look. !", {"Let me look. ", "Let me look. !"}, "Let me look. "),
        ("find", {"find"}, ""),
        ("find!", set(), ""),
        ("It is green.", {"It is green."}, "It is "),
        ("It is green.!", {"It is green.", "It is green.!"}, "It is green."),
    ],
)
async def test_no_finished_call_is_repeated_wherever_the_worker_is_lost(
    store: Store, stops_at: str, repeated: set[str], void: str
) -> None:
    player = Player(two_steps, stops_at=stops_at, idempotent="find")
    turn = await lose(store, player)
    before = player.live.copy()
    answer, events = await finish(store, player, turn)
    assert answer == "Let me look. It is green."
    (restart,) = restarts(events)
    at = events.index(restart)
    shown = [event.content for event in events[restart.from_position : at] if isinstance(event, TokenEvent)]
    assert "".join(shown) == void
    # The result was recorded before its event, so only the event is written again.
    assert {name for name in before if player.live[name] > 1 and name != "find!"} == repeated
    assert (events.count(HandoffEvent("cook")), results(events)) == (1, ["c1"])
    assert sum(isinstance(event, ToolCallEvent) for event in events) == 1


async def test_turn_without_a_crash_is_written_as_without_a_journal(store: Store) -> None:
    player = Player(two_steps)
    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        assert await completed_answer(desk, turn) == "Let me look. It is green."
        assert restarts(await desk.events(turn)) == []
    recording = fold_journal(await store.journal(turn.id))
    assert [(call.entry.kind, call.state) for call in recording.calls.values()] == [
        ("model", "finished"), ("tool", "finished"), ("model", "finished"),
    ]  # fmt: skip


# Tools that were running


async def test_running_tool_that_is_not_idempotent_runs_again_only_if_a_person_allows_it(store: Store) -> None:
    for approved in (True, False):
        player = Player(two_steps, stops_at="find")
        turn = await lose(store, player)
        async with open_actor_desk(store, player) as desk:
            await wait_until_suspended(desk, turn)
            request = [logged.event for logged in await whole_log(store, turn.id)][-1]
            assert request == ApprovalRequestEvent("c1", "find", {}, OUTCOME_UNKNOWN)
            assert player.live["find"] == 1
            await desk.runner.decide(turn.id, "c1", approved=approved, by="ann")
            assert await completed_answer(desk, turn) == "Let me look. It is green."
            events = await desk.events(turn)
        assert player.live["find"] == 1 + approved
        assert player.live["Let me look. "] == 1
        (result,) = [event for event in events if isinstance(event, ToolResultEvent)]
        assert result.success == approved
        assert ("Outcome unknown" in str(result.result)) == (not approved)


async def test_tool_that_broke_off_does_not_run_again_if_the_agent_has_changed_its_mind(store: Store) -> None:
    class Fickle(Player):
        """Says once that the tool may be repeated: when the turn is taken over, and not when the tool begins."""

        questions = 0

        def repeats(self, tool: str) -> bool:
            self.questions += 1
            return self.questions == 1

    player = Fickle(two_steps, stops_at="find")
    turn = await lose(store, player)
    async with open_actor_desk(store, player) as desk:
        assert (await failure(desk, turn)).code == "outcome_unknown"
    assert player.live["find"] == 1


async def test_sub_agent_that_is_repeated_keeps_its_path(store: Store) -> None:
    paths: list[dict[str, tuple[str, ...]]] = []

    async def delegate(player: Player) -> None:
        journal = current_journal()
        assert journal is not None
        entered: dict[str, tuple[str, ...]] = {}
        paths.append(entered)
        # After the crash another sub-agent of the same name begins first.
        for name in ("first",) if len(paths) == 1 else ("second", "first"):
            with journal.inside(name):
                place = journal.place("run", "Scout")
                entered[name] = enter_agent((), "Scout", name, place=place)
        try:
            await player.model("I scout. ", place="first/run/Scout/1", path=entered["first"])
        finally:
            for path in entered.values():
                leave_agent(path)

    player = Player(delegate, stops_at="I scout. ")
    turn = await lose(store, player)
    await finish(store, player, turn)
    assert paths == [{"first": ("Scout",)}, {"second": ("Scout:second",), "first": ("Scout",)}]


async def test_permission_to_repeat_a_tool_is_for_one_run(store: Store) -> None:
    player = Player(two_steps, stops_at="find")
    turn = await lose(store, player)
    player.stops_at, player.gate = "find", Gate()
    async with open_actor_desk(store, player) as desk:
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        await player.gate.reached()
        await lose_worker(desk)
    async with open_actor_desk(store, player) as desk:
        await wait_until_suspended(desk, turn)
        assert player.live["find"] == 2
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert await completed_answer(desk, turn) == "Let me look. It is green."
    assert player.live["find"] == 3


# Parallel runs


async def _together(*coroutines: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in coroutines:
            group.create_task(each)


async def test_parallel_tools_are_found_by_their_ids_and_not_by_their_order(store: Store) -> None:
    async def act(player: Player) -> None:
        calls = [("a", "c1"), ("b", "c2")]
        found = {}

        async def run(name: str, call_id: str) -> None:
            found[call_id] = await player.tool(name, call_id)

        await _together(*(run(*call) for call in (reversed(calls) if player.live["Done."] else calls)))
        assert found == {"c1": "did a", "c2": "did b"}
        await player.model("Done.")

    player = Player(act, stops_at="Done.")
    answer, events = await finish(store, player, await lose(store, player))
    assert answer == "Done."
    assert (player.live["a"], player.live["b"]) == (1, 1)
    assert sorted(results(events)) == ["c1", "c2"]


async def test_everything_before_a_live_call_is_committed_when_it_begins(backend: StoreBackend) -> None:
    found: list[list[tuple[str, str]]] = []

    async def act(player: Player) -> None:
        assert player.turn is not None
        turn_id = player.turn.id

        async def reach(what: str) -> None:
            if not what.endswith("!"):
                found.append([(entry.kind, entry.state) for entry in backend.recorded(turn_id)])

        player.reach = reach  # type: ignore[method-assign]
        await two_steps(player)

    store = await backend.open()
    async with open_actor_desk(store, Player(act)) as desk:
        await desk.end(await desk.start())
    model, tool = ("model", "started"), ("tool", "started")
    assert found == [
        [model],
        [model, ("model", "finished"), tool],
        [model, ("model", "finished"), tool, ("tool", "finished"), model],
    ]


async def test_finished_text_after_that_of_an_unfinished_sub_agent_is_shown_again(store: Store) -> None:
    """Ada writes, then Bob writes all of his, then the worker is lost: one position takes back both."""
    ada_wrote = asyncio.Event()

    async def act(player: Player) -> None:
        async def ada() -> None:
            await player.model("Ada one. ", place="ada", path=("ada",))

        async def bob() -> None:
            await ada_wrote.wait()
            await player.model("Bob one. ", place="bob", path=("bob",))
            await player.tool("pay", "c9", place="bob", path=("bob",))

        original = player.reach

        async def reach(what: str) -> None:
            if what == "Ada one. ":
                ada_wrote.set()
            await original(what)

        player.reach = reach  # type: ignore[method-assign]
        await _together(ada(), bob())
        await player.model("Done.")

    player = Player(act, stops_at="Ada one. ")

    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        await player.gate.reached()
        await wait_for_events(desk, turn, ToolResultEvent("c9", "pay", True, "did pay", agent_path=("bob",)))
        await lose_worker(desk)
    answer, events = await finish(store, player, turn)
    assert answer == "Done."
    (restart,) = restarts(events)
    at = events.index(restart)
    for name in ("ada", "bob"):
        pieces = [
            event.content for event in events[at:] if isinstance(event, TokenEvent) and event.agent_path == (name,)
        ]
        assert "".join(pieces) == f"{name.title()} one. "
    assert player.live["Bob one. "] == player.live["pay"] == 1
    assert player.live["Ada one. "] == 2
    usage = [event for event in events if isinstance(event, UsageEvent) and event.agent_path == ("bob",)]
    assert len(usage) == 1
    assert results(events[at:]) == ["c9"]


async def test_finished_text_is_taken_back_and_shown_again_as_a_whole(store: Store) -> None:
    """Bob writes half, Ada writes half, Bob writes the rest, then the worker is lost while Ada writes."""
    half_written = {"Bob one. ": asyncio.Event(), "Ada one. ": asyncio.Event()}

    async def act(player: Player) -> None:
        async def ada() -> None:
            await half_written["Bob one. "].wait()
            await player.model("Ada one. ", place="ada", path=("ada",))

        async def bob() -> None:
            await player.model("Bob one. ", place="bob", path=("bob",))
            await player.tool("mark", "c9", place="bob", path=("bob",))

        original = player.reach

        async def reach(what: str) -> None:
            if what in half_written and not player.live[what]:
                half_written[what].set()
                if what == "Bob one. ":
                    await half_written["Ada one. "].wait()
            await original(what)

        player.reach = reach  # type: ignore[method-assign]
        await _together(ada(), bob())
        await player.model("Done.")

    player = Player(act, stops_at="Ada one. ")
    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        await player.gate.reached()
        await wait_for_events(desk, turn, ToolResultEvent("c9", "mark", True, "did mark", agent_path=("bob",)))
        await lose_worker(desk)
    _, events = await finish(store, player, turn)
    (restart,) = restarts(events)
    assert restart.from_position == 2
    written = [event for event in events[events.index(restart) :] if isinstance(event, TokenEvent)]
    assert [event.content for event in written if event.agent_path == ("bob",)] == ["Bob one. "]
    assert player.live["Bob one. "] == player.live["mark"] == 1


async def test_text_that_was_shown_again_is_not_shown_a_third_time(store: Store) -> None:
    async def act(player: Player) -> None:
        async def bob() -> None:
            await player.model("Bob one. ", place="bob", path=("bob",))
            await player.model("Bob two. ", place="bob", path=("bob",))
            await player.tool("mark", "c9", place="bob", path=("bob",))

        await _together(player.model("Ada. ", place="ada", path=("ada",)), bob())
        await player.model("Done.")

    player = Player(act, stops_at="Ada. ")
    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        await player.gate.reached()
        await wait_for_events(desk, turn, ToolResultEvent("c9", "mark", True, "did mark", agent_path=("bob",)))
        await lose_worker(desk)
    player.stops_at, player.gate = "Done.", Gate()
    async with open_actor_desk(store, player) as desk:
        await player.gate.reached()
        await _commit(desk, turn)
        await lose_worker(desk)
    answer, events = await finish(store, player, turn)
    assert answer == "Done."
    first, second = restarts(events)
    assert second.from_position > events.index(first)
    # The second restart voids only the last model call, which had shown half of its text.
    assert [event for event in events[events.index(second) + 1 : -2] if isinstance(event, TokenEvent)] == [
        TokenEvent("Do"), TokenEvent("ne."),
    ]  # fmt: skip
    assert player.live["Bob one. "] == player.live["Bob two. "] == 1


async def test_outputs_of_a_finished_tool_are_shown_again_each_time_they_become_void(store: Store) -> None:
    """Ada writes in one tool, then Bob does all of his in another, then the worker is lost, and again the same."""
    ada_wrote = asyncio.Event()

    async def ask(player: Player, name: str) -> None:
        journal = current_journal()
        assert journal is not None
        if name == "bob":
            await ada_wrote.wait()
        await player.write(ToolCallEvent(name, "ask", {}))
        with await journal.begin_tool("", name, "ask", {}, repeatable=True) as call:
            if call.is_live:
                await player.model(f"{name.title()} one. ", place=journal.place("run"), path=(name,))
                await player.write(StatusEvent(f"{name} is done"), StatusEvent(f"{name} is done"))
                call.finish("done")
        await player.write(ToolResultEvent(name, "ask", True, "done"))

    async def act(player: Player) -> None:
        original = player.reach

        async def reach(what: str) -> None:
            if what == "Ada one. ":
                ada_wrote.set()
            await original(what)

        player.reach = reach  # type: ignore[method-assign]
        await _together(ask(player, "ada"), ask(player, "bob"))
        await player.model("Done.")

    player, turn = Player(act), None
    for _ in range(3):
        ada_wrote.clear()
        player.stops_at, player.gate = "Ada one. ", Gate()
        async with open_actor_desk(store, player) as desk:
            turn = turn or await desk.start()
            await player.gate.reached()
            await wait_for_events(desk, turn, ToolResultEvent("bob", "ask", True, "done"))
            await lose_worker(desk)
    assert turn is not None
    ada_wrote.clear()
    answer, events = await finish(store, player, turn)
    assert answer == "Done."
    valid = standing(await whole_log(store, turn.id))
    for name in ("ada", "bob"):
        texts = [event.content for event in valid if isinstance(event, TokenEvent) and event.agent_path == (name,)]
        assert "".join(texts) == f"{name.title()} one. "
        assert valid.count(StatusEvent(f"{name} is done")) == 2
    assert sorted(results(valid)) == ["ada", "bob"]
    assert player.live["Bob one. "] == 1
    assert [event.agent_path for event in events if isinstance(event, UsageEvent)].count(("bob",)) == 1
    assert all(restart.from_position < events.index(restart) for restart in restarts(events))


# Suspension


async def test_turn_that_waited_for_a_person_continues_after_the_decision(store: Store) -> None:
    async def act(player: Player) -> None:
        await player.model("May I? ")
        await player.write(ToolCallEvent("c1", "send", {}))
        assert (await approval(ApprovalRequestEvent("c1", "send", {}))).approved
        await player.tool("send", "c1")
        await player.model("Sent.")

    player = Player(act, stops_at="Sent.")
    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        await player.gate.reached()
        await lose_worker(desk)
    answer, _ = await finish(store, player, turn)
    assert answer == "May I? Sent."
    assert (player.live["May I? "], player.live["send"], player.live["Sent."]) == (1, 1, 2)


# Divergence, limits, restarts


async def test_agent_that_calls_another_model_than_before_is_stopped(store: Store) -> None:
    player = Player(two_steps, stops_at="It is green.")
    turn = await lose(store, player)
    changed = Player(two_steps, model="large")
    async with open_actor_desk(store, changed) as desk:
        error = await failure(desk, turn)
    assert error.code == "diverged"
    assert "'large' of 'player' instead of 'small' of 'player'" in error.error
    assert sum(changed.live.values()) == 0


async def test_agent_that_skips_a_finished_call_is_stopped(store: Store) -> None:
    async def shorter(player: Player) -> None:
        await player.model("Let me look. ")

    turn = await lose(store, Player(two_steps, stops_at="It is green."))
    async with open_actor_desk(store, Player(shorter)) as desk:
        assert (await failure(desk, turn)).code == "diverged"


async def test_call_that_broke_off_is_made_again_under_the_same_number(store: Store) -> None:
    async def act(player: Player) -> None:
        try:
            async with asyncio.timeout(0):
                await player.model("First. ")
        except TimeoutError:
            pass
        await player.model("Second. ", place="other")
        await player.model("Third. ")

    player = Player(act, stops_at="Third. ")
    turn = await lose(store, player)
    keys = {entry.key for entry in await store.journal(turn.id)}
    assert keys == {"#0", "other#0"}


async def test_turn_whose_result_is_too_large_to_record_ends_when_its_worker_is_lost(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(two_steps, stops_at="It is green.")
    turn = await lose(store, player, max_entry_bytes=5)
    assert "is not recorded" in caplog.text
    async with open_actor_desk(store, player) as desk:
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
    assert player.live["find"] == 1


async def test_restarts_count_only_since_the_last_finished_call(store: Store) -> None:
    async def many(player: Player) -> None:
        for number in range(5):
            await player.model(f"{number} ")

    player, turn = Player(many), None
    for number in range(5):
        player.stops_at, player.gate = f"{number} ", Gate()
        async with open_actor_desk(store, player) as desk:
            turn = turn or await desk.start()
            await player.gate.reached()
            await lose_worker(desk)
    assert turn is not None
    assert (await finish(store, player, turn))[0] == "0 1 2 3 4 "


async def test_turn_that_never_gets_further_is_ended(store: Store) -> None:
    player, turn = Player(two_steps), None
    for _ in range(4):
        player.stops_at, player.gate = "Let me look. ", Gate()
        async with open_actor_desk(store, player) as desk:
            turn = turn or await desk.start()
            await player.gate.reached()
            await lose_worker(desk)
    assert turn is not None
    async with open_actor_desk(store, player) as desk:
        assert (await desk.end(turn)).reason == "worker_lost"


# Draining


async def test_draining_worker_hands_the_turn_over_before_the_next_call_and_takes_nothing_back(store: Store) -> None:
    player = Player(two_steps, stops_at="find")
    async with open_actor_desk(store, player) as desk:
        turn = await desk.start()
        await player.gate.reached()
        draining = await start_drain(desk)
        player.gate.open()
        await draining
    answer, events = await finish(store, player, turn)
    assert answer == "Let me look. It is green."
    assert restarts(events) == []
    assert events.count(StatusEvent(MOVING_ON)) == 1
    assert [count for name, count in player.live.items() if name != "find!" and count > 1] == []


# Plain generators


async def test_generator_records_its_own_steps(store: Store) -> None:
    gate, calls = Gate(), Counter[str]()

    async def find(what: str) -> dict[str, str]:
        calls[what] += 1
        return {"found": what}

    async def answer(turn: Turn) -> AgentEvents:
        yield "Looking. "
        first = await journaled("find", lambda: find("tea"))
        yield StatusEvent("one found")
        yield f"{first['found']} "
        second = await journaled("find", lambda: find("milk"))
        yield f"{second['found']} "
        if not gate.is_open:
            await gate.wait()
        yield "done"

    answer.journal, answer.on_crash = True, "resume"  # type: ignore[attr-defined]
    async with open_actor_desk(store, answer) as desk:
        turn = await desk.start()
        await gate.reached()
        await wait_for_events(desk, turn, TokenEvent("milk "))
        await lose_worker(desk)
    gate.open()
    async with open_actor_desk(store, answer) as desk:
        assert await completed_answer(desk, turn) == "Looking. tea milk done"
        events = await desk.events(turn)
    assert calls == {"tea": 1, "milk": 1}
    assert events.count(StatusEvent("one found")) == 1


async def test_step_of_a_generator_that_broke_off_is_repeated_or_asked_about(store: Store) -> None:
    for idempotent in (True, False):
        gate, runs = Gate(), Counter[str]()

        async def pay(gate: Gate = gate, runs: Counter[str] = runs) -> str:
            runs["pay"] += 1
            if not gate.is_open:
                await gate.wait()
            return "paid"

        async def answer(turn: Turn, pay: Any = pay, idempotent: bool = idempotent) -> AgentEvents:
            yield "Paying: "
            yield await journaled("pay", pay, idempotent=idempotent)

        answer.journal, answer.on_crash = True, "resume"  # type: ignore[attr-defined]
        async with open_actor_desk(store, answer) as desk:
            turn = await desk.start()
            await gate.reached()
            await lose_worker(desk)
        gate.open()
        async with open_actor_desk(store, answer) as desk:
            if not idempotent:
                await wait_until_suspended(desk, turn)
                (request,) = (await desk.store.read(turn.id, 0, 100))[-1:]
                assert isinstance(request.event, ApprovalRequestEvent)
                await desk.runner.decide(turn.id, request.event.call_id, approved=True)
            assert await completed_answer(desk, turn) == "Paying: paid"
        assert runs["pay"] == 2


async def test_journaled_outside_a_turn_awaits_the_call() -> None:
    async def find() -> int:
        return 3

    assert await journaled("find", find) == 3


async def test_calls_inside_a_finished_tool_need_not_be_repeated(store: Store) -> None:
    async def delegate(player: Player) -> None:
        journal = current_journal()
        assert journal is not None
        await player.write(ToolCallEvent("c1", "ask", {}))
        with await journal.begin_tool("", "c1", "ask", {}) as call:
            if call.is_live:
                await player.model("Snow. ", place=journal.place("scout"), path=("scout",))
                call.finish("snow")
        await player.write(ToolResultEvent("c1", "ask", True, "snow"))
        await player.model("It snows.")

    player = Player(delegate, stops_at="It snows.")
    answer, _ = await finish(store, player, await lose(store, player))
    assert (answer, player.live["Snow. "]) == ("It snows.", 1)
