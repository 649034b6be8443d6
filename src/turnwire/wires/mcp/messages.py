"""The arguments of the MCP tools, and the state that a host sends back with a person's decisions."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from turnwire.core.log.turns import Question, Step
from turnwire.server.errors import invalid_request
from turnwire.server.messages import ClientId

DEFAULT_WAIT = 50.0
"""Seconds; many hosts give a call up after 60."""
MAX_WAIT = 3_600.0

Wait = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_WAIT,
        description="How many seconds to wait for the turn. One that takes longer goes on: call get_turn for the rest.",
    ),
]


class ToolArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AskArguments(ToolArguments):
    message: str = Field(min_length=1, description="The text to answer.")
    session: ClientId | None = Field(None, description="The session to continue; without it a new one is created.")
    wait: Wait = DEFAULT_WAIT


class TurnArguments(ToolArguments):
    turn_id: ClientId = Field(description="The id of the turn.")


class GetTurnArguments(TurnArguments):
    wait: Wait = DEFAULT_WAIT


class DecideArguments(TurnArguments):
    call_id: str = Field(min_length=1, max_length=256, description="The call that waits, from the turn's approvals.")
    approve: bool = Field(description="True allows the call, False refuses it.")
    reason: str | None = Field(None, max_length=2_000, description="Why; the agent sees it.")


class ListSessionsArguments(ToolArguments):
    search: str | None = Field(None, max_length=200, description="Text in titles, messages or answers.")
    limit: int = Field(20, ge=1, le=100)


class SearchArguments(ToolArguments):
    query: str = Field(min_length=1, max_length=2_000, description="What to look for.")
    limit: int = Field(8, ge=1, le=50)


def input_schema(model: type[ToolArguments]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments, without the titles that Pydantic makes of the names."""
    schema = model.model_json_schema()
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return schema


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
