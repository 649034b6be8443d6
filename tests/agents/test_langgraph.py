"""Tests that are special to LangGraph and LangChain; the contract suite has the rest."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.callbacks import AsyncCallbackManager, adispatch_custom_event
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Send
from msgspec.structs import replace as replace_turn
from openai import DefaultAsyncHttpx2Client
from pydantic import BaseModel

from tests.contracts.turns import BOUND
from tests.core.desk import Gate, open_actor_desk, open_desk
from tests.scripted_model import ScriptedModel, calls, fails, hangs, model_server, says, thinks, too_long, truncates
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import ModelError, ToolError
from turnwire.core.log.events import (
    CustomEvent,
    Event,
    ReasoningEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Message, Turn
from turnwire.stores.memory import MemoryStore
from turnwire.tools import progress

__all__ = ["model_server"]

HISTORY = (Message("user", "How is it?"), Message("assistant", "Sunny."))
TURN = Turn(id="t1", session_id="s1", principal="ann", message="hello", history=HISTORY)


async def answered(agent: Any, turn: Turn = TURN) -> list[Event | str]:
    return [event async for event in agent.answer(turn)]


def answering(target: Any) -> AsyncGenerator[Event | str]:
    return as_agent(target).answer(TURN)  # type: ignore[return-value]


def only(events: Any, kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def text(events: list[Event | str]) -> str:
    return "".join(only(events, str))


def graph(*nodes: Any, state: Any = MessagesState, **options: Any) -> Any:
    """The nodes one after the other: functions, or pairs of a name and what it does."""
    builder = StateGraph(state)
    builder.add_sequence(nodes)
    name = nodes[0][0] if isinstance(nodes[0], tuple) else nodes[0].__name__
    builder.add_edge(START, name)
    return builder.compile(**options)


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    client = DefaultAsyncHttpx2Client()
    yield client
    await client.aclose()


@pytest.fixture
def model(model_server: ScriptedModel, client: Any) -> ChatOpenAI:
    """A model that asks the scripted server."""
    return ChatOpenAI(
        model="small",
        base_url=model_server.url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        stream_usage=True,
        http_async_client=client,
    )


@pytest.fixture
def responding(model_server: ScriptedModel, client: Any) -> ChatOpenAI:
    """The same by the Responses API."""
    return ChatOpenAI(
        model="small",
        base_url=model_server.url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        use_responses_api=True,
        http_async_client=client,
    )


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


# Graphs


async def test_a_graph_without_a_model_answers() -> None:
    def greet(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{state['messages'][-1].text} yourself")]}

    assert await answered(as_agent(graph(greet))) == ["hello yourself"]


async def test_what_a_node_repeats_of_the_history_is_not_told_again() -> None:
    class State(TypedDict):
        messages: list[BaseMessage]

    def greet(state: State) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage("hello yourself")]}

    assert await answered(as_agent(graph(greet, state=State))) == ["hello yourself"]


async def test_a_model_that_does_not_stream_answers_too() -> None:
    async def reply(state: MessagesState) -> dict[str, Any]:
        fake = FakeListChatModel(responses=["all at once"], disable_streaming=True)
        return {"messages": [await fake.ainvoke(state["messages"])]}

    assert await answered(as_agent(graph(reply))) == ["all at once"]


async def test_a_sync_node_with_a_sync_model_answers() -> None:
    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [FakeListChatModel(responses=["Yes"]).invoke(state["messages"])]}

    assert text(await answered(as_agent(graph(reply)))) == "Yes"


async def test_the_history_is_given_to_a_graph_that_has_none(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    model_server.plan(says("Oslo."))
    assert text(await answered(as_agent(create_agent(model)))) == "Oslo."
    assert [message["content"] for message in model_server.bodies[0]["messages"]] == ["How is it?", "Sunny.", "hello"]


async def test_a_state_of_another_shape_is_made_by_the_application() -> None:
    class State(TypedDict):
        question: str
        messages: Annotated[list[BaseMessage], lambda before, more: before + more]

    def reply(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(state["question"].upper())]}

    built = graph(reply, state=State)
    assert await answered(LangGraphAgent(built, to_input=lambda turn: {"question": turn.message})) == ["HELLO"]


async def test_a_node_may_know_who_asks() -> None:
    async def reply(state: MessagesState, runtime: Runtime[Turn]) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You are {runtime.context.principal}.")]}

    assert text(await answered(LangGraphAgent(graph(reply), to_context=lambda turn: turn))) == "You are ann."


async def test_what_the_stream_writer_sends_is_told() -> None:
    def search(state: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        write(StatusEvent("searching"))
        write({"type": "found", "hits": 3})
        write("half way")
        return {"messages": [AIMessage("Done.")]}

    assert await answered(as_agent(graph(search))) == [
        StatusEvent("searching"),
        CustomEvent(name="found", data={"type": "found", "hits": 3}),
        CustomEvent(name="custom", data="half way"),
        "Done.",
    ]


async def test_only_the_nodes_that_answer_do(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def classify(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("which?")]}

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def log(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("(logged)")]}

    model_server.plan(says("question"), says("It is."))
    events = await answered(LangGraphAgent(graph(classify, reply, log), answer_nodes=["reply"]))
    assert text(events) == "It is."
    assert only(events, TokenEvent) == [
        TokenEvent("question", agent_path=("classify",)),
        TokenEvent("(logged)", agent_path=("log",)),
    ]


class City(BaseModel):
    name: str


@pytest.mark.parametrize("as_tool", [True, False], ids=["as a call", "as text"])
async def test_an_answer_that_is_a_value_is_told_as_json(
    model_server: ScriptedModel, model: ChatOpenAI, as_tool: bool
) -> None:
    model_server.plan(calls(("City", {"name": "Oslo"})) if as_tool else says('{"name":"Oslo"}'))
    form: Any = ToolStrategy(City) if as_tool else ProviderStrategy(City)
    agent = create_agent(model, response_format=form)
    assert text(await answered(as_agent(agent))) == '{"name":"Oslo"}'


async def test_a_model_that_is_not_to_be_streamed_is_not(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def reply(state: MessagesState) -> dict[str, Any]:
        await model.with_config(tags=[TAG_NOSTREAM]).ainvoke("which?")
        return {"messages": [await model.ainvoke(state["messages"])]}

    model_server.plan(says("question"), says("It is."))
    events = await answered(as_agent(graph(reply)))
    assert text(events) == "It is."
    assert not only(events, TokenEvent)
    assert len(only(events, UsageEvent)) == 2


async def test_a_graph_that_is_a_function_answers(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    @task
    async def ask(question: str) -> BaseMessage:
        return await model.ainvoke(question)

    @entrypoint()
    async def flow(input: dict[str, Any]) -> str:
        return (await ask(input["messages"][-1].text)).text

    model_server.plan(says("It is."))
    assert text(await answered(as_agent(flow))) == "It is."


# The answer, if the application does not name its nodes


class Jokes(TypedDict):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], lambda before, more: before + more]
    best: str


class Joke(BaseModel):
    joke: str


class Subjects(BaseModel):
    subjects: list[str]


async def test_answer_of_a_map_reduce_graph_is_what_its_last_node_returns(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    async def topics(state: Jokes) -> Any:
        found: Any = await model.with_structured_output(Subjects, method="json_mode").ainvoke("subjects")
        return {"subjects": found.subjects}

    async def tell(state: Any) -> Any:
        reply: Any = await model.with_structured_output(Joke, method="json_mode").ainvoke(state["subject"])
        return {"jokes": [reply.joke]}

    async def choose(state: Jokes) -> Any:
        return {"best": state["jokes"][-1]}

    builder = StateGraph(Jokes)
    for node in (topics, tell, choose):
        builder.add_node(node)
    builder.add_edge(START, "topics")
    builder.add_conditional_edges("topics", lambda state: [Send("tell", {"subject": s}) for s in state["subjects"]])
    builder.add_edge("tell", "choose")
    model_server.plan(says('{"subjects":["tea","rain"]}'), says('{"joke":"made-up"}'), says('{"joke":"made-up"}'))
    agent = LangGraphAgent(builder.compile(), to_input=lambda turn: {"topic": turn.message})
    events = await answered(agent)
    assert text(events) == "made-up"
    assert not only(events, TokenEvent)
    assert len(only(events, UsageEvent)) == 3


async def test_answer_of_a_chain_of_prompts_is_that_of_the_last(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    class State(TypedDict):
        draft: str
        final: str

    async def write(state: State) -> Any:
        return {"draft": (await model.ainvoke("write")).text}

    async def polish(state: State) -> Any:
        return {"final": (await model.ainvoke(state["draft"])).text}

    model_server.plan(says("Ruff."), says("Smo", "oth."))
    events = await answered(LangGraphAgent(graph(write, polish, state=State), to_input=lambda turn: {}))
    assert only(events, str) == ["Smo", "oth."]
    assert only(events, TokenEvent) == [TokenEvent("Ruff.", agent_path=("write",))]


async def test_node_that_writes_no_messages_does_not_answer(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    class State(MessagesState):
        kind: str

    async def classify(state: State) -> Any:
        if not state["messages"]:
            return None
        return {"kind": (await model.ainvoke("which?")).text}

    async def reply(state: State) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    model_server.plan(says("question"), says("It is."))
    events = await answered(as_agent(graph(classify, reply, state=State)))
    assert text(events) == "It is."
    assert only(events, TokenEvent) == [TokenEvent("question", agent_path=("classify",))]


async def test_parallel_runs_of_a_node_that_does_not_answer_have_different_paths(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    both = asyncio.Barrier(2)

    async def tell(state: Any) -> Any:
        await both.wait()
        return {"jokes": [(await model.ainvoke(state["subject"])).text]}

    async def choose(state: Jokes) -> Any:
        return {"best": sorted(state["jokes"])[0]}

    builder = StateGraph(Jokes)
    builder.add_node(tell)
    builder.add_node(choose)
    builder.add_conditional_edges(START, lambda state: [Send("tell", {"subject": s}) for s in ("tea", "rain")])
    builder.add_edge("tell", "choose")

    def joke(request: Any) -> Any:
        return says("About ", request.body["messages"][-1]["content"])

    model_server.plan(joke, joke)
    events = await answered(LangGraphAgent(builder.compile(), to_input=lambda turn: {"topic": ""}))
    texts: dict[Any, str] = {}
    for event in only(events, TokenEvent):
        texts[event.agent_path] = texts.get(event.agent_path, "") + event.content
    assert set(texts) == {("tell",), ("tell:2",)}
    assert set(texts.values()) == {"About tea", "About rain"}
    assert text(events) == "About rain"


async def test_messages_that_give_control_back_are_not_shown(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    worker: Any = create_agent(model, name="worker")

    async def work(state: MessagesState) -> Any:
        output = await worker.ainvoke({"messages": state["messages"]})
        # As `create_handoff_back_messages` of langgraph-supervisor makes them.
        mark = {"__is_handoff_back": True}
        call: Any = {"name": "transfer_back_to_supervisor", "args": {}, "id": "t1"}
        back = AIMessage("Transferring back to supervisor", tool_calls=[call], response_metadata=mark)
        result = ToolMessage("Successfully transferred back", tool_call_id="t1", response_metadata=mark)
        return {**output, "messages": [output["messages"][-1], back, result]}

    async def supervisor(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    model_server.plan(says("3"), says("Three."))
    events = await answered(as_agent(graph(work, supervisor)))
    assert text(events) == "Three."
    assert only(events, TokenEvent) == [TokenEvent("3", agent_path=("worker",))]
    assert not only(events, ToolCallEvent)


# Subgraphs


async def test_a_subgraph_is_told_by_its_name_and_its_answer_is_the_graphs(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    def start(state: MessagesState) -> None:
        get_stream_writer()(StatusEvent("reading"))

    inner = graph(start, ("agent", create_agent(model, tools=[weather])))
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("It is sunny."))
    events = await answered(as_agent(graph(("research", inner))))
    assert only(events, StatusEvent) == [StatusEvent("reading", agent_path=("research",))]
    path = ("research", "agent")
    assert {event.agent_path for event in only(events, ToolCallEvent | ToolResultEvent)} == {path}
    assert {event.agent_path for event in only(events, UsageEvent)} == {path}
    tokens = only(events, TokenEvent)
    assert {event.agent_path for event in tokens} == {path}
    assert "".join(event.content for event in tokens) == "It is sunny."
    assert text(events) == "It is sunny."


async def test_an_agent_in_a_tool_is_told_by_its_own_name(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    expert = create_agent(model, tools=[weather], name="meteorologist")

    async def consult(question: str) -> str:
        """Asks somebody who knows."""
        state = await expert.ainvoke({"messages": [HumanMessage(question)]})
        return state["messages"][-1].text

    model_server.plan(
        calls(("consult", {"question": "Oslo?"}), ids=["c1"]),
        calls(("weather", {"city": "Oslo"}), ids=["c2"]),
        says("Sun."),
        says("Sun, they say."),
    )
    events = await answered(as_agent(create_agent(model, tools=[consult], name="host")))
    assert {event.call_id: event.agent_path for event in only(events, ToolResultEvent)} == {
        "c1": (),
        "c2": ("meteorologist",),
    }
    assert [event.content for event in only(events, TokenEvent)] == ["Sun."]
    assert text(events) == "Sun, they say."


async def test_json_of_a_sub_agent_is_not_shown(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    checker: Any = create_agent(model, name="checker", response_format=ProviderStrategy(City))

    async def check() -> str:
        """Ask for a city."""
        state = await checker.ainvoke({"messages": [HumanMessage("which?")]})
        return state["structured_response"].name

    model_server.plan(calls(("check", {})), says('{"name":"Oslo"}'), says("Oslo."))
    events = await answered(as_agent(create_agent(model, tools=[check])))
    assert text(events) == "Oslo."
    assert not only(events, TokenEvent)
    assert [event.agent_path for event in only(events, UsageEvent)] == [(), ("checker",), ()]


# Checkpointers


async def test_a_thread_keeps_the_history_of_its_session(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    agent = as_agent(create_agent(model, checkpointer=InMemorySaver()))
    model_server.plan(says("First."), says("Second."), says("Other."))
    fresh = Turn(id="t1", session_id="s1", principal="ann", message="one")
    assert text(await answered(agent, fresh)) == "First."
    again = Turn(id="t2", session_id="s1", principal="ann", message="two", history=HISTORY)
    assert text(await answered(agent, again)) == "Second."
    other = Turn(id="t3", session_id="s2", principal="ann", message="three")
    assert text(await answered(agent, other)) == "Other."
    contents = [[message["content"] for message in body["messages"]] for body in model_server.bodies]
    assert contents == [["one"], ["one", "First.", "two"], ["three"]]


async def test_no_configuration_makes_sessions_share_a_thread() -> None:
    async def count(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    config: Any = {"configurable": {"thread_id": "one for all"}, "callbacks": AsyncCallbackManager([])}
    agent = LangGraphAgent(graph(count, checkpointer=InMemorySaver()), config=config)
    for session_id in ("s1", "s2"):
        turn = Turn(id="t1", session_id=session_id, principal="ann", message="hello")
        assert text(await answered(agent, turn)) == "1"


async def test_a_thread_that_was_stopped_in_a_tool_goes_on(
    store: Store, model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    gate = Gate()

    async def endless(city: str) -> str:
        """Never comes to an end."""
        await gate.wait()
        return city

    adapter = as_agent(create_agent(model, tools=[endless], checkpointer=InMemorySaver()))

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        async for event in adapter.answer(turn):
            yield event

    model_server.plan(calls(("endless", {"city": "Oslo"})), says("Whole."))
    async with open_desk(store, answer) as desk:
        turn = await desk.start("one")
        await gate.reached()
        await desk.cancel(turn)
        again = await desk.start("two", session_id=turn.session_id)
        assert (await desk.end(again)).outcome == "completed"
    assert [(message["role"], message.get("tool_call_id")) for message in model_server.bodies[1]["messages"]] == [
        ("user", None),
        ("assistant", None),
        ("tool", "call_1"),
        ("user", None),
    ]


@pytest.mark.parametrize("thread", [None, "own"])
async def test_stream_of_messages_inside_a_node_gets_every_chunk(
    model_server: ScriptedModel, model: ChatOpenAI, thread: str | None
) -> None:
    """The tokens of a turn's models are kept out of the turn's own stream of messages, but not out of others."""
    inner: Any = create_agent(model, checkpointer=InMemorySaver() if thread else None)
    outer: list[str] = []
    streamed: list[str] = []

    async def ask(state: MessagesState) -> dict[str, Any]:
        outer.append((await model.ainvoke("alone")).text)
        config: Any = {"configurable": {"thread_id": thread}} if thread else None
        async for chunk, _ in inner.astream({"messages": state["messages"]}, config, stream_mode="messages"):
            streamed.append(chunk.text)
        return {}

    model_server.plan(says("One", " by", " one."), says("Two", " by", " two."))
    async with open_actor_desk(MemoryStore(), graph(ask)) as desk:
        events = await desk.events(await desk.start())
    assert outer == ["One by one."]
    assert [piece for piece in streamed if piece] == ["Two", " by", " two."]
    tokens = [event.content for event in only(events, TokenEvent)]
    assert tokens[:3] == ["One", " by", " one."]
    assert "".join(tokens).count("Two by two.") == 1


class LosingSaver(InMemorySaver):
    """Does not write the checkpoint after the tools, like a process that is killed before it does."""

    loses = True

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        last = checkpoint["channel_values"].get("messages", [None])[-1]
        if self.loses and isinstance(last, ToolMessage):
            return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
        return await super().aput(config, checkpoint, metadata, new_versions)


async def test_thread_that_lost_the_checkpoint_after_its_tools_goes_on(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    saver = LosingSaver()
    agent = as_agent(create_agent(model, tools=[weather], checkpointer=saver))
    model_server.plan(calls(("weather", {"city": "Oslo"})), hangs(), says("Whole."))
    turn = Turn(id="t1", session_id="s1", principal="ann", message="one")
    running = asyncio.create_task(answered(agent, turn))
    await model_server.request()
    await model_server.request()
    running.cancel()
    await asyncio.wait({running})
    saver.loses = False
    again = Turn(id="t2", session_id="s1", principal="ann", message="two")
    assert text(await answered(agent, again)) == "Whole."
    assert [(message["role"], message["content"]) for message in model_server.bodies[-1]["messages"]] == [
        ("user", "one"),
        ("assistant", None),
        ("tool", "Sunny in Oslo"),
        ("user", "two"),
    ]


async def test_empty_thread_gets_the_history_of_the_session(
    model_server: ScriptedModel, model: ChatOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    model_server.plan(says("Oslo."), says("Still Oslo."))
    agent = as_agent(create_agent(model, checkpointer=InMemorySaver()))
    assert text(await answered(agent)) == "Oslo."
    assert "checkpointer" in caplog.text
    later = replace_turn(TURN, id="t2", message="again")
    assert text(await answered(agent, later)) == "Still Oslo."
    contents = [[message["content"] for message in body["messages"]] for body in model_server.bodies]
    assert contents == [["How is it?", "Sunny.", "hello"], ["How is it?", "Sunny.", "hello", "Oslo.", "again"]]


async def test_thread_follows_a_turn_that_continues_an_earlier_one(
    model_server: ScriptedModel, model: ChatOpenAI, tmp_path: Path
) -> None:
    model_server.plan(*(says(f"Answer {number}.") for number in range(1, 7)))
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        store = MemoryStore()
        async with open_actor_desk(store, create_agent(model, checkpointer=saver)) as desk:
            first = await desk.start("one")
            await desk.events(first)

            async def ask(message: str, parent: str | None = None) -> list[str]:
                turn = await desk.start(message, session_id=first.session_id, parent_turn_id=parent)
                await desk.events(turn)
                sent = model_server.bodies[-1]["messages"]
                return [message["content"] for message in sent if message["role"] == "user"]

            assert await ask("two") == ["one", "two"]
            assert await ask("three") == ["one", "two", "three"]
            assert await ask("other two", first.id) == ["one", "other two"]
            assert await ask("other three") == ["one", "other two", "other three"]
            assert await ask("from the start", "") == ["from the start"]


async def test_a_thread_whose_tool_failed_goes_on(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def broken() -> str:
        """Does not work."""
        raise LookupError("swordfish")

    agent = as_agent(create_agent(model, tools=[broken], checkpointer=InMemorySaver()))
    model_server.plan(calls(("broken", {})), says("Whole."))
    fresh = replace_turn(TURN, history=())
    with pytest.raises(ToolError):
        await answered(agent, fresh)
    assert text(await answered(agent, replace_turn(fresh, id="t2"))) == "Whole."
    assert [message["role"] for message in model_server.bodies[1]["messages"]] == ["user", "assistant", "tool", "user"]


# Tools


async def test_a_tool_tells_how_far_it_is(store: Store, model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def look(city: str) -> str:
        """Looks."""
        await asyncio.to_thread(progress, f"on the way to {city}", 0.5)
        return "Sunny"

    def listen(city: str) -> str:
        """Listens."""
        progress(f"on the way to {city}", 0.5)
        return "Quiet"

    adapter = as_agent(create_agent(model, tools=[look, listen]))

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        async for event in adapter.answer(turn):
            yield event

    model_server.plan(calls(("look", {"city": "Oslo"}), ("listen", {"city": "Rome"})), says("Sunny and quiet."))
    async with open_desk(store, answer) as desk:
        events = await desk.events(await desk.start())
    assert {event.call_id: event.text for event in only(events, ToolProgressEvent)} == {
        "call_1": "on the way to Oslo",
        "call_2": "on the way to Rome",
    }


async def test_a_tool_node_may_tell_the_model_what_a_tool_raised(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    def broken(city: str) -> str:
        """Does not work."""
        raise LookupError("swordfish")

    tools = [broken]

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node(agent)
    builder.add_node("tools", ToolNode(tools, handle_tool_errors="It does not work."))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    model_server.plan(calls(("broken", {"city": "Oslo"})), says("Sorry."))
    events = await answered(as_agent(builder.compile()))
    (result,) = only(events, ToolResultEvent)
    assert (result.success, result.result) == (False, "Error: the tool failed (LookupError)")
    assert model_server.bodies[1]["messages"][-1]["content"] == "It does not work."
    assert text(events) == "Sorry."


async def test_the_words_of_a_tool_error_are_the_users(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def broken(city: str) -> str:
        """Does not work."""
        raise ToolError(f"there is no {city}")

    model_server.plan(calls(("broken", {"city": "Oslo"})))
    with pytest.raises(ToolError, match="there is no Oslo"):
        await answered(as_agent(create_agent(model, tools=[broken])))


async def test_a_sync_tool_is_not_called_with_half_its_arguments(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    ran: list[str] = []

    def look(city: str = "everywhere") -> str:
        """Looks."""
        ran.append(city)
        return "Sunny"

    model_server.plan(calls(("look", '{"city": "Os')), says("Sorry."))
    events = await answered(as_agent(create_agent(model, tools=[look])))
    assert ran == []
    (result,) = only(events, ToolResultEvent)
    assert not result.success
    assert "not a JSON object" in result.result
    assert text(events) == "Sorry."


async def test_a_blocking_tool_does_not_begin_once_the_turn_is_over(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    ran: list[str] = []

    def look(city: str) -> str:
        """Looks."""
        ran.append(city)
        return "Sunny"

    model_server.plan(calls(("look", {"city": "Oslo"})))
    async with asyncio.timeout(BOUND), aclosing(answering(create_agent(model, tools=[look]))) as events:
        while not isinstance(await anext(events), ToolCallEvent):
            pass
    async with asyncio.timeout(BOUND):
        await asyncio.get_running_loop().shutdown_default_executor()
    assert ran == []


async def test_a_long_result_is_cut_in_the_log_and_not_for_the_model(
    model_server: ScriptedModel, model: ChatOpenAI
) -> None:
    async def read() -> str:
        """Reads a book."""
        return "word " * 100_000

    model_server.plan(calls(("read", {})), says("Long."))
    events = await answered(as_agent(create_agent(model, tools=[read])))
    (result,) = only(events, ToolResultEvent)
    assert len(result.result) < 21_000
    assert "500,000 characters in all" in result.result
    assert len(model_server.bodies[1]["messages"][-1]["content"]) == 500_000


async def test_a_tool_of_half_an_answer_does_not_run(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    async def look() -> str:
        """Looks."""
        raise AssertionError("it ran")

    model_server.plan(replace(calls(("look", {})), ending="unfinished"))
    with pytest.raises(ModelError) as caught:
        await answered(as_agent(create_agent(model, tools=[look])))
    assert caught.value.code == "truncated"


async def test_a_tool_that_is_tried_again_is_another_call(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    tries = iter([LookupError("swordfish"), None])

    async def flaky() -> str:
        """Works the second time."""
        if error := next(tries):
            raise error
        return "Sunny"

    model_server.plan(calls(("flaky", {})), says("It is sunny."))
    patient = ToolRetryMiddleware(max_retries=1, initial_delay=0)
    events = await answered(as_agent(create_agent(model, tools=[flaky], middleware=[patient])))
    assert [event.call_id for event in only(events, ToolCallEvent)] == ["call_1", "call_1-2"]
    results = [(event.call_id, event.success, event.result) for event in only(events, ToolResultEvent)]
    assert results == [("call_1", False, "Error: the tool failed (LookupError)"), ("call_1-2", True, "Sunny")]
    assert text(events) == "It is sunny."


# The Responses API


async def test_the_responses_api_tells_thoughts_tools_and_cost(
    model_server: ScriptedModel, responding: ChatOpenAI
) -> None:
    cost = {"input": 11, "output": 7, "cached": 5, "reasoning": 3}
    model_server.plan(
        calls(("weather", {"city": "Oslo"})), says(thinks("Hm, "), thinks("sun."), "It ", "is.", usage=cost)
    )
    events = await answered(as_agent(create_agent(responding, tools=[weather])))
    assert "".join(event.content for event in only(events, ReasoningEvent)) == "Hm, sun."
    assert text(events) == "It is."
    assert [event.result for event in only(events, ToolResultEvent)] == ["Sunny in Oslo"]
    last = only(events, UsageEvent)[-1]
    assert (last.input_tokens, last.cached_input_tokens, last.reasoning_tokens) == (11, 5, 3)


@pytest.mark.parametrize("answer", [truncates("Half an"), too_long("Half an")], ids=["cut", "at its limit"])
async def test_half_an_answer_by_the_responses_api_is_an_error(
    model_server: ScriptedModel, responding: ChatOpenAI, answer: Any
) -> None:
    model_server.plan(answer)
    with pytest.raises(ModelError) as caught:
        await answered(as_agent(create_agent(responding)))
    assert caught.value.code == "truncated"


# Other runnables


async def test_a_chain_answers_with_what_it_streams_out(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be kind."), ("placeholder", "{history}"), ("user", "{said}")]
    )
    chain = prompt | model | StrOutputParser() | RunnableGenerator(_shouted)
    model_server.plan(says("it ", "is."))
    agent = LangGraphAgent(chain, to_input=lambda turn: {"said": turn.message, "history": [("user", "before")]})
    events = await answered(agent)
    assert only(events, str) == ["IT ", "IS."]
    assert len(only(events, UsageEvent)) == 1
    assert [message["role"] for message in model_server.bodies[0]["messages"]] == ["system", "user", "user"]


async def _shouted(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    async for piece in pieces:
        if piece:
            yield piece.upper()


async def test_a_model_is_a_runnable_too(model_server: ScriptedModel, model: ChatOpenAI) -> None:
    model_server.plan(says("It ", "is."), truncates("Half an"), fails(429))
    events = await answered(as_agent(model))
    assert only(events, str) == ["It ", "is."]
    assert [message["content"] for message in model_server.bodies[0]["messages"]] == ["How is it?", "Sunny.", "hello"]
    for code in ("truncated", "rate_limited"):
        with pytest.raises(ModelError) as caught:
            await answered(as_agent(model))
        assert caught.value.code == code


async def test_events_that_are_dispatched_are_told() -> None:
    async def reply(messages: list[BaseMessage]) -> str:
        await adispatch_custom_event("found", {"hits": 3})
        return messages[-1].text.upper()

    assert await answered(as_agent(RunnableLambda(reply))) == [CustomEvent(name="found", data={"hits": 3}), "HELLO"]


async def test_a_runnable_that_gives_a_whole_state_answers_with_its_last_message() -> None:
    def reply(messages: list[BaseMessage]) -> dict[str, Any]:
        return {"messages": [*messages, AIMessage("hello yourself")]}

    chain = RunnableLambda(reply)
    assert await answered(as_agent(chain)) == ["hello yourself"]


# What goes wrong


async def test_an_error_of_a_node_is_the_applications_own() -> None:
    def reply(state: MessagesState) -> None:
        raise LookupError("swordfish")

    with pytest.raises(LookupError):
        await answered(as_agent(graph(reply)))


class ProviderError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("swordfish")
        self.status_code = status


class ConnectTimeout(Exception):
    """As many HTTP clients call it."""


@pytest.mark.parametrize(
    ("error", "code"),
    [(ProviderError(429), "rate_limited"), (ConnectTimeout("swordfish"), "model_unavailable")],
    ids=["status", "connection"],
)
async def test_an_error_of_any_provider_has_its_code(error: Exception, code: str) -> None:
    class Failing(FakeListChatModel):
        async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
            raise error
            yield

    with pytest.raises(ModelError) as caught:
        await answered(as_agent(create_agent(Failing(responses=[]))))
    assert caught.value.code == code
    assert "swordfish" not in str(caught.value)
