"""An ended turn in words: the answer, with why it is not whole at its end."""

from turnwire.core.turns import TurnState

EMPTY = "(The answer is empty.)"
STOPPED = "(Stopped.)"


def final_text(state: TurnState) -> str:
    match state.outcome:
        case "completed":
            return state.text or EMPTY
        case "cancelled":
            return _with(state.text, STOPPED)
        case _:
            return _with(state.text, error_text(state.error.error if state.error else "the answer was not completed"))


def error_text(message: str) -> str:
    return f"(Error: {message})"


def _with(text: str, note: str) -> str:
    return f"{text}\n\n{note}" if text else note
