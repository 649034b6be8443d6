"""The SDK's exceptions as errors that are safe to show."""

from collections.abc import Iterator

from agno.exceptions import ContextWindowExceededError, ModelAuthenticationError, ModelProviderError

from turnwire.agents.run_recorder import CallFailure
from turnwire.core.errors import TurnwireError
from turnwire.models.errors import explain, refused, unreadable


def explain_failure(error: Exception, failure: CallFailure | None) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    if isinstance(error, TurnwireError):
        return error
    model = failure.name if failure else ""
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
