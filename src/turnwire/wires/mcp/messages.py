"""The arguments of the MCP tools."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

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
