"""Why a run of the SDK failed, in words for the user."""

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)

from turnwire.core.errors import AgentError, ModelError
from turnwire.models import errors
from turnwire.models.errors import refused, reported, unfinished, unreachable, unreadable


def explain(error: Exception) -> AgentError | None:
    """Words for the user, where an error of the SDK's has any."""
    match error:
        case UsageLimitExceeded():
            return AgentError("the agent took more steps than it may; ask for less at once", code="max_turns")
        case ContentFilterError():
            return unfinished("content_filter")
        case UnexpectedModelBehavior():
            return ModelError("the model's answer cannot be used, and asking again did not help", "bad_answer")
        case ModelAPIError():
            return _explain_request(error)
        case UserError() if "DeferredToolRequests" in str(error):
            return AgentError(
                "an agent with output validators can wait for a person only if its output_type has DeferredToolRequests"
            )
        case _:
            return None


def _explain_request(error: ModelAPIError) -> ModelError:
    cause = error.__cause__
    words = str(error.body or "")
    match error:
        case _ if isinstance(cause, Exception) and type(cause).__module__.partition(".")[0] == "openai":
            return errors.explain(cause, error.model_name)
        case ModelHTTPError(in_stream=False):
            code, kind = error.provider_error_code, error.provider_error_type
            return refused(error.status_code, code, kind, words, error.model_name)
        case ModelConnectionError():
            return unreachable()
        case _ if error.in_stream:
            return reported(error.provider_error_code, error.provider_error_type, words)
        case _:
            return unreadable()
