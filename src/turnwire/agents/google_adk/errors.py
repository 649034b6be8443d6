"""The SDK's exceptions as errors that are safe to show."""

from typing import Any

from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from google.genai.errors import APIError

from turnwire.agents.run_recorder import CallFailure
from turnwire.core.errors import ModelError, ToolError, TurnwireError, step_limit_reached
from turnwire.models.errors import explain, refused, reported, unfinished, unreachable, unreadable

_WITHHELD = {
    types.FinishReason.SAFETY,
    types.FinishReason.RECITATION,
    types.FinishReason.BLOCKLIST,
    types.FinishReason.PROHIBITED_CONTENT,
    types.FinishReason.SPII,
    types.FinishReason.IMAGE_SAFETY,
}
# The Gemini client uses whichever of these HTTP libraries is installed.
_HTTP_CLIENTS = ("aiohttp", "httpcore", "httpx", "httpx2")


def explain_failure(error: Exception, failure: CallFailure | None) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # The SDK wraps what a callback of a plugin raises.
    match error:
        case TurnwireError():
            return error
        case LlmCallsLimitExceededError():
            return step_limit_reached()
        case _ if failure is None or error is not failure.error:
            return error
        case _ if failure.is_tool:
            return ToolError(f"the tool {failure.name!r} failed ({type(error).__name__})")
        case _:
            return _explain_model(error, failure.name)


def _explain_model(error: Exception, model: str) -> Exception:
    match error:
        case APIError():
            code, status, message = error.code, str(error.status or ""), str(error.message or "")
            response: Any = getattr(error, "response", None)
            if response is None or getattr(response, "status_code", code) == 200:  # It came in the stream.
                return reported(None, status.lower(), message)
            return refused(int(code or 500), None, status.lower(), message, model)
        case _ if (package := type(error).__module__.partition(".")[0]) == "openai":
            return explain(error, model)
        case _ if package in _HTTP_CLIENTS:
            return unreachable()
        case _:
            return unreadable()


def reply_failure(response: LlmResponse) -> ModelError | None:
    """Return the error of a reply that is not whole, or None. Its tools must not run."""
    reason = response.finish_reason
    if reason == types.FinishReason.MAX_TOKENS:
        return unfinished("length")
    if reason in _WITHHELD:
        return unfinished("content_filter")
    if reason in (types.FinishReason.MALFORMED_FUNCTION_CALL, types.FinishReason.UNEXPECTED_TOOL_CALL):
        return ModelError("the model's answer cannot be used; try again", "bad_answer")
    if reason is None and response.error_code is not None:
        return unfinished("content_filter")  # The prompt was blocked.
    # A server names its model version in each chunk; models that run here may report nothing.
    if reason is None and response.model_version is not None:
        return unfinished(None)
    return None
