"""Messages that enter graphs other than a LangChain agent, between two steps."""

from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Send

from tests.core.desk import Gate, completed_answer, open_actor_desk
from turnwire.core.log.events import InputEvent
from turnwire.stores.memory import MemoryStore


class Lock:
    """A value that no serialiser takes."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be copied")


class ReportState(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]
    lock: Lock


async def run(graph: Any, gate: Gate, input_text: str = "And this.") -> tuple[str, list[str]]:
    """Run a turn, send a message while the gate is closed, and return the answer and the messages that entered."""
    async with open_actor_desk(MemoryStore(), graph) as desk:
        turn = await desk.start("Go.")
        await gate.reached()
        await desk.start(input_text, session_id=turn.session_id, on_busy="steer")
        gate.open()
        entered = [event.content for event in await desk.events(turn) if isinstance(event, InputEvent)]
        return await completed_answer(desk, turn), entered


def report(state: Any) -> dict[str, Any]:
    sent = [message.text for message in state["messages"] if isinstance(message, HumanMessage)]
    return {"messages": [AIMessage(" / ".join(sent))]}


async def test_message_enters_after_parallel_nodes_and_no_node_runs_twice() -> None:
    gate, runs = Gate(), Counter[str]()

    def node(name: str, waits: bool = False) -> Any:
        async def step(state: MessagesState) -> dict[str, Any]:
            runs[name] += 1
            if waits:
                await gate.wait()
            return {}

        return step

    builder = StateGraph(MessagesState)
    for name in ("left", "right", "left_end", "right_end"):
        builder.add_node(name, node(name, waits=name == "right"))
    builder.add_node("report", report)
    builder.add_edge(START, "left").add_edge(START, "right")
    builder.add_edge("left", "left_end").add_edge("right", "right_end")
    builder.add_edge(["left_end", "right_end"], "report").add_edge("report", END)
    assert await run(builder.compile(), gate) == ("Go. / And this.", ["And this."])
    assert runs == {"left": 1, "right": 1, "left_end": 1, "right_end": 1}


async def test_message_enters_before_a_fan_out_and_each_branch_runs_once() -> None:
    gate, runs = Gate(), Counter[str]()

    async def plan(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return {}

    def work(state: dict[str, str]) -> dict[str, Any]:
        runs[state["part"]] += 1
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("plan", plan)
    builder.add_node("work", work)  # type: ignore[type-var]
    builder.add_node("report", report)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"part": part}) for part in "abc"], ["work"])
    builder.add_edge("work", "report").add_edge("report", END)
    assert await run(builder.compile(), gate) == ("Go. / And this.", ["And this."])
    assert runs == {"a": 1, "b": 1, "c": 1}


async def test_state_that_cannot_be_serialised_does_not_matter() -> None:
    gate = Gate()

    async def lock(state: ReportState) -> dict[str, Any]:
        await gate.wait()
        return {"lock": Lock()}

    builder = StateGraph(ReportState)
    builder.add_node("take_lock", lock)
    builder.add_node("report", report)
    builder.add_edge(START, "take_lock").add_edge("take_lock", "report").add_edge("report", END)
    assert await run(builder.compile(), gate) == ("Go. / And this.", ["And this."])


async def test_message_to_a_graph_without_messages_becomes_the_next_turn() -> None:
    gate = Gate()

    class Plain(TypedDict):
        text: str

    async def first(state: Plain) -> dict[str, Any]:
        await gate.wait()
        return {"text": "one"}

    def second(state: Plain) -> dict[str, Any]:
        return {"text": f"{state['text']} two"}

    builder = StateGraph(Plain)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    answer, entered = await run(builder.compile(), gate)
    assert (answer, entered) == ("one two", [])


@pytest.mark.parametrize("is_last", [False, True])
async def test_message_after_the_last_step_is_not_taken(is_last: bool) -> None:
    gate = Gate()

    async def speak(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return report(state)

    builder = StateGraph(MessagesState)
    builder.add_node("speak", speak)
    builder.add_node("check", lambda state: {})
    builder.add_edge(START, "speak")
    builder.add_edge("speak", END if is_last else "check").add_edge("check", END)
    assert await run(builder.compile(), gate) == ("Go.", [] if is_last else ["And this."])
