"""The state that a host sends back with a person's decisions: the turn, and what the person was shown."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.turns import Step
from turnwire.server.errors import HttpError


class CallState(Struct, frozen=True):
    """The turn that a call continues, and the arguments of the calls that a person was asked about.

    It is not secret and not signed: the owner of the turn is checked each time, as with `get_turn`.
    """

    turn_id: str
    shown: dict[str, dict[str, Any] | None] = {}


def encode_state(turn_id: str, steps: Sequence[Step]) -> str:
    return msgspec.json.encode(CallState(turn_id, {step.id: step.args for step in steps})).decode()


def decode_state(text: str) -> CallState:
    """Return the state that `encode_state` wrote. Raises HttpError 422."""
    try:
        return msgspec.json.decode(text, type=CallState)
    except msgspec.DecodeError:
        raise HttpError(422, "invalid_request", "requestState: it is not one of this server") from None
