"""What clients of `/v1/ws` say: JSON objects with a `type`, and an `id` of their own that the answer repeats."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.requests import ApprovalBody, ClientId, MessageBody

MessageId = Annotated[str, StringConstraints(max_length=128)] | int | None
Kind = Literal["start", "follow", "unfollow", "cancel", "approve", "ping"]
Model = TypeVar("Model", bound=BaseModel)


class ClientMessage(BaseModel):
    """What all of them have."""

    type: Kind
    id: MessageId = None


class StartMessage(MessageBody):
    """A message to an agent, as everywhere."""

    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    after: int = Field(0, ge=0, lt=10**15)


class TurnMessage(BaseModel):
    turn_id: ClientId


class FollowMessage(TurnMessage):
    """`after` is the last position that the client has, `epoch` the one it saw there if it knows."""

    after: int = Field(0, ge=0, lt=10**15)
    epoch: int | None = Field(None, ge=0, lt=10**15)


class ApproveMessage(TurnMessage, ApprovalBody):
    call_id: Annotated[str, StringConstraints(max_length=256)]


def parse(model: type[Model], said: str | bytes) -> Model:
    """Raises HttpError 400 or 422."""
    try:
        return model.model_validate_json(said)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the message is not JSON") from None
        raise invalid_body(error) from None
