"""A graph that waits for a person, by LangGraph's own `interrupt()`.

The graph's checkpointer keeps the run; a turn that waits keeps no more than what was asked, and under which ids. Three
shapes are known: the requests of LangChain's `HumanInTheLoopMiddleware` for several calls and for one, which are
answered as it wants them, and any other value.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Interrupt, StateSnapshot
from msgspec import Struct

from turnwire.agents.langgraph.events import EarlierCalls, GraphListener
from turnwire.agents.langgraph.messages import Path, fields_of
from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.errors import AgentError
from turnwire.core.events import ApprovalRequestEvent, Event, ToolResultEvent
from turnwire.tools.invocation import plain

ToResume = Callable[[Decision, Any], Any]


class _InterruptRequest(Struct, frozen=True):
    """One interrupt: what it wants to be answered with, and under which ids a person was asked.

    `own_ids` are calls that no tool will tell the end of.
    """

    interrupt_id: str
    wants: Literal["decisions", "decision", "value"]
    call_ids: list[str]
    own_ids: list[str]


class _GraphCheckpoint(Struct, frozen=True):
    asked: list[_InterruptRequest]
    past: EarlierCalls


async def waiting(
    graph: Any, config: RunnableConfig, listener: GraphListener, interrupted: dict[str, Path]
) -> WaitForApproval:
    """What a graph waits for that has been interrupted: ids, and where. Raises AgentError if nobody can answer it."""
    if not graph.checkpointer:
        raise AgentError(
            "the graph waits for a person, and for that it needs a checkpointer: compile(checkpointer=...)"
        )
    if not interrupted:
        raise AgentError("the graph has stopped at a breakpoint, where there is nothing to decide; use interrupt()")
    asked: list[_InterruptRequest] = []
    requests: list[ApprovalRequestEvent] = []
    for interrupt, node in _pending(await graph.aget_state(config, subgraphs=True)):
        wants, calls = _read(interrupt, node, interrupted.get(interrupt.id, ()), listener)
        requests += [request for request, _ in calls]
        own_ids = [request.call_id for request, is_own in calls if is_own]
        asked.append(_InterruptRequest(interrupt.id, wants, [request.call_id for request, _ in calls], own_ids))
    listener.pause()
    past = listener.calls.past({request.call_id for request in requests})
    return WaitForApproval(requests, msgspec.json.encode(_GraphCheckpoint(asked, past)))


def _pending(state: StateSnapshot) -> Iterator[tuple[Interrupt[Any], str]]:
    """Every interrupt, with the node that it is in."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _pending(task.state)
        else:
            yield from ((interrupt, task.name) for interrupt in task.interrupts)


def _read(
    interrupt: Interrupt[Any], node: str, path: Path, listener: GraphListener
) -> tuple[Literal["decisions", "decision", "value"], list[tuple[ApprovalRequestEvent, bool]]]:
    """What it wants, and what a person is asked; each with whether no tool will tell its end."""
    value = fields_of(interrupt.value)
    match value:
        case {"action_requests": [_, *_], "review_configs": _}:
            asked: list[tuple[ApprovalRequestEvent, bool]] = []
            taken: set[str] = set()
            for number, action in enumerate(cast("list[Any]", value["action_requests"])):
                found = listener.calls.find_wish(action["name"], action["args"], taken)
                call_id = found or f"{interrupt.id}-{number + 1}"
                taken.add(call_id)
                request = ApprovalRequestEvent(
                    call_id, action["name"], plain(action["args"]), action.get("description"), agent_path=path
                )
                asked.append((request, found is None))
            return "decisions", asked
        case {"type": "tool_approval", "tool_call_id": str(call_id), "name": str(tool), "args": dict()}:
            reason: str | None = value.get("description") or None
            return "decision", [
                (ApprovalRequestEvent(call_id, tool, plain(value["args"]), reason, agent_path=path), False)
            ]
        case _:
            named = value.get("tool") or value.get("action")
            args = plain(value) if value else {"value": plain(interrupt.value)}
            tool = named if isinstance(named, str) else node
            return "value", [(ApprovalRequestEvent(interrupt.id, tool, args, agent_path=path), True)]


async def resume(
    graph: Any, config: RunnableConfig, listener: GraphListener, resumption: Resumption, to_resume: ToResume | None
) -> tuple[Command[Any], list[Event]]:
    """What the graph is given to go on, and what is told first. Raises AgentError if the thread is not there."""
    left = msgspec.json.decode(resumption.checkpoint, type=_GraphCheckpoint)
    decisions = {decision.call_id: decision for decision in resumption.decisions}
    state = await graph.aget_state(config)
    pending = {interrupt.id: interrupt.value for interrupt in state.interrupts}
    if not pending.keys() >= {asked.interrupt_id for asked in left.asked}:
        raise AgentError(
            "the graph's checkpointer does not know any more what was asked; one that writes to a disk would"
        )
    listener.calls.take_up(left.past, resumption.decisions)
    answers: dict[str, Any] = {}
    told: list[Event] = []
    for asked in left.asked:
        those = [decisions[call_id] for call_id in asked.call_ids]
        answers[asked.interrupt_id] = answer = _answer(asked, those, pending[asked.interrupt_id], to_resume)
        for decision in those:
            if decision.call_id in asked.own_ids:
                result = plain(answer) if decision.approved else decision.denial
                told.append(ToolResultEvent(decision.call_id, decision.tool, decision.approved, result))
    return Command(resume=answers), told


def _answer(asked: _InterruptRequest, decisions: list[Decision], value: Any, to_resume: ToResume | None) -> Any:
    match asked.wants:
        case "decisions":
            return {"decisions": [_in_langchains_words(decision) for decision in decisions]}
        case "decision":
            return _in_langchains_words(decisions[0])
        case "value":
            return to_resume(decisions[0], value) if to_resume else decisions[0].approved


def _in_langchains_words(decision: Decision) -> dict[str, str]:
    if decision.approved:
        return {"type": "approve"}
    return {"type": "reject", "message": decision.reason} if decision.reason else {"type": "reject"}
