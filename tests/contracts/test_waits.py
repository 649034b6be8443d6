"""The contract of waits, over every store: questions and client tools suspend a turn, and their answers continue it."""

import asyncio
from typing import Any

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import (
    AgentEvents,
    Desk,
    Gate,
    completed_answer,
    event_types,
    failure,
    lose_worker,
    open_actor_desk,
    wait_until_suspended,
)
from turnwire import QuestionDeclinedError, ask, call_client_tool, emit, journaled
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import (
    ClientToolConflictError,
    ClientToolsNotTakenError,
    InvalidReplyError,
    QuestionNotFoundError,
    ReplyConflictError,
    ToolCallNotFoundError,
    ToolError,
    TurnwireError,
)
from turnwire.core.log.events import (
    Event,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import Turn, TurnRecord

CHOICE = {"type": "string", "enum": ["red", "blue"]}
TOOLS = {"client_tools": [{"name": "locate", "description": "Find the user.", "parameters": {"type": "object"}}]}


class Journaling:
    """An agent that keeps a journal, and continues on another worker."""

    on_crash: str = "resume"
    takes_client_tools: bool = True
    tool_names = ("own",)

    def __init__(self) -> None:
        self.runs = 0
        self.gate = Gate()

    async def answer(self, turn: Turn) -> AgentEvents:
        raise NotImplementedError
        yield ""


class Asking(Journaling):
    """Asks two questions, one after the other, with text and steps around them."""

    async def answer(self, turn: Turn) -> AgentEvents:
        self.runs += 1
        yield StatusEvent("Thinking")
        yield "I ask. "
        await journaled("prepare", self._prepare)
        color = await ask("Which colour?", CHOICE)
        yield f"You want {color}. "
        size = await ask("Which size?")
        yield f"And {size}."

    prepared = 0

    async def _prepare(self) -> None:
        self.prepared += 1


class Locating(Journaling):
    """Calls the client's tool."""

    async def answer(self, turn: Turn) -> AgentEvents:
        self.runs += 1
        yield "Where? "
        try:
            place = await call_client_tool("locate", {"exact": True})
        except ToolError as error:
            place = f"nowhere, {error}"
        yield f"You are in {place}."


def only(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def log_of(desk: Desk, turn: TurnRecord) -> list[Event]:
    return [logged.event for logged in await whole_log(desk.store, turn.id)]


async def questions_of(desk: Desk, turn: TurnRecord) -> list[str]:
    """Wait until the turn is suspended, and return the ids of its open questions."""
    await wait_until_suspended(desk, turn)
    return [question.id for question in (await fold_log(desk.store, turn.id)).requests.open_questions]


async def call_of(desk: Desk, turn: TurnRecord) -> str:
    await wait_until_suspended(desk, turn)
    (call,) = (await fold_log(desk.store, turn.id)).requests.open_client_calls
    return call.call_id


async def test_reply_continues_the_turn_and_nothing_is_written_twice(store: Store) -> None:
    agent = Asking()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Paint")
        (first,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, first, "blue", by="ann")
        await desk.runner.reply(turn.id, first, "blue", by="ann")
        (second,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, second, {"w": 3}, by="ann")
        assert await completed_answer(desk, turn) == "I ask. You want blue. And {'w': 3}."
        events = await desk.events(turn)
    assert event_types(events)[2:] == [
        *("status", "token", "question", "reply", "token", "question", "reply", "token", "response", "done")
    ]
    assert only(events, QuestionEvent) == [
        QuestionEvent(first, "Which colour?", CHOICE),
        QuestionEvent(second, "Which size?"),
    ]
    assert only(events, ReplyEvent) == [ReplyEvent(first, "blue", by="ann"), ReplyEvent(second, {"w": 3}, by="ann")]
    assert (agent.runs, agent.prepared) == (3, 1)


async def test_question_is_answered_in_another_process_after_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    async with open_actor_desk(store, Asking()) as desk:
        turn = await desk.start("Paint")
        (first,) = await questions_of(desk, turn)
    backend.crash()
    store = await backend.open()
    agent = Asking()
    async with open_actor_desk(store, agent) as desk:
        state = (await fold_log(desk.store, turn.id)).state()
        assert [(each.id, each.prompt, each.state) for each in state.questions] == [(first, "Which colour?", "open")]
        await desk.runner.reply(turn.id, first, "red")
        (second,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, second, "big")
        assert await completed_answer(desk, turn) == "I ask. You want red. And big."
        assert not only(await desk.events(turn), RestartEvent)
    assert agent.prepared == 0


@pytest.mark.parametrize("value", ["green", 3, None, ["red"]])
async def test_reply_that_does_not_fit_the_schema_is_refused_and_names_the_field(store: Store, value: Any) -> None:
    async with open_actor_desk(store, Asking()) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        with pytest.raises(InvalidReplyError, match=r"^value: "):
            await desk.runner.reply(turn.id, question, value)
        assert (await desk.store.find_turn("ann", turn.id)).phase == "waiting"


async def test_other_reply_to_an_answered_question_is_a_conflict(store: Store) -> None:
    async with open_actor_desk(store, Asking()) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, "red")
        with pytest.raises(ReplyConflictError):
            await desk.runner.reply(turn.id, question, "blue")
        with pytest.raises(ReplyConflictError):
            await desk.runner.reply(turn.id, question, declined=True)
        with pytest.raises(QuestionNotFoundError):
            await desk.runner.reply(turn.id, "q_other", "red")


class Guessing(Journaling):
    async def answer(self, turn: Turn) -> AgentEvents:
        try:
            yield await ask("Which colour?", CHOICE)
        except QuestionDeclinedError as declined:
            yield f"None: {declined.reason}."


async def test_declined_question_raises_in_the_agent(store: Store) -> None:
    async with open_actor_desk(store, Guessing()) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, declined=True, reason="too hard", by="ann")
        assert await completed_answer(desk, turn) == "None: too hard."
        (reply,) = only(await desk.events(turn), ReplyEvent)
    assert reply == ReplyEvent(question, declined=True, reason="too hard", by="ann")


async def test_question_that_nobody_answers_in_time_is_declined(store: Store) -> None:
    async with open_actor_desk(store, Guessing(), approval_timeout=0.001, lease=0.4) as desk:
        turn = await desk.start("Paint")
        assert await completed_answer(desk, turn) == "None: nobody decided within 0.001 seconds."


class Crowd(Journaling):
    """Asks at several places at once, while another step still runs."""

    async def answer(self, turn: Turn) -> AgentEvents:
        self.runs += 1

        async def step(name: str) -> Any:
            return await journaled(name, lambda: ask(f"{name}?"), idempotent=False)

        work = journaled("work", self._work)
        results = await asyncio.gather(step("one"), work, step("two"), ask("three?"))
        yield " ".join(map(str, results))

    worked = 0

    async def _work(self) -> str:
        await self.gate.wait()
        self.worked += 1
        return "worked"


async def test_several_questions_are_open_at_once_and_the_last_reply_continues(store: Store) -> None:
    agent = Crowd()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await agent.gate.reached()
        assert not only(await log_of(desk, turn), QuestionEvent)
        agent.gate.open()
        ids = await questions_of(desk, turn)
        prompts = {event.id: event.prompt for event in only(await log_of(desk, turn), QuestionEvent)}
        assert sorted(prompts.values()) == ["one?", "three?", "two?"]
        for question in reversed(ids):
            assert (await desk.store.find_turn("ann", turn.id)).phase == "waiting"
            await desk.runner.reply(turn.id, question, prompts[question].upper())
        assert await completed_answer(desk, turn) == "ONE? worked TWO? THREE?"
    assert (agent.runs, agent.worked) == (2, 1)


async def test_cancel_while_a_turn_waits_ends_it(store: Store) -> None:
    async with open_actor_desk(store, Asking()) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.cancel(turn)
        done = await desk.end(turn)
        assert done.outcome == "cancelled"
        with pytest.raises(TurnwireError):
            await desk.runner.reply(turn.id, question, "red")
        following = await desk.start("Again", session_id=turn.session_id)
        await questions_of(desk, following)


async def test_cancel_before_the_question_and_after_the_reply_ends_the_turn(store: Store) -> None:
    crowd, late = Crowd(), Late()
    async with open_actor_desk(store, crowd) as desk:
        turn = await desk.start("Go")
        await crowd.gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert not only(await desk.events(turn), QuestionEvent)
    async with open_actor_desk(store, late) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, "red")
        await late.gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert len(only(await desk.events(turn), ReplyEvent)) == 1


async def test_worker_lost_after_the_reply_continues_without_asking_again(store: Store) -> None:
    agent, second = Late(), Late()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, "red")
        await agent.gate.reached()
        await lose_worker(desk)
    second.gate.open()
    async with open_actor_desk(store, second) as desk:
        assert await completed_answer(desk, turn) == "Well: red, done."
        events = await desk.events(turn)
    assert len(only(events, QuestionEvent)) == len(only(events, ReplyEvent)) == 1
    assert [type(event) for event in events].count(RestartEvent) == 1


class Late(Journaling):
    """Waits at a gate after the reply."""

    async def answer(self, turn: Turn) -> AgentEvents:
        yield "Well: "
        color = await ask("Which colour?")
        yield f"{color}, "
        await self.gate.wait()
        yield "done."


class Careful(Journaling):
    """A step that is not idempotent asks, and then waits at a gate."""

    async def answer(self, turn: Turn) -> AgentEvents:
        async def pay() -> str:
            amount = await ask("How much?")
            await self.gate.wait()
            return f"paid {amount}"

        yield await journaled("pay", pay)


async def test_step_that_is_lost_after_its_reply_is_not_repeated_without_consent(store: Store) -> None:
    agent, second = Careful(), Careful()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Pay")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, 3)
        await agent.gate.reached()
        await lose_worker(desk)
    second.gate.open()
    async with open_actor_desk(store, second) as desk:
        await wait_until_suspended(desk, turn)
        (request,) = (await fold_log(desk.store, turn.id)).requests.undecided
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        assert await completed_answer(desk, turn) == "paid 3"


async def test_client_runs_its_tool_and_the_result_continues_the_turn(store: Store) -> None:
    agent = Locating()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Find me", options=TOOLS)
        call_id = await call_of(desk, turn)
        with pytest.raises(ToolCallNotFoundError):
            await desk.runner.send_tool_result(turn.id, "call_other", "Oslo")
        await desk.runner.send_tool_result(turn.id, call_id, "Oslo")
        await desk.runner.send_tool_result(turn.id, call_id, "Oslo")
        with pytest.raises(ReplyConflictError):
            await desk.runner.send_tool_result(turn.id, call_id, "Bergen")
        assert await completed_answer(desk, turn) == "Where? You are in Oslo."
        events = await desk.events(turn)
    assert only(events, ToolCallEvent) == [ToolCallEvent(call_id, "locate", {"exact": True}, runs_on="client")]
    assert only(events, ToolResultEvent) == [ToolResultEvent(call_id, "locate", True, "Oslo")]
    assert agent.runs == 2


async def test_result_that_is_too_large_is_refused_and_the_turn_keeps_waiting(store: Store) -> None:
    async with open_actor_desk(store, Locating(), max_event_bytes=1_000) as desk:
        turn = await desk.start("Find me", options=TOOLS)
        call_id = await call_of(desk, turn)
        with pytest.raises(InvalidReplyError, match=r"^output: "):
            await desk.runner.send_tool_result(turn.id, call_id, "x" * 2_000)
        await desk.runner.send_tool_result(turn.id, call_id, "Oslo")
        assert await completed_answer(desk, turn) == "Where? You are in Oslo."


async def test_error_of_the_client_s_tool_is_told_to_the_agent(store: Store) -> None:
    async with open_actor_desk(store, Locating()) as desk:
        turn = await desk.start("Find me", options=TOOLS)
        await desk.runner.send_tool_result(turn.id, await call_of(desk, turn), {"code": 7}, is_error=True)
        assert await completed_answer(desk, turn) == 'Where? You are in nowhere, {"code":7}.'
        (result,) = only(await desk.events(turn), ToolResultEvent)
    assert (result.success, result.result) == (False, {"code": 7})


async def test_client_that_sends_no_result_in_time_is_a_failed_call(store: Store) -> None:
    async with open_actor_desk(store, Locating(), approval_timeout=0.001, lease=0.4) as desk:
        turn = await desk.start("Find me", options=TOOLS)
        text = "nowhere, No result: nobody decided within 0.001 seconds."
        assert await completed_answer(desk, turn) == f"Where? You are in {text}."


async def test_tools_of_the_client_are_refused_by_an_agent_that_takes_none_or_has_the_name(store: Store) -> None:
    agent = Locating()
    async with open_actor_desk(store, agent) as desk:
        with pytest.raises(ClientToolConflictError):
            await desk.start("Find me", options={"client_tools": [{"name": "own"}]})
        agent.takes_client_tools = False
        with pytest.raises(ClientToolsNotTakenError):
            await desk.start("Find me", options=TOOLS)


async def test_question_in_a_thread_fails_the_turn(store: Store) -> None:
    def agent(turn: Turn) -> str:
        return asyncio.run(ask("Which colour?"))

    async with open_actor_desk(store, agent) as desk:
        error = await failure(desk, await desk.start("Paint"))
    assert "on the server's event loop" in error.error


async def test_agent_must_not_write_questions_and_replies_itself(store: Store) -> None:
    class Forging(Journaling):
        async def answer(self, turn: Turn) -> AgentEvents:
            emit(ReplyEvent("q", 1))
            yield ""

    async with open_actor_desk(store, Forging()) as desk:
        assert (await failure(desk, await desk.start("Paint"))).code == "event_refused"


async def test_time_in_which_a_turn_waits_does_not_count(store: Store) -> None:
    async with open_actor_desk(store, Guessing(), turn_timeout=BOUND) as desk:
        turn = await desk.start("Paint")
        (question,) = await questions_of(desk, turn)
        await desk.runner.reply(turn.id, question, "red")
        await desk.events(turn)
        fold = await fold_log(desk.store, turn.id)
        question, reply = (
            logged for logged in await whole_log(desk.store, turn.id) if logged.type in ("question", "reply")
        )
        assert fold.requests.waited_ms == reply.at - question.at
