"""How a graph waits for a person: what is asked, what the graph gets back, and what it needs for that."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, wrap_tool_call
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import interrupt
from openai import DefaultAsyncHttpx2Client

from tests.contracts.test_agent import check_calls_have_results, conversation_of, only, outcome, text
from tests.contracts.test_agent_approvals import events_until_suspended, results
from tests.core.desk import Desk, open_actor_desk, wait_until_suspended
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.agents.langgraph import LangGraphAgent, langchain_tools
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import InvalidReplyError
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ApprovalRequestEvent, ErrorEvent, Event, ToolCallEvent, ToolProgressEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import Question, TurnRecord
from turnwire.stores.memory import MemoryStore
from turnwire.tools import progress, tool

__all__ = ["model_server"]


def graph(*nodes: Callable[..., Any], saver: Any = None, **options: Any) -> Any:
    """The nodes side by side."""
    builder = StateGraph(MessagesState)
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    return builder.compile(checkpointer=saver or InMemorySaver(), **options)


def desk_for(built: Any, store: Store | None = None, **options: Any) -> Any:
    return open_actor_desk(store or MemoryStore(), LangGraphAgent(built, **options))


async def decided(desk: Desk, approved: bool, reason: str | None = None, times: int = 1) -> list[Event]:
    """The whole log of a turn in which everything that is asked once is decided in one way."""
    turn = await desk.start()
    requests = only(await events_until_suspended(desk, turn, times), ApprovalRequestEvent)
    for request in requests:
        await desk.runner.decide(turn.id, request.call_id, approved=approved, reason=reason)
    return await desk.events(turn)


@pytest.fixture
async def model(model_server: ScriptedModel) -> AsyncIterator[ChatOpenAI]:
    client = DefaultAsyncHttpx2Client()
    yield ChatOpenAI(
        model="small",
        base_url=model_server.url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        stream_usage=True,
        http_async_client=client,
    )
    await client.aclose()


# What is asked, and what comes back


MAY_I = {"action": "ask", "text": "May I?"}


def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"It is {interrupt(MAY_I)!r}.")]}


def wonder(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"It is {interrupt('Which one?')!r}.")]}


@pytest.mark.parametrize("approved", [True, False])
async def test_a_value_of_the_graph_s_own_is_asked_about_and_answered_with_yes_or_no(approved: bool) -> None:
    async with desk_for(graph(ask)) as desk:
        events = await decided(desk, approved, "no time")
    assert outcome(events) == ("completed", None)
    assert text(events) == f"It is {approved}."
    (request,) = only(events, ApprovalRequestEvent)
    assert (request.tool, request.args) == ("ask", MAY_I)
    check_calls_have_results(events)
    assert results(events) == {request.call_id: (approved, True if approved else "Denied: no time")}


@pytest.mark.parametrize("key", ["tool", "action"])
async def test_a_value_that_names_what_is_to_be_done_is_asked_about_under_that_name(key: str) -> None:
    value = {key: "transfer", "amount": 5}

    def pay(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("Paid." if interrupt(value) else "Not paid.")]}

    async with desk_for(graph(pay)) as desk:
        events = await decided(desk, False)
    (request,) = only(events, ApprovalRequestEvent)
    assert (request.tool, request.args) == ("transfer", value)
    assert text(events) == "Not paid."


async def test_a_graph_may_be_answered_with_what_it_wants() -> None:
    def to_resume(decision: Decision, value: Any) -> Any:
        return {"question": value, "answer": "go on" if decision.approved else decision.reason}

    async with desk_for(graph(wonder), to_resume=to_resume) as desk:
        events = await decided(desk, False, "too late")
    (request,) = only(events, ApprovalRequestEvent)
    assert (request.tool, request.args) == ("wonder", {"value": "Which one?"})
    assert text(events) == "It is {'question': 'Which one?', 'answer': 'too late'}."


# Questions


def journaling_desk(built: Any, **options: Any) -> Any:
    """Open a desk with the agent itself, which keeps a journal unless it is closed on a crash."""
    return open_actor_desk(MemoryStore(), LangGraphAgent(built, **options))


async def open_questions(desk: Desk, turn: TurnRecord) -> dict[str, Question]:
    await wait_until_suspended(desk, turn)
    return {each.prompt: each for each in (await fold_log(desk.store, turn.id)).requests.open_questions}


@pytest.mark.parametrize("on_crash", ["resume", "close"])
async def test_reply_to_a_value_of_the_graph_s_own_is_what_interrupt_returns(on_crash: Any) -> None:
    async with journaling_desk(graph(wonder), on_crash=on_crash) as desk:
        turn = await desk.start()
        (question,) = (await open_questions(desk, turn)).values()
        assert (question.prompt, question.schema) == ("Which one?", None)
        await desk.runner.reply(turn.id, question.id, {"one": [1, 2]})
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert text(events) == "It is {'one': [1, 2]}."
    assert not only(events, ApprovalRequestEvent)


async def test_schema_in_a_value_of_the_graph_s_own_checks_the_reply() -> None:
    schema = {"type": "string", "enum": ["red", "blue"]}

    def choose(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt({"question": "Which?", "schema": schema, "draft": 3}))]}

    async with desk_for(graph(choose)) as desk:
        turn = await desk.start()
        (question,) = (await open_questions(desk, turn)).values()
        assert (question.prompt, question.schema) == ("Which?", schema)
        with pytest.raises(InvalidReplyError):
            await desk.runner.reply(turn.id, question.id, "green")
        await desk.runner.reply(turn.id, question.id, "blue")
        assert text(await desk.events(turn)) == "blue"


@pytest.mark.parametrize("on_crash", ["resume", "close"])
async def test_nodes_that_ask_at_once_and_again_get_each_its_own_reply(on_crash: Any) -> None:
    def left(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"left {interrupt('left?')} {interrupt('left again?')} ")]}

    def right(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"right {interrupt('right?')} ")]}

    async with journaling_desk(graph(left, right), on_crash=on_crash) as desk:
        turn = await desk.start()
        questions = await open_questions(desk, turn)
        await desk.runner.reply(turn.id, questions["right?"].id, 1)
        await desk.runner.reply(turn.id, questions["left?"].id, 2)
        (again,) = (await open_questions(desk, turn)).values()
        assert again.prompt == "left again?"
        await desk.runner.reply(turn.id, again.id, 3)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert "left 2 3" in text(events)
    assert "right 1" in text(events)


async def test_declined_question_resumes_the_graph_with_none() -> None:
    async with desk_for(graph(wonder)) as desk:
        turn = await desk.start()
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question.id, declined=True)
        assert text(await desk.events(turn)) == "It is None."


# Approvals


async def test_several_that_ask_at_once_get_each_its_own_answer() -> None:
    def left(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"left {interrupt({'tool': 'left'})} ")]}

    def right(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"right {interrupt({'tool': 'right'})} ")]}

    async with desk_for(graph(left, right)) as desk:
        turn = await desk.start()
        requests = {
            request.tool: request.call_id
            for request in only(await events_until_suspended(desk, turn, 2), ApprovalRequestEvent)
        }
        await desk.runner.decide(turn.id, requests["left"], approved=False)
        await desk.runner.decide(turn.id, requests["right"], approved=True)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert sorted(text(events).split()) == ["False", "True", "left", "right"]
    assert text(events).index("left False") >= 0
    check_calls_have_results(events)


async def test_one_node_may_ask_again() -> None:
    def twice(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt({'tool': 'one'})} {interrupt({'tool': 'two'})}")]}

    async with desk_for(graph(twice)) as desk:
        turn = await desk.start()
        (first,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
        await desk.runner.decide(turn.id, first.call_id, approved=True)
        _, second = only(await events_until_suspended(desk, turn, 2), ApprovalRequestEvent)
        await desk.runner.decide(turn.id, second.call_id, approved=False)
        events = await desk.events(turn)
    assert text(events) == "True False"
    check_calls_have_results(events)


async def test_who_asks_inside_a_subgraph_is_told() -> None:
    inner = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
    outer = StateGraph(MessagesState).add_node("clerk", inner).add_edge(START, "clerk")
    async with desk_for(outer.compile(checkpointer=InMemorySaver())) as desk:
        events = await decided(desk, True)
    assert outcome(events) == ("completed", None)
    (request,) = only(events, ApprovalRequestEvent)
    assert (request.tool, request.agent_path) == ("ask", ("clerk",))


async def test_turn_that_branches_from_an_earlier_one_asks() -> None:
    def ask_if_requested(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].content == "ask":
            interrupt(MAY_I)
        return {"messages": [AIMessage(f"{len(state['messages'])} messages.")]}

    async with desk_for(graph(ask_if_requested)) as desk:
        first = await desk.start("one")
        await desk.events(first)
        await desk.events(await desk.start("two", session_id=first.session_id))
        turn = await desk.start("ask", session_id=first.session_id, parent_turn_id=first.id)
        (request,) = only(await events_until_suspended(desk, turn, 1), ApprovalRequestEvent)
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        assert text(await desk.events(turn)) == "3 messages."


# What it needs


@pytest.mark.parametrize("nested", [False, True])
async def test_graph_without_a_checkpointer_is_kept_with_the_turn(nested: bool) -> None:
    done: list[str] = []

    def prepare(state: MessagesState) -> None:
        done.append("prepared")

    builder = StateGraph(MessagesState).add_sequence([prepare, ask]).add_edge(START, "prepare")
    built: Any = builder.compile()
    if nested:
        built = StateGraph(MessagesState).add_node("clerk", built).add_edge(START, "clerk").compile()
    store = MemoryStore()
    async with desk_for(built, store) as desk:
        turn = await desk.start()
        (request,) = only(await events_until_suspended(desk, turn, 1), ApprovalRequestEvent)
    async with desk_for(built, store) as desk:
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert "It is True." in text(events)
    assert done == ["prepared"]


async def test_graph_that_must_not_have_a_checkpointer_cannot_ask() -> None:
    built = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile(checkpointer=False)
    async with desk_for(built) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("failed", "agent_failed")
    (error,) = only(events, ErrorEvent)
    assert "checkpointer=False" in error.error


async def test_graph_whose_state_cannot_be_stored_can_wait() -> None:
    class State(MessagesState):
        lock: Any

    def lend(state: State) -> dict[str, Any]:
        return {"lock": lambda: None}

    built = StateGraph(State).add_sequence([lend, ask]).add_edge(START, "lend").compile()
    async with desk_for(built) as desk:
        assert text(await decided(desk, True)) == "It is True."


async def test_graph_goes_on_if_its_checkpointer_has_lost_the_thread() -> None:
    store = MemoryStore()
    async with desk_for(graph(ask), store) as desk:
        turn = await desk.start()
        (request,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
    async with desk_for(graph(ask), MemoryStore(store)) as desk:
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        assert text(await desk.events(turn)) == "It is True."


async def test_a_breakpoint_is_no_question() -> None:
    def go(state: MessagesState) -> dict[str, Any]:
        return {}

    async with desk_for(graph(go, interrupt_before=["go"])) as desk:
        events = await desk.events(await desk.start())
    (error,) = only(events, ErrorEvent)
    assert "breakpoint" in error.error


# Tools


class Mail:
    def __init__(self) -> None:
        self.sent: list[str] = []

        async def send(to: str) -> str:
            """Sends a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        self.send = send


async def test_the_middleware_s_question_about_one_call_is_answered_too(
    model: ChatOpenAI, model_server: ScriptedModel
) -> None:
    mail = Mail()
    asks = HumanInTheLoopMiddleware(
        {"send": {"allowed_decisions": ["approve", "reject"], "description": "It leaves the house."}},
        interrupt_mode="per_call",
    )
    model_server.plan(calls(("send", {"to": "bob"}), ("send", {"to": "eve"})), says("Done."))
    built = create_agent(model, tools=[mail.send], middleware=[asks], checkpointer=InMemorySaver())
    async with desk_for(built) as desk:
        turn = await desk.start()
        requests = only(await events_until_suspended(desk, turn, 2), ApprovalRequestEvent)
        assert {(request.call_id, request.args["to"], request.reason) for request in requests} == {
            ("call_1", "bob", "It leaves the house."),
            ("call_2", "eve", "It leaves the house."),
        }
        await desk.runner.decide(turn.id, "call_1", approved=True)
        await desk.runner.decide(turn.id, "call_2", approved=False, reason="Eve listens")
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert mail.sent == ["bob"]
    check_calls_have_results(events)
    assert "Eve listens" in results(events)["call_2"][1]
    assert "Eve listens" in repr(conversation_of(model_server.bodies[1]))


async def test_two_calls_that_are_alike_are_two_decisions(model: ChatOpenAI, model_server: ScriptedModel) -> None:
    mail = Mail()
    asks = HumanInTheLoopMiddleware({"send": True})
    model_server.plan(calls(("send", {"to": "bob"}), ("send", {"to": "bob"})), says("Done."))
    built = create_agent(model, tools=[mail.send], middleware=[asks], checkpointer=InMemorySaver())
    async with desk_for(built) as desk:
        turn = await desk.start()
        requests = only(await events_until_suspended(desk, turn, 2), ApprovalRequestEvent)
        assert [request.call_id for request in requests] == ["call_1", "call_2"]
        await desk.runner.decide(turn.id, "call_1", approved=False)
        await desk.runner.decide(turn.id, "call_2", approved=True)
        events = await desk.events(turn)
    assert {call_id: success for call_id, (success, _) in results(events).items()} == {"call_1": False, "call_2": True}
    assert mail.sent == ["bob"]


async def test_what_langchain_injects_is_no_argument(model: ChatOpenAI, model_server: ScriptedModel) -> None:
    async def send(to: str, runtime: ToolRuntime, state: Annotated[Any, InjectedState]) -> str:
        """Sends a letter."""
        return f"sent to {to}"

    asks = HumanInTheLoopMiddleware({"send": True})
    model_server.plan(calls(("send", {"to": "bob"})), says("Done."))
    async with desk_for(create_agent(model, tools=[send], middleware=[asks], checkpointer=InMemorySaver())) as desk:
        events = await decided(desk, True)
    assert outcome(events) == ("completed", None)
    assert results(events) == {"call_1": (True, "sent to bob")}


async def test_arguments_that_change_after_the_decision_stop_the_turn(
    model: ChatOpenAI, model_server: ScriptedModel
) -> None:
    mail = Mail()

    @wrap_tool_call
    async def change(request: Any, handler: Any) -> Any:
        return await handler(request.override(tool_call={**request.tool_call, "args": {"to": "eve"}}))

    asks = HumanInTheLoopMiddleware({"send": True})
    model_server.plan(calls(("send", {"to": "bob"})))
    built = create_agent(model, tools=[mail.send], middleware=[asks, change], checkpointer=InMemorySaver())
    async with desk_for(built) as desk:
        events = await decided(desk, True)
    assert outcome(events) == ("failed", "approval_conflict")
    assert not mail.sent


async def test_a_tool_that_asks_in_the_middle_is_told_once(model: ChatOpenAI, model_server: ScriptedModel) -> None:
    async def book(city: str) -> str:
        """Books a journey."""
        return "booked" if interrupt({"action": "pay", "city": city}) else "not booked"

    model_server.plan(calls(("book", {"city": "Oslo"})), says("Done."))
    async with desk_for(create_agent(model, tools=[book], checkpointer=InMemorySaver())) as desk:
        events = await decided(desk, False, "too dear")
    assert outcome(events) == ("completed", None)
    assert [event.tool for event in only(events, ToolCallEvent)] == ["book", "pay"]
    check_calls_have_results(events)
    assert results(events)["call_1"] == (True, "not booked")
    assert ("result", ("call_1", "not booked")) in conversation_of(model_server.bodies[1])


async def test_our_tools_work_in_a_graph_and_outside_of_one(model: ChatOpenAI, model_server: ScriptedModel) -> None:
    @tool(timeout=60, max_output=10)
    async def look(config: str, run_manager: int = 3) -> str:
        """Looks, under names that LangChain has for itself."""
        progress(f"{config} {run_manager}")
        return "a very long story"

    (made,) = langchain_tools([look])
    assert (made.name, made.args_schema) == ("look", look.parameters)
    assert await made.ainvoke({"config": "Oslo"}) == "a very lon… [cut here: 17 characters in all]"
    model_server.plan(calls(("look", {"config": "Oslo", "run_manager": 4})), says("Done."))
    async with desk_for(create_agent(model, tools=[made])) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert only(events, ToolProgressEvent) == [ToolProgressEvent("call_1", "Oslo 4")]
