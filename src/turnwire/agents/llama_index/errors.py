"""The SDK's exceptions as errors that are safe to show."""

from llama_index.core.workflow import WorkflowTimeoutError

from turnwire.core.errors import AgentError
from turnwire.models import errors


def explain_failure(error: Exception) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    match error:
        case WorkflowTimeoutError():
            return AgentError("the workflow took longer than its own time limit; send a smaller request")
        case _ if _package(error) == "openai":
            return errors.explain(error, "the model")
        case _ if _package(error) in ("httpx", "httpcore"):
            return errors.unreachable()
        case _:
            return error


def _package(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]
