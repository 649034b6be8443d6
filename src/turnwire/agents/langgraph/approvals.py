"""Approvals by LangGraph's own `interrupt()`.

The graph's checkpointer keeps the run; the turn's checkpoint keeps the requests and their ids. Three shapes of
interrupts are known: the requests of LangChain's `HumanInTheLoopMiddleware` for several calls and for one, which are
answered in its format, and any other value.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Interrupt, StateSnapshot
from msgspec import Struct

from turnwire.agents.agent_paths import Path
from turnwire.agents.langgraph.events import EarlierCalls, GraphListener
from turnwire.agents.langgraph.memory import SavedThread, save_thread
from turnwire.agents.langgraph.messages import fields_of
from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.errors import AgentError
from turnwire.core.events import ApprovalRequestEvent, Event, ToolResultEvent
from turnwire.tools.invocation import plain

ToResume = Callable[[Decision, Any], Any]


class _InterruptRequest(Struct, frozen=True, rename={"kind": "wants"}):
    """One interrupt: the kind of value that resumes it, and the ids of its approval requests.

    `own_ids` are the requests without a tool call, so that no tool reports their result.
    """

    interrupt_id: str
    kind: Literal["decisions", "decision", "value"]
    call_ids: list[str]
    own_ids: list[str]


class GraphCheckpoint(Struct, frozen=True, rename={"requests": "asked", "calls": "past"}):
    """The checkpoint of a suspended turn. The stored names are older: turns may be suspended over an upgrade."""

    requests: list[_InterruptRequest]
    calls: EarlierCalls
    has_answered: bool = False
    thread: SavedThread | None = None


async def suspend_run(
    graph: Any, config: RunnableConfig, listener: GraphListener, interrupted: dict[str, Path]
) -> WaitForApproval:
    """Return the approval requests of an interrupted graph; `interrupted` has the agent path of each interrupt.

    Raises AgentError if the graph cannot be resumed.
    """
    if not graph.checkpointer:
        raise AgentError(
            "the graph called interrupt() but is compiled with checkpointer=False, so it cannot be resumed"
        )
    if not interrupted:
        raise AgentError("the graph stopped at a breakpoint, which has nothing to approve; use interrupt() instead")
    interrupts: list[_InterruptRequest] = []
    requests: list[ApprovalRequestEvent] = []
    state = await graph.aget_state(config, subgraphs=True)
    for interrupt, node in _pending(state):
        kind, calls = _parse_interrupt(interrupt, node, interrupted.get(interrupt.id, ()), listener)
        requests += [request for request, _ in calls]
        own_ids = [request.call_id for request, is_own in calls if is_own]
        interrupts.append(_InterruptRequest(interrupt.id, kind, [request.call_id for request, _ in calls], own_ids))
    listener.pause()
    earlier = listener.calls.earlier_calls({request.call_id for request in requests})
    thread = await save_thread(graph, config, state)
    checkpoint = GraphCheckpoint(interrupts, earlier, listener.has_answered, thread)
    return WaitForApproval(requests, msgspec.json.encode(checkpoint))


def read_checkpoint(resumption: Resumption) -> GraphCheckpoint:
    return msgspec.json.decode(resumption.checkpoint, type=GraphCheckpoint)


def _pending(state: StateSnapshot) -> Iterator[tuple[Interrupt[Any], str]]:
    """Yield every interrupt with the name of its node."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _pending(task.state)
        else:
            yield from ((interrupt, task.name) for interrupt in task.interrupts)


def _parse_interrupt(
    interrupt: Interrupt[Any], node: str, path: Path, listener: GraphListener
) -> tuple[Literal["decisions", "decision", "value"], list[tuple[ApprovalRequestEvent, bool]]]:
    """Return the resume kind and the approval requests; True marks a request with no matching tool call."""
    value = fields_of(interrupt.value)
    match value:
        case {"action_requests": [_, *_], "review_configs": _}:
            requests: list[tuple[ApprovalRequestEvent, bool]] = []
            taken: set[str] = set()
            for number, action in enumerate(cast("list[Any]", value["action_requests"])):
                matching = listener.calls.find_request(action["name"], action["args"], taken)
                call_id = matching or f"{interrupt.id}-{number + 1}"
                taken.add(call_id)
                request = ApprovalRequestEvent(
                    call_id, action["name"], plain(action["args"]), action.get("description"), agent_path=path
                )
                requests.append((request, matching is None))
            return "decisions", requests
        case {"type": "tool_approval", "tool_call_id": str(call_id), "name": str(tool), "args": dict()}:
            reason: str | None = value.get("description") or None
            return "decision", [
                (ApprovalRequestEvent(call_id, tool, plain(value["args"]), reason, agent_path=path), False)
            ]
        case _:
            name = value.get("tool") or value.get("action")
            args = plain(value) if value else {"value": plain(interrupt.value)}
            tool = name if isinstance(name, str) else node
            return "value", [(ApprovalRequestEvent(interrupt.id, tool, args, agent_path=path), True)]


async def resume_run(
    graph: Any,
    config: RunnableConfig,
    listener: GraphListener,
    checkpoint: GraphCheckpoint,
    decided_calls: Sequence[Decision],
    to_resume: ToResume | None,
) -> tuple[Command[Any], list[Event]]:
    """Return the graph's input to continue, and the events of requests without a tool call.

    Raises AgentError if the checkpointer has lost the thread.
    """
    decisions = {decision.call_id: decision for decision in decided_calls}
    state = await graph.aget_state(config)
    pending = {interrupt.id: interrupt.value for interrupt in state.interrupts}
    if not pending.keys() >= {request.interrupt_id for request in checkpoint.requests}:
        raise AgentError(
            "the graph's checkpointer has lost the interrupted run; use one that writes to a disk or database"
        )
    listener.has_answered = checkpoint.has_answered
    listener.calls.restore(checkpoint.calls, decided_calls)
    answers: dict[str, Any] = {}
    events: list[Event] = []
    for request in checkpoint.requests:
        decided = [decisions[call_id] for call_id in request.call_ids]
        answer = _resume_value(request, decided, pending[request.interrupt_id], to_resume)
        answers[request.interrupt_id] = answer
        for decision in decided:
            if decision.call_id in request.own_ids:
                result = plain(answer) if decision.approved else decision.denial
                events.append(ToolResultEvent(decision.call_id, decision.tool, decision.approved, result))
    return Command(resume=answers), events


def _resume_value(request: _InterruptRequest, decisions: list[Decision], value: Any, to_resume: ToResume | None) -> Any:
    match request.kind:
        case "decisions":
            return {"decisions": [_langchain_decision(decision) for decision in decisions]}
        case "decision":
            return _langchain_decision(decisions[0])
        case "value":
            return to_resume(decisions[0], value) if to_resume else decisions[0].approved


def _langchain_decision(decision: Decision) -> dict[str, str]:
    if decision.approved:
        return {"type": "approve"}
    return {"type": "reject", "message": decision.reason} if decision.reason else {"type": "reject"}
