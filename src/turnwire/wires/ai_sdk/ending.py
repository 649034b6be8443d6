"""How a turn ends in the words of this protocol, and what is told of it as the message's metadata."""

from typing import Any

from turnwire.core.events import DoneEvent, ResponseEvent, Usage
from turnwire.core.turns import TurnState
from turnwire.wires.ai_sdk.chunks import END, FINISH_STEP, chunk, known

_NO_WORDS = "The answer could not be completed."


def metadata_chunk(done: DoneEvent, state: TurnState, response: ResponseEvent | None) -> bytes:
    told = known(
        outcome=done.outcome,
        mode=response.mode if response else None,
        toolsUsed=list(response.tools_used if response else state.tools_used),
        usage=_usage((response.usage if response else None) or state.usage),
        timings=(response.timings if response else None) or state.timings or None,
    )
    return chunk("message-metadata", {"messageMetadata": told})


def last_words(done: DoneEvent, state: TurnState) -> bytes:
    """Nothing is left to a clean end: a client takes that for success."""
    match done.outcome:
        case "completed":
            return finish("stop")
        case "cancelled":
            return chunk("abort", known(reason=done.reason)) + finish("other")
        case "failed" | "interrupted":
            error = chunk("error", {"errorText": (state.error.error if state.error else "") or _NO_WORDS})
            return error + finish("error")


def finish(reason: str) -> bytes:
    return FINISH_STEP + chunk("finish", {"finishReason": reason}) + END


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    """Under the SDK's names. Absent is not zero."""
    if usage is None:
        return None
    spent = usage.input_tokens, usage.output_tokens
    return known(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=None if None in spent else sum(number or 0 for number in spent),
        cachedInputTokens=usage.cached_input_tokens,
        reasoningTokens=usage.reasoning_tokens,
    )
