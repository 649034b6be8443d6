"""The SDK's requests, replies and results in the form in which the turn's journal keeps them.

After a crash the agent runs again from its start. The plugin of each run (see `events`) has callbacks before and after
each call; the callback before a call may answer it. A tool that runs another agent is a call like any other, and the
calls of that agent are recorded inside it. What a tool has written to the session's state is recorded with its result.
"""

import json
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext

from turnwire.core.ids import new_id
from turnwire.tools.invocation import plain

# The effects of a tool besides its result and the state, which the SDK acts on when the tool has ended.
_ACTIONS = ("skip_summarization", "artifact_delta", "transfer_to_agent", "escalate", "end_of_agent")


def dump_request(request: LlmRequest) -> list[Any]:
    return [content.model_dump(mode="json", exclude_none=True) for content in request.contents]


def name_calls(response: LlmResponse) -> None:
    """Give ids to calls that have none, which the SDK does later: a recorded reply must have the same ids again."""
    for call in response.get_function_calls():
        call.id = call.id or f"adk-{new_id()}"


def dump_reply(response: LlmResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True)


def load_reply(recorded: dict[str, Any]) -> LlmResponse:
    return LlmResponse.model_validate_json(json.dumps(recorded))


def dump_result(result: Any, failed: bool, context: ToolContext) -> dict[str, Any]:
    """Return the result of a tool, with its effects on the session."""
    actions = context.actions.model_dump(mode="json", include=set(_ACTIONS), exclude_none=True, exclude_defaults=True)
    return {"result": plain(result), "failed": failed, "state": plain(context.actions.state_delta), **actions}


def load_result(recorded: dict[str, Any], context: ToolContext) -> Any:
    """Return a recorded result, and repeat its effects on the session. It is never None, which the SDK would ignore."""
    for name, value in recorded["state"].items():
        context.state[name] = value
    for name in _ACTIONS:
        if name in recorded:
            setattr(context.actions, name, recorded[name])
    return {"result": None} if recorded["result"] is None else recorded["result"]
