"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. The plugin of each run (see `events`) has callbacks before and after each call; the
callback before a call may answer it. A tool that runs another agent is a call like any other, and the calls of that
agent are recorded inside it. What a tool has written to the session's state is recorded with its result.
"""

import json
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext

from turnwire.core.ids import new_id
from turnwire.core.journal.turn_journal import JournaledCall, TurnJournal, fingerprint
from turnwire.core.log.events import Usage
from turnwire.tools.invocation import plain

# The effects of a tool besides its result and the state, which the SDK acts on when the tool has ended.
_ACTIONS = ("skip_summarization", "artifact_delta", "transfer_to_agent", "escalate", "end_of_agent")


async def begin_reply(
    journal: TurnJournal, place: str, path: tuple[str, ...], agent: str, request: LlmRequest
) -> JournaledCall:
    """Begin a model call of a run. Everything before it must be in the log."""
    contents = [content.model_dump(mode="json", exclude_none=True) for content in request.contents]
    names = (agent, request.model or "")
    return await journal.begin_model(place, names=names, fingerprint=fingerprint(contents), agent_path=path)


def name_calls(response: LlmResponse) -> None:
    """Give ids to calls that have none, which the SDK does later: a recorded reply must have the same ids again."""
    for call in response.get_function_calls():
        call.id = call.id or f"adk-{new_id()}"


def record_reply(call: JournaledCall, response: LlmResponse, usage: Usage | None) -> None:
    """Record a reply, whose text must be in the log."""
    call.finish(response.model_dump(mode="json", exclude_none=True), usage=usage)


def recorded_reply(call: JournaledCall) -> LlmResponse:
    return LlmResponse.model_validate_json(json.dumps(call.result))


def record_result(call: JournaledCall, result: Any, failed: bool, context: ToolContext) -> None:
    """Record the result of a tool, with its effects on the session."""
    actions = context.actions.model_dump(mode="json", include=set(_ACTIONS), exclude_none=True, exclude_defaults=True)
    call.finish({"result": plain(result), "failed": failed, "state": plain(context.actions.state_delta), **actions})


def restore_result(call: JournaledCall, context: ToolContext) -> Any:
    """Return a recorded result, and repeat its effects on the session. It is never None, which the SDK would ignore."""
    recorded: dict[str, Any] = call.result
    for name, value in recorded["state"].items():
        context.state[name] = value
    for name in _ACTIONS:
        if name in recorded:
            setattr(context.actions, name, recorded[name])
    return {"result": None} if recorded["result"] is None else recorded["result"]
