"""Approvals by the SDK's own interruptions: the checkpoint of a suspended turn is the SDK's `RunState`.

The state is stored without the application's context, which may hold anything; `context` creates it again.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from agents import Agent, RunResultStreaming, RunState, UserError
from agents.items import ToolApprovalItem
from msgspec import Struct

from turnwire.agents.agent_paths import Path
from turnwire.agents.openai_agents.events import Run, RunQueue
from turnwire.core.errors import AgentError
from turnwire.core.log.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.log.events import ApprovalRequestEvent, ToolResultEvent
from turnwire.tools.declaration import read_arguments


class _AgentsCheckpoint(Struct, frozen=True):
    """The state of a suspended run, its unfinished calls (agents as tools), and the agent path of each request.

    `has_text` is True if the answer has text already; `inputs` are the messages that have entered the run.
    """

    state: dict[str, Any]
    began: list[tuple[Path, str, str]]
    paths: dict[str, Path]
    has_text: bool = False
    inputs: list[tuple[int, str]] = []


def suspend_run(result: RunResultStreaming, run: Run) -> WaitForApproval:
    """Return the approval requests and the checkpoint of an interrupted run."""
    queue = run.queue
    requests = [_request(item, queue, result.last_agent) for item in result.interruptions]
    if len({request.call_id for request in requests}) < len(requests):
        raise AgentError("two calls that need approval have the same id, so they cannot be decided separately")
    state = result.to_state().to_json(context_serializer=lambda context: {})
    paths = {request.call_id: request.agent_path for request in requests}
    checkpoint = _AgentsCheckpoint(state, queue.unfinished_calls(), paths, run.has_text, run.inputs)
    return WaitForApproval(requests, msgspec.json.encode(checkpoint))


def _request(item: ToolApprovalItem, queue: RunQueue, active: Agent[Any]) -> ApprovalRequestEvent:
    call_id = item.call_id or ""
    # A run that the application reads itself is not recorded; only its agent is known.
    path = queue.path_of(call_id, (item.agent.name,) if item.agent is not active else ())
    args = read_arguments(item.arguments or "") or {}
    return ApprovalRequestEvent(call_id, item.name or "tool", args, agent_path=path)


async def resume_run(agent: Agent[Any], resumption: Resumption, context: Any, run: Run) -> RunState[Any, Agent[Any]]:
    """Return the run's state with the decisions applied, and record the denied calls. Raises AgentError."""
    checkpoint = msgspec.json.decode(resumption.checkpoint, type=_AgentsCheckpoint)
    _restore_history(checkpoint.state)
    try:
        state = await RunState.from_json(agent, checkpoint.state, context_deserializer=lambda stored: context)
    except UserError as error:
        raise AgentError(
            "the agent has changed since it asked for approval, and cannot continue; send the message again"
        ) from error
    _decide(state, resumption.decisions)
    run.has_text, run.inputs = checkpoint.has_text, checkpoint.inputs
    run.queue.restore(checkpoint.began)
    for decision in resumption.decisions:
        if not decision.approved:
            path = checkpoint.paths.get(decision.call_id, ())
            run.queue.put(ToolResultEvent(decision.call_id, decision.tool, False, decision.denial, agent_path=path))
    return state


def _restore_history(state: dict[str, Any]) -> None:
    """Make the assistant's earlier messages plain again: the SDK stores them in a form that its chat models refuse."""
    for item in state["original_input"] if isinstance(state.get("original_input"), list) else ():
        match item:
            case {"role": "assistant", "content": [{"type": "output_text", "text": str(text)}]} if "id" not in item:
                item.pop("status", None)
                item["content"] = text
            case _:
                pass


def _decide(state: RunState[Any, Agent[Any]], decisions: Sequence[Decision]) -> None:
    pending = {item.call_id: item for item in state.get_interruptions()}
    for decision in decisions:
        item = pending[decision.call_id]
        if decision.approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=decision.denial)
