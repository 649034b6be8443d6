"""Approvals and questions by LangGraph's own `interrupt()`.

The graph's checkpointer keeps the run; the turn's checkpoint keeps the requests and their ids. Some shapes of
interrupts are approvals: the requests of LangChain's `HumanInTheLoopMiddleware` for several calls and for one, which
are answered in its format, and values that name a `tool` or an `action`. Any other value is a question, and the reply
is what `interrupt()` returns; if the application has a `to_resume`, which takes a decision, it is an approval too.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Interrupt, StateSnapshot
from msgspec import Struct

from turnwire.agents.agent_paths import Path
from turnwire.agents.langgraph.events import EarlierCalls, GraphListener
from turnwire.agents.langgraph.memory import SavedThread, save_thread
from turnwire.agents.langgraph.messages import fields_of
from turnwire.core.errors import AgentError
from turnwire.core.ids import new_id
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.log.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.log.events import ApprovalRequestEvent, Event, QuestionEvent, ToolResultEvent
from turnwire.core.people.schemas import check_schema
from turnwire.tools.invocation import plain

ToResume = Callable[[Decision, Any], Any]
_PROMPT_FIELDS = ("question", "prompt", "message", "query", "description")


class _InterruptRequest(Struct, frozen=True, rename={"kind": "wants"}):
    """One interrupt: the kind of value that resumes it, and the ids of its approval requests, or of its question.

    `own_ids` are the requests without a tool call, so that no tool reports their result.
    """

    interrupt_id: str
    kind: Literal["decisions", "decision", "value", "reply"]
    call_ids: list[str]
    own_ids: list[str]


class GraphCheckpoint(Struct, frozen=True, rename={"requests": "asked", "calls": "past"}):
    """The checkpoint of a suspended turn. The stored names are older: turns may be suspended over an upgrade."""

    requests: list[_InterruptRequest]
    calls: EarlierCalls
    has_answered: bool = False
    thread: SavedThread | None = None


async def suspend_run(
    graph: Any,
    config: RunnableConfig,
    listener: GraphListener,
    interrupted: dict[str, Path],
    *,
    has_decisions: bool,
) -> WaitForApproval:
    """Return the requests and questions of an interrupted graph; `interrupted` has the agent path of each interrupt.

    With `has_decisions`, every interrupt is an approval: the application makes its value from a decision.

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
    questions: list[QuestionEvent] = []
    state = await graph.aget_state(config, subgraphs=True)
    for interrupt, node in _pending(state):
        if not has_decisions and (question := _question(interrupt, interrupted.get(interrupt.id, ()))):
            questions.append(question)
            interrupts.append(_InterruptRequest(interrupt.id, "reply", [question.id], []))
            continue
        kind, calls = _parse_interrupt(interrupt, node, interrupted.get(interrupt.id, ()), listener)
        requests += [request for request, _ in calls]
        own_ids = [request.call_id for request, is_own in calls if is_own]
        interrupts.append(_InterruptRequest(interrupt.id, kind, [request.call_id for request, _ in calls], own_ids))
    listener.pause()
    earlier = listener.calls.earlier_calls({request.call_id for request in requests})
    thread = await save_thread(graph, config, state)
    checkpoint = GraphCheckpoint(interrupts, earlier, listener.has_answered, thread)
    return WaitForApproval(requests, msgspec.json.encode(checkpoint), questions)


def _question(interrupt: Interrupt[Any], path: Path) -> QuestionEvent | None:
    """Return the question of an interrupt, or None if it is one for an approval."""
    value = fields_of(interrupt.value)
    match value:
        case {"action_requests": _} | {"type": "tool_approval"} | {"tool": str()} | {"action": str()}:
            return None
        case _:
            pass
    texts = (interrupt.value, *(value.get(name) for name in _PROMPT_FIELDS))
    prompt = next((text for text in texts if isinstance(text, str) and text), None)
    # LangGraph gives all interrupts of one task the same id, so the number of the suspension is part of ours.
    journal = current_journal()
    own_id = f"{interrupt.id}-{journal.segment}" if journal is not None else new_id()
    prompt = prompt or msgspec.json.encode(plain(interrupt.value)).decode()
    return QuestionEvent(f"q_{own_id}", prompt, _schema(value.get("schema")), agent_path=path)


def _schema(schema: Any) -> dict[str, Any] | None:
    """Return the schema that a graph gives with its question, if a form can show it."""
    try:
        check_schema(schema)
    except ValueError:
        return None
    return plain(schema)


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
                    call_id,
                    action["name"],
                    plain(action["args"]),
                    action.get("description"),
                    editable=_may_edit(value["review_configs"], action["name"]),
                    agent_path=path,
                )
                requests.append((request, matching is None))
            return "decisions", requests
        case {"type": "tool_approval", "tool_call_id": str(call_id), "name": str(tool), "args": dict()}:
            reason: str | None = value.get("description") or None
            is_editable = value.get("editable") is True
            request = ApprovalRequestEvent(
                call_id, tool, plain(value["args"]), reason, editable=is_editable, agent_path=path
            )
            return "decision", [(request, False)]
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
    resumption: Resumption,
    to_resume: ToResume | None,
) -> tuple[Command[Any], list[Event]]:
    """Return the graph's input to continue, and the events of requests without a tool call.

    Raises AgentError if the checkpointer has lost the thread.
    """
    decisions = {decision.call_id: decision for decision in resumption.decisions}
    replies = {reply.question_id: reply for reply in resumption.replies}
    state = await graph.aget_state(config)
    pending = {interrupt.id: interrupt.value for interrupt in state.interrupts}
    if not pending.keys() >= {request.interrupt_id for request in checkpoint.requests}:
        raise AgentError(
            "the graph's checkpointer has lost the interrupted run; use one that writes to a disk or database"
        )
    listener.has_answered = checkpoint.has_answered
    listener.calls.restore(checkpoint.calls, resumption.decisions)
    answers: dict[str, Any] = {}
    events: list[Event] = []
    for request in checkpoint.requests:
        if request.kind == "reply":
            answers[request.interrupt_id] = replies[request.call_ids[0]].value
            continue
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
        case "value" | "reply":
            return to_resume(decisions[0], value) if to_resume else decisions[0].approved


def _may_edit(configs: Any, tool: str) -> bool:
    """Return True if LangChain's middleware lets a person change the arguments of a tool."""
    reviews = (fields_of(config) for config in cast("list[Any]", configs if isinstance(configs, list) else []))
    return any(
        review.get("action_name") == tool and "edit" in review.get("allowed_decisions", ()) for review in reviews
    )


def _langchain_decision(decision: Decision) -> dict[str, Any]:
    if decision.approved and decision.requested_args is not None:
        return {"type": "edit", "edited_action": {"name": decision.tool, "args": decision.args}}
    if decision.approved:
        return {"type": "approve"}
    return {"type": "reject", "message": decision.reason} if decision.reason else {"type": "reject"}
