"""Exceptions of graphs and runnables as errors that are safe to show."""

import re
from collections.abc import Iterator

from turnwire.agents.langgraph.events import GraphRun
from turnwire.core.errors import AgentError, ModelError, ToolError, step_limit_reached
from turnwire.models import errors

# Limits of LangGraph itself and of LangChain's middleware.
_LIMITS = frozenset({"GraphRecursionError", "ModelCallLimitExceededError", "ToolCallLimitExceededError"})
_NO_ANSWER = re.compile("Connect|Timeout|Network|RemoteProtocol|ReadError|WriteError")


def explain_failure(error: Exception, run: GraphRun) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    for cause in _causes(error):
        if isinstance(cause, AgentError):
            return cause
        is_failure, tool = next(((True, tool) for raised, tool in run.failures if raised is cause), (False, None))
        if tool is not None:
            return ToolError(f"the tool {tool!r} failed ({type(cause).__name__})")
        if type(cause).__name__ in _LIMITS:
            return step_limit_reached()
        if isinstance(cause, Exception) and (is_failure or _is_openai(cause)):
            return _explain_model(cause, run.model) or error
    return error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _explain_model(error: Exception, model: str) -> ModelError | None:
    # A malformed line of the stream is a ValueError.
    if _is_openai(error) or isinstance(error, ValueError):
        return errors.explain(error, model)
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return errors.refused(status, None, None, str(error), model)
    if isinstance(error, OSError) or _NO_ANSWER.search(type(error).__name__):
        return errors.unreachable()
    return None


def _is_openai(error: Exception) -> bool:
    return any(base.__module__.partition(".")[0] == "openai" for base in type(error).__mro__)
