"""The client's messages: JSON objects with a `type`, and an `id` of the client's that the answer repeats."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnwire.core.people.suspension import Answer
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


class AnswerMessage(TurnMessage, ABC):
    """An answer that the turn waits for."""

    @abstractmethod
    def to_answer(self, by: str) -> Answer: ...


class ApproveMessage(AnswerMessage, ApprovalBody):
    call_id: Annotated[str, StringConstraints(max_length=256)]

    def to_answer(self, by: str) -> Answer:
        return self.answer(self.call_id, by)


class ReplyMessage(AnswerMessage, ReplyBody):
    model_config = ConfigDict(extra="ignore")

    def to_answer(self, by: str) -> Answer:
        return self.answer(by)


class ToolResultMessage(AnswerMessage, ToolResultBody):
    model_config = ConfigDict(extra="ignore")

    def to_answer(self, by: str) -> Answer:
        return self.answer()


ANSWERS: Mapping[str, type[AnswerMessage]] = {
    "approve": ApproveMessage,
    "reply": ReplyMessage,
    "tool_result": ToolResultMessage,
}
