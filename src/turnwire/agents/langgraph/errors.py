"""Why a graph or a runnable failed, in words for the user."""

import re
from collections.abc import Iterator

from turnwire.agents.langgraph.events import GraphListener
from turnwire.core.errors import AgentError, ModelError, ToolError
from turnwire.models import errors

# Those of LangGraph's own, and of LangChain's middleware.
_LIMITS = frozenset({"GraphRecursionError", "ModelCallLimitExceededError", "ToolCallLimitExceededError"})
_NO_ANSWER = re.compile("Connect|Timeout|Network|RemoteProtocol|ReadError|WriteError")


def explain(error: BaseException, listener: GraphListener) -> AgentError | None:
    """None if there is nothing to say about it."""
    for one in _causes(error):
        if isinstance(one, AgentError):
            return one
        if tool := next((tool for raised, tool in listener.failed_tools if raised is one), None):
            return ToolError(f"the tool {tool!r} failed ({type(one).__name__})")
        if type(one).__name__ in _LIMITS:
            return AgentError("the agent took more steps than it may; ask for less at once", code="max_turns")
        if isinstance(one, Exception) and (one is listener.model_error or _is_openai(one)):
            return _explain_model(one, listener.model)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _explain_model(error: Exception, model: str) -> ModelError | None:
    # A line that is not JSON comes as it is.
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
