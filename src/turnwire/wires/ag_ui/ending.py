"""How a run ends in the words of this protocol, and what it has cost."""

from typing import Any

from turnwire.core.events import DoneEvent, ErrorEvent, ResponseEvent, Usage, UsageEvent
from turnwire.core.fold import add_usage
from turnwire.wires.ag_ui.frames import known, told

_NO_WORDS = "The answer could not be completed."


class Spent:
    """What the models of a run have used; each is told apart. Absent is not zero."""

    def __init__(self) -> None:
        self._by_model: dict[str | None, Usage] = {}

    def add(self, event: UsageEvent) -> None:
        self._by_model[event.model] = add_usage(self._by_model.get(event.model), event)

    def told(self) -> list[dict[str, Any]] | None:
        return [_tokens(model, usage) for model, usage in self._by_model.items()] or None


def run_ended(
    run: dict[str, str],
    version: int,
    done: DoneEvent,
    error: ErrorEvent | None,
    response: ResponseEvent | None,
    usage: list[dict[str, Any]] | None,
) -> bytes:
    if done.outcome in ("failed", "interrupted"):
        message = (error.error if error else "") or _NO_WORDS
        code = error.code if error else done.reason or done.outcome
        return told("RUN_ERROR", message=message, code=code, usage=usage)
    result = known(
        outcome=done.outcome,
        reason=done.reason,
        mode=response.mode if response else None,
        toolsUsed=response.tools_used if response else None,
        timings=response.timings if response else None,
    )
    outcome = {"type": "success" if done.outcome == "completed" else "cancelled"}
    # Clients before 1.0 end the run with an error of their own at an outcome that they do not know.
    is_known = version > 0 or done.outcome == "completed"
    return told("RUN_FINISHED", **run, result=result, outcome=outcome if is_known else None, usage=usage)


def run_interrupted(run: dict[str, str], interrupts: list[dict[str, Any]], usage: list[dict[str, Any]] | None) -> bytes:
    return told("RUN_FINISHED", **run, outcome={"type": "interrupt", "interrupts": interrupts}, usage=usage)


def _tokens(model: str | None, usage: Usage) -> dict[str, Any]:
    spent = usage.input_tokens, usage.output_tokens
    return known(
        model=model,
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=None if None in spent else sum(number or 0 for number in spent),
        cachedInputTokens=usage.cached_input_tokens,
        reasoningTokens=usage.reasoning_tokens,
    )
