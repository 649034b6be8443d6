"""Tools that need a person's word, by the SDK's own `DeferredToolRequests`."""

from typing import Any

from pydantic import BaseModel
from pydantic_ai import DeferredToolRequests, DeferredToolResults, ModelMessagesTypeAdapter, RunUsage, ToolDenied
from pydantic_ai import messages as sdk
from pydantic_ai.run import AgentRunResult

from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.errors import AgentError
from turnwire.core.events import ApprovalRequestEvent
from turnwire.tools.invocation import plain


class _PydanticCheckpoint(BaseModel):
    """The conversation as the SDK knows it, and what it has cost: the run's limits count on from there."""

    messages: list[Any]
    usage: RunUsage


def waiting(result: AgentRunResult[Any]) -> WaitForApproval:
    """What a run that has ended in requests waits for. Raises AgentError for tools that are run elsewhere."""
    requests: DeferredToolRequests = result.output
    if requests.calls:
        tools = ", ".join(sorted({call.tool_name for call in requests.calls}))
        raise AgentError(f"the agent waits for tools that are run elsewhere ({tools}), which Turnwire cannot do")
    messages = ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")
    left = _PydanticCheckpoint(messages=messages, usage=result.usage)
    asked = [_request(call, requests.metadata.get(call.tool_call_id, {})) for call in requests.approvals]
    return WaitForApproval(asked, left.model_dump_json().encode())


def _request(call: sdk.ToolCallPart, metadata: dict[str, Any]) -> ApprovalRequestEvent:
    reason = metadata.get("reason")
    args = plain(call.args_as_dict())
    return ApprovalRequestEvent(call.tool_call_id, call.tool_name, args, reason if isinstance(reason, str) else None)


def resumed(resumption: Resumption) -> dict[str, Any]:
    """The options of a run that goes on where the last one ended."""
    left = _PydanticCheckpoint.model_validate_json(resumption.checkpoint)
    return {
        "message_history": ModelMessagesTypeAdapter.validate_python(left.messages),
        "usage": left.usage,
        "deferred_tool_results": DeferredToolResults(
            approvals={decision.call_id: _result(decision) for decision in resumption.decisions}
        ),
    }


def _result(decision: Decision) -> bool | ToolDenied:
    return True if decision.approved else ToolDenied(decision.denial)
