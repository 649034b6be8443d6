"""Tools that need a person's word, by the SDK's own interruptions: its `RunState` is what a turn waits with.

The state is kept without the application's context, which may hold anything: `context` makes it anew.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from agents import Agent, RunResultStreaming, RunState, UserError
from agents.items import ToolApprovalItem
from msgspec import Struct

from turnwire.agents.openai_agents.events import EventQueue, Path
from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.errors import AgentError
from turnwire.core.events import ApprovalRequestEvent, ToolResultEvent
from turnwire.tools.declaration import read_arguments


class _AgentsCheckpoint(Struct, frozen=True):
    """`began` are the tools that are not done: the agents in which somebody is asked. `paths` is where that is."""

    state: dict[str, Any]
    began: list[tuple[Path, str, str]]
    paths: dict[str, Path]


def waiting(result: RunResultStreaming, outbox: EventQueue) -> WaitForApproval:
    """What a run that was interrupted waits for."""
    requests = [_request(item, outbox, result.last_agent) for item in result.interruptions]
    if len({asked.call_id for asked in requests}) < len(requests):
        raise AgentError("two calls that need approval have the same id, so that nobody could decide about one of them")
    state = result.to_state().to_json(context_serializer=lambda context: {})
    left = _AgentsCheckpoint(state, outbox.began(), {asked.call_id: asked.agent_path for asked in requests})
    return WaitForApproval(requests, msgspec.json.encode(left))


def _request(item: ToolApprovalItem, outbox: EventQueue, active: Agent[Any]) -> ApprovalRequestEvent:
    call_id = item.call_id or ""
    # Of a run that the application reads itself nothing is known here but who asks.
    path = outbox.path_of(call_id, (item.agent.name,) if item.agent is not active else ())
    args = read_arguments(item.arguments or "") or {}
    return ApprovalRequestEvent(call_id, item.name or "tool", args, agent_path=path)


async def resume(
    agent: Agent[Any], resumption: Resumption, context: Any, outbox: EventQueue
) -> RunState[Any, Agent[Any]]:
    """The run's state with everything decided in it. Tells of what was denied. Raises AgentError."""
    left = msgspec.json.decode(resumption.checkpoint, type=_AgentsCheckpoint)
    try:
        state = await RunState.from_json(agent, left.state, context_deserializer=lambda kept: context)
    except UserError as error:
        raise AgentError("the agent is not the one that asked any more, and cannot go on") from error
    _decide(state, resumption.decisions)
    outbox.take_up(left.began)
    for decision in resumption.decisions:
        if not decision.approved:
            path = left.paths.get(decision.call_id, ())
            outbox.put(ToolResultEvent(decision.call_id, decision.tool, False, decision.denial, agent_path=path))
    return state


def _decide(state: RunState[Any, Agent[Any]], decisions: Sequence[Decision]) -> None:
    pending = {item.call_id: item for item in state.get_interruptions()}
    for decision in decisions:
        item = pending[decision.call_id]
        if decision.approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=decision.denial)
