"""Errors of models, with messages that are safe to show.

A server's own message may repeat the key or the whole request, so it is inspected but never passed on. The log has the
details for the operator; the client's own error stays as the cause.
"""

import logging
import re

from turnwire.core.errors import ModelError

logger = logging.getLogger("turnwire.models")

# Servers report it as a code, as a type, or only in the message.
_TOO_LONG = re.compile(
    r"context[_ -]?(length|size|window)|(prompt|input|request) (is )?too (long|large)|too many (input )?tokens"
    r"|input token count .{0,20}exceeds",
    re.IGNORECASE,
)
_RATE_LIMITED = re.compile(r"rate_?limit|insufficient_quota", re.IGNORECASE)
_FILTERED = re.compile(r"content_?(filter|policy)|policy_violation|bio_policy", re.IGNORECASE)


def explain(error: Exception, model: str, timeout: float | None = None) -> ModelError:
    """Return the ModelError for an error of the openai client. Its message names `timeout` if it is given."""
    # Imported here, because the package is optional; it is loaded already, since it raised the error.
    import openai

    logger.warning(
        "the model %r failed with %s, status %s, request %s",
        model,
        type(error).__name__,
        getattr(error, "status_code", None),
        getattr(error, "request_id", None),
    )
    match error:
        case openai.APITimeoutError():
            silence = "too long" if timeout is None else f"{timeout:g} seconds"
            return _unavailable(f"the model's server said nothing for {silence}; try again")
        case openai.APIStatusError():
            return refused(error.status_code, error.code, error.type, error.message, model)
        case openai.APIConnectionError():
            return unreachable()
        case openai.APIError():
            return reported(error.code, error.type, error.message)
        case _:
            return unreadable()


def refused(status: int, code: str | None, kind: str | None, message: str, model: str) -> ModelError:
    """Return the error for an HTTP error status."""
    if status == 429:
        return _rate_limited()
    if status == 413:
        return _too_long()
    if status >= 500 or status == 408:
        return _unavailable("the model's server is in trouble; try again in a moment")
    if status in (401, 403):
        return ModelError("the model's server refused the API key; check it", "model_refused")
    if status == 404:
        return ModelError(
            f"the model's server knows no model {model!r}, or none at this address; check both", "model_refused"
        )
    refusal = ModelError(f"the model's server refused the request (status {status})", "model_refused")
    return _recognised(code, kind, message) or refusal


def unreachable() -> ModelError:
    return _unavailable("the model's server cannot be reached, or has hung up; try again")


def unreadable() -> ModelError:
    return _unavailable("the model's server sent something that is not an answer; try again")


def reported(code: str | None, kind: str | None, message: str) -> ModelError:
    """Return the error for one that the server reports in the middle of its answer."""
    logger.warning("a model's server reported an error: code %s, type %s", _label(code), _label(kind))
    return _recognised(code, kind, message) or _unavailable("the model's server failed while it answered; try again")


def unfinished(reason: str | None) -> ModelError:
    """Return the error for an answer that ended without being complete."""
    match reason:
        case "content_filter":
            return _filtered()
        case "length" | "max_output_tokens" | "max_tokens":
            return ModelError("the answer grew longer than the model may write; ask for a shorter one", "truncated")
        case _:
            return ModelError("the model stopped in the middle of its answer; ask again", "truncated")


def _label(code: str | None) -> str | None:
    """Return a code that is safe to log; one that is not just a word may hold anything."""
    return code if code is None or re.fullmatch("[a-z_]{1,60}", code) else "unprintable"


def _recognised(code: str | None, kind: str | None, message: str) -> ModelError | None:
    labels = f"{code} {kind}"
    if _TOO_LONG.search(labels) or _TOO_LONG.search(message):
        return _too_long()
    if _RATE_LIMITED.search(labels):
        return _rate_limited()
    if _FILTERED.search(labels):
        return _filtered()
    return None


def _unavailable(message: str) -> ModelError:
    return ModelError(message, "model_unavailable")


def _too_long() -> ModelError:
    return ModelError("the conversation is too long for the model; start a new one", "context_too_long")


def _rate_limited() -> ModelError:
    return ModelError("the model's server takes no more for now: its rate limit or quota is used up", "rate_limited")


def _filtered() -> ModelError:
    return ModelError("the model's provider withheld the answer: its content filter stopped it", "content_filtered")
