"""Why a model did not answer, in words that are safe to show.

A server's own words may repeat the key or the whole request, so they are looked at and never passed on.
What the operator needs to look further goes to the log; the client's own error stays as the cause.
"""

import logging
import re

from turnwire.core.errors import ModelError

logger = logging.getLogger("turnwire.models")

# Servers say it with a code, with a type, or in a sentence only.
_TOO_LONG = re.compile(
    r"context[_ -]?(length|size|window)|(prompt|input|request) (is )?too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
_RATE_LIMITED = re.compile(r"rate_?limit|insufficient_quota", re.IGNORECASE)
_FILTERED = re.compile(r"content_?(filter|policy)|policy_violation|bio_policy", re.IGNORECASE)


def explain(error: Exception, model: str, timeout: float | None = None) -> ModelError:
    """What an error of the client means for the person who asked. `timeout`, where it is known, is told."""
    # Loaded already, since it raised the error; whoever only reads this module need not have it.
    import openai

    logger.warning(
        "the model %r failed: %s, status %s, request %s",
        model,
        type(error).__name__,
        getattr(error, "status_code", None),
        getattr(error, "request_id", None),
    )
    match error:
        case openai.APITimeoutError():
            silence = "too long" if timeout is None else f"{timeout:g} seconds"
            return _gone(f"the model's server said nothing for {silence}; try again")
        case openai.APIStatusError():
            return refused(error.status_code, error.code, error.type, error.message, model)
        case openai.APIConnectionError():
            return unreachable()
        case openai.APIError():
            return reported(error.code, error.type, error.message)
        case _:
            return unreadable()


def refused(status: int, code: str | None, kind: str | None, words: str, model: str) -> ModelError:
    """The server answered with an HTTP error."""
    if status == 429:
        return _rate_limited()
    if status == 413:
        return _too_long()
    if status >= 500 or status == 408:
        return _gone("the model's server is in trouble; try again in a moment")
    if status in (401, 403):
        return ModelError("the model's server refused the API key; check it", "model_refused")
    if status == 404:
        return ModelError(
            f"the model's server knows no model {model!r}, or none at this address; check both", "model_refused"
        )
    refusal = ModelError(f"the model's server refused the request (status {status})", "model_refused")
    return _recognised(code, kind, words) or refusal


def unreachable() -> ModelError:
    return _gone("the model's server cannot be reached, or has hung up; try again")


def unreadable() -> ModelError:
    return _gone("the model's server sent something that is not an answer; try again")


def reported(code: str | None, kind: str | None, words: str) -> ModelError:
    """What a server says went wrong after it has begun to answer."""
    logger.warning("a model's server reported an error: code %s, type %s", _label(code), _label(kind))
    return _recognised(code, kind, words) or _gone("the model's server failed while it answered; try again")


def unfinished(reason: str | None) -> ModelError:
    """The answer has ended, and the model did not say that it is whole."""
    match reason:
        case "content_filter":
            return _filtered()
        case "length" | "max_output_tokens" | "max_tokens":
            return ModelError("the answer grew longer than the model may write; ask for a shorter one", "truncated")
        case _:
            return ModelError("the model stopped in the middle of its answer; ask again", "truncated")


def _label(code: str | None) -> str | None:
    """A code as it may be logged: of those that are not just words, nobody knows what they hold."""
    return code if code is None or re.fullmatch("[a-z_]{1,60}", code) else "unprintable"


def _recognised(code: str | None, kind: str | None, words: str) -> ModelError | None:
    labels = f"{code} {kind}"
    if _TOO_LONG.search(labels) or _TOO_LONG.search(words):
        return _too_long()
    if _RATE_LIMITED.search(labels):
        return _rate_limited()
    if _FILTERED.search(labels):
        return _filtered()
    return None


def _gone(message: str) -> ModelError:
    return ModelError(message, "model_unavailable")


def _too_long() -> ModelError:
    return ModelError("the conversation is too long for the model; start a new one", "context_too_long")


def _rate_limited() -> ModelError:
    return ModelError("the model's server takes no more for now: its rate limit or quota is used up", "rate_limited")


def _filtered() -> ModelError:
    return ModelError("the model's provider withheld the answer: its content filter stopped it", "content_filtered")
