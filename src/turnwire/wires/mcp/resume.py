"""The state that a host sends back with a person's decisions: the turn, and what the person was shown."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.log.turns import Question, Step
from turnwire.server.errors import invalid_request


class CallState(Struct, frozen=True):
    """The turn that a call continues, and the calls with their arguments, and questions, that a person was shown.

    It is not secret and not signed: the owner of the turn is checked each time, as with `get_turn`.
    """

    turn_id: str
    shown: dict[str, dict[str, Any] | None] = {}


def encode_state(turn_id: str, steps: Sequence[Step], questions: Sequence[Question] = ()) -> str:
    shown = {step.id: step.args for step in steps} | {question.id: None for question in questions}
    return msgspec.json.encode(CallState(turn_id, shown)).decode()


def decode_state(text: str) -> CallState:
    """Return the state that `encode_state` wrote. Raises HttpError 422."""
    try:
        return msgspec.json.decode(text, type=CallState)
    except msgspec.DecodeError:
        raise invalid_request("requestState: unknown; send it back unchanged") from None
