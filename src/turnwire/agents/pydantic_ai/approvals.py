"""Approvals of the SDK's deferred tools: the run waits for the decisions inside its step."""

import asyncio
from typing import Any

from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai import messages as sdk

from turnwire.agents.agent_paths import Path
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import approval
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.tools.invocation import plain

EDITABLE = "turnwire_editable"
"""The key in the metadata of a request for one of our own tools whose arguments a person may change."""


async def decide_calls(requests: DeferredToolRequests, editable: frozenset[str], path: Path) -> DeferredToolResults:
    """Wait for the decisions about all deferred calls of a step. `editable` are tools whose arguments may be changed.

    Raises AgentError for external tools, which run outside the agent.
    """
    if requests.calls:
        tools = ", ".join(sorted({call.tool_name for call in requests.calls}))
        raise AgentError(
            f"the agent deferred external tools ({tools}), which Turnwire cannot run; use tools with approval instead"
        )
    events = [
        _request(call, requests.metadata.get(call.tool_call_id, {}), editable, path) for call in requests.approvals
    ]
    decisions = await asyncio.gather(*map(approval, events))
    return DeferredToolResults(approvals={each.call_id: _result(each) for each in decisions})


def _request(
    call: sdk.ToolCallPart, metadata: dict[str, Any], editable: frozenset[str], path: Path
) -> ApprovalRequestEvent:
    reason: object = metadata.get("reason")
    return ApprovalRequestEvent(
        call.tool_call_id,
        call.tool_name,
        plain(call.args_as_dict()),
        reason if isinstance(reason, str) else None,
        editable=call.tool_name in editable or metadata.get(EDITABLE) is True,
        agent_path=path,
    )


def _result(decision: Decision) -> ToolApproved | ToolDenied:
    if not decision.approved:
        return ToolDenied(decision.denial)
    return ToolApproved(override_args=None if decision.requested_args is None else decision.args)
