"""The SDK's exceptions as errors that are safe to show."""

from collections.abc import Iterator

from agno.exceptions import ContextWindowExceededError, ModelAuthenticationError, ModelProviderError
from msgspec import Struct

from turnwire.core.errors import TurnwireError
from turnwire.models.errors import explain, refused, unreadable


class ReplyFailure(Struct, frozen=True):
    """An exception of a model call, or with `by_tool` of a tool that the model has called, and the model's name."""

    error: Exception
    model: str
    by_tool: bool = False


def explain_failure(error: Exception, failure: ReplyFailure | None) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    if isinstance(error, TurnwireError):
        return error
    model = failure.model if failure else ""
    for cause in _causes(error):
        if type(cause).__module__.partition(".")[0] == "openai":
            return explain(cause, model)
    match error:
        case ContextWindowExceededError():
            return refused(400, "context_length_exceeded", None, "", model)
        case ModelAuthenticationError():
            return refused(401, None, None, "", model)
        case ModelProviderError():
            return refused(error.status_code, None, None, str(error.message), model)
        case _ if failure is not None and error is failure.error:
            return unreadable()
        case _:
            return error


def _causes(error: BaseException | None) -> Iterator[Exception]:
    seen: set[int] = set()
    while isinstance(error, Exception) and id(error) not in seen:  # The SDK raises errors from themselves.
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
