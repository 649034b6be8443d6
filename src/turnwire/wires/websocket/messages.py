"""The client's messages: JSON objects with a `type`, and an `id` of the client's that the answer repeats."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnwire.server.messages import NO_NUL, ApprovalBody, ClientId, MessageBody, ReplyBody, ToolResultBody

MessageId = Annotated[str, StringConstraints(max_length=128)] | int | None
Kind = Literal["start", "follow", "unfollow", "cancel", "approve", "reply", "tool_result", "ping"]


class ClientMessage(BaseModel):
    """The fields that every message has."""

    type: Kind
    id: MessageId = None


class StartMessage(MessageBody):
    """A message to an agent."""

    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_NUL)] | None = None
    after: int = Field(0, ge=0, lt=10**15)


class TurnMessage(BaseModel):
    turn_id: ClientId


class FollowMessage(TurnMessage):
    """`after` is the last position that the client has, `epoch` the epoch it saw there, if it knows."""

    after: int = Field(0, ge=0, lt=10**15)
    epoch: int | None = Field(None, ge=0, lt=10**15)


class ApproveMessage(TurnMessage, ApprovalBody):
    call_id: Annotated[str, StringConstraints(max_length=256)]


class ReplyMessage(TurnMessage, ReplyBody):
    model_config = ConfigDict(extra="ignore")


class ToolResultMessage(TurnMessage, ToolResultBody):
    model_config = ConfigDict(extra="ignore")
