"""Approvals by the SDK's own `DeferredToolRequests`."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel
from pydantic_ai import (
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    RunUsage,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai import messages as sdk
from pydantic_ai.run import AgentRunResult

from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.core.errors import AgentError
from turnwire.core.log.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.tools.invocation import plain

EDITABLE = "turnwire_editable"
"""The key in the metadata of a request for one of our own tools whose arguments a person may change."""


class _PydanticCheckpoint(BaseModel):
    """The SDK's conversation and usage of a suspended run; the run's limits continue from that usage.

    `has_text` is True if the answer has text already.
    """

    messages: list[Any]
    usage: RunUsage
    has_text: bool = False


def suspend_run(result: AgentRunResult[Any], *, has_text: bool, editable: Collection[str]) -> WaitForApproval:
    """Return the approval requests and the checkpoint of a run that ended in deferred tools.

    `editable` names the tools whose arguments a person may change. Raises AgentError for external tools, which run
    outside the agent.
    """
    requests: DeferredToolRequests = result.output
    if requests.calls:
        tools = ", ".join(sorted({call.tool_name for call in requests.calls}))
        raise AgentError(
            f"the agent deferred external tools ({tools}), which Turnwire cannot run; use tools with approval instead"
        )
    messages = ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")
    checkpoint = _PydanticCheckpoint(messages=messages, usage=result.usage, has_text=has_text)
    approvals = [_request(call, requests.metadata.get(call.tool_call_id, {}), editable) for call in requests.approvals]
    return WaitForApproval(approvals, checkpoint.model_dump_json().encode())


def _request(call: sdk.ToolCallPart, metadata: dict[str, Any], editable: Collection[str]) -> ApprovalRequestEvent:
    reason: object = metadata.get("reason")
    return ApprovalRequestEvent(
        call.tool_call_id,
        call.tool_name,
        plain(call.args_as_dict()),
        reason if isinstance(reason, str) else None,
        editable=call.tool_name in editable or metadata.get(EDITABLE) is True,
    )


def resume_run(resumption: Resumption, listener: RunListener) -> dict[str, Any]:
    """Return the options of a run that continues the suspended one with the decisions."""
    checkpoint = _PydanticCheckpoint.model_validate_json(resumption.checkpoint)
    listener.has_text = checkpoint.has_text
    return {
        "message_history": ModelMessagesTypeAdapter.validate_python(checkpoint.messages),
        "usage": checkpoint.usage,
        "deferred_tool_results": DeferredToolResults(
            approvals={decision.call_id: _result(decision) for decision in resumption.decisions}
        ),
    }


def _result(decision: Decision) -> ToolApproved | ToolDenied:
    if not decision.approved:
        return ToolDenied(decision.denial)
    return ToolApproved(override_args=None if decision.requested_args is None else decision.args)
