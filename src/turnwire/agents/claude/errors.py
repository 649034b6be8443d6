"""Failures of Claude Code and of its model calls as errors that are safe to show."""

import logging

from claude_agent_sdk import ClaudeSDKError, ResultMessage

from turnwire.core.errors import AgentError, TurnwireError, step_limit_reached
from turnwire.models.errors import refused, reported, unfinished, unreachable

logger = logging.getLogger("turnwire.agents")


def explain_failure(error: Exception) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    if isinstance(error, TurnwireError) or not isinstance(error, ClaudeSDKError):
        return error
    return AgentError("Claude Code could not be started, or ended too early; the server's log tells more")


def reply_failure(stop_reason: str | None) -> Exception:
    """Return the error for a reply of the model that is not complete."""
    return unfinished("content_filter" if stop_reason == "refusal" else stop_reason)


def api_failure(kind: str | None, message: str = "") -> Exception:
    """Return the error for a model call that failed without an HTTP status."""
    return unreachable() if kind == "server_error" else reported(None, kind, message)


def run_failure(result: ResultMessage, kind: str | None, model: str) -> Exception:
    """Return the error for a run that ended with one; `kind` is that of its last message."""
    match result.subtype, result.terminal_reason:
        case "error_max_turns", _:
            return step_limit_reached()
        case "error_max_budget_usd", _:
            return AgentError("the agent has spent the budget of its options; send a smaller request")
        case _, "prompt_too_long":
            return refused(400, "context_length_exceeded", kind, "", model)
        case _, "api_error":
            pass
        case subtype, reason:
            logger.error("Claude Code ended with %r, %r: %s", subtype, reason, result.errors or result.result)
            return AgentError("the agent ended with an error; the server's log tells more")
    if kind == "max_output_tokens":
        return unfinished("max_tokens")
    if result.api_error_status is not None:
        return refused(result.api_error_status, None, kind, result.result or "", model)
    return api_failure(kind, result.result or "")
