"""The SDK's exceptions as errors that are safe to show."""

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)

from turnwire.core.errors import ModelError, step_limit_reached
from turnwire.models import errors
from turnwire.models.errors import refused, reported, unfinished, unreachable, unreadable


def explain_failure(error: Exception) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    match error:
        case UsageLimitExceeded():
            return step_limit_reached()
        case ContentFilterError():
            return unfinished("content_filter")
        case UnexpectedModelBehavior():
            return ModelError("the model's answer cannot be used, also after retries; try again", "bad_answer")
        case ModelAPIError():
            return _explain_request(error)
        case _:
            return error


def _explain_request(error: ModelAPIError) -> ModelError:
    cause = error.__cause__
    body = str(error.body or "")
    match error:
        case _ if isinstance(cause, Exception) and type(cause).__module__.partition(".")[0] == "openai":
            return errors.explain(cause, error.model_name)
        case ModelHTTPError(in_stream=False):
            code, kind = error.provider_error_code, error.provider_error_type
            return refused(error.status_code, code, kind, body, error.model_name)
        case ModelConnectionError():
            return unreachable()
        case _ if error.in_stream:
            return reported(error.provider_error_code, error.provider_error_type, body)
        case _:
            return unreadable()
