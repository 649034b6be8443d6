"""Approvals by the SDK's own interruptions: the run ends, a person decides, and the same run goes on from its state.

After a wait the turn runs again from its start, is interrupted at the same calls, and finds the decisions.
"""

import asyncio
from typing import Any

from agents import Agent, RunResultStreaming, RunState
from agents.items import ToolApprovalItem

from turnwire.agents.openai_agents.events import Run
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.tools.declaration import read_arguments


async def decide_calls(result: RunResultStreaming, run: Run) -> RunState[Any, Agent[Any]]:
    """Wait for the decisions about the calls that have interrupted a run, and return its state with all of them."""
    requests = [_request(item, run, result.last_agent) for item in result.interruptions]
    if len({request.call_id for request in requests}) < len(requests):
        raise AgentError("two calls that need approval have the same id, so they cannot be decided separately")
    for request in requests:
        run.write_pending(request.agent_path, request.call_id, request.tool, request.args)
    await run.queue.flush()
    decisions = await asyncio.gather(*map(approval, requests))
    state = result.to_state()
    for item, request, decision in zip(result.interruptions, requests, decisions, strict=True):
        if decision.approved:
            state.approve(item)
        else:
            state.reject(item, rejection_message=decision.denial)
            run.write_denial(request.agent_path, request.call_id, request.tool, decision.denial)
    return state


def _request(item: ToolApprovalItem, run: Run, active: Agent[Any]) -> ApprovalRequestEvent:
    call_id = item.call_id or ""
    # A run that the application reads itself is not recorded; only its agent is known.
    path = run.calls.paths.get(call_id, (item.agent.name,) if item.agent is not active else ())
    return ApprovalRequestEvent(
        call_id, item.name or "tool", read_arguments(item.arguments or "") or {}, agent_path=path
    )
