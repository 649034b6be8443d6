"""Values of the client: where a server is, how long to retry, the options of a message, and the answers."""

import base64
import mimetypes
from pathlib import Path
from typing import Any, Literal, TypedDict

from msgspec import Struct

from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.contracts.wires import Gap, Reset
from turnwire.core.log.events import Event
from turnwire.core.log.turns import TurnState

DEFAULT_URL = "http://127.0.0.1:8420"


class ServerAddress(Struct, frozen=True):
    """The URL of a server and the API key for it; `is_local` if it was found through its data folder."""

    url: str
    key: str | None = None
    is_local: bool = False


class ReconnectLimits(Struct, frozen=True, kw_only=True):
    """The limits of retries, in seconds.

    A lost stream is given up after `give_up_seconds` without an answer. Any other request, and the first one of a
    turn, is retried for `request_seconds`; with 0 it is sent once. `read_timeout` is the silence after which a stream
    counts as lost; the server sends a heartbeat every 15 seconds.
    """

    give_up_seconds: float = 300
    request_seconds: float = 5
    backoff: Backoff = Backoff(first=0.1, longest=2, jitter=0.5)
    read_timeout: float = 60


class MessageOptions(TypedDict, total=False):
    """The options of a message. Those that are None or absent are not sent."""

    session_id: str | None
    """The session to continue; without it, a new one is created."""
    agent: str | None
    on_busy: OnBusy | None
    """What happens if the session has a running turn. `steer` puts the message into that turn."""
    on_disconnect: Literal["continue", "cancel"] | dict[str, float] | None
    turn_id: str | None
    """An id of your own for the turn."""
    parent_turn_id: str | None
    """The turn that the message follows; "" for none."""
    review: bool | None
    answer: Literal["synthesis", "direct"] | None
    attachments: list[dict[str, Any]] | None
    """Files, as `attachment` makes them."""
    metadata: dict[str, Any] | None
    """Data of your application for the agent."""
    tools: list[dict[str, Any]] | None
    """Tools that this program runs: `name`, `description` and `parameters`, the JSON schema of the arguments."""
    model_options: dict[str, Any] | None
    """How the model answers, for agents that take it: `temperature`, `max_tokens`, `response_format` and so on."""
    idempotency_key: str | None
    """The same key again joins the turn that it has started; by default a new key."""


def attachment(file: Path | str | bytes, name: str | None = None, media_type: str | None = None) -> dict[str, Any]:
    """Return a file as an attachment of a message: a path, or the bytes of a file with a name or a media type."""
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    if not isinstance(file, bytes):
        name = name or Path(file).name
    kind = media_type or (mimetypes.guess_type(name)[0] if name else None) or "application/octet-stream"
    fields = {"media_type": kind, "data": base64.b64encode(data).decode("ascii")}
    return {**fields, "name": name} if name else fields


# Streams


class ReceivedEvent(Struct, frozen=True):
    """An event of the turn, its line of JSON in the log, and its id, which a reader may resume after."""

    event: Event
    body: bytes
    id: str = ""


class ConnectionLost(Struct, frozen=True):
    """The connection broke and is being retried; the turn goes on meanwhile."""

    reason: str


class ConnectionRestored(Struct, frozen=True):
    """The connection is back, and no event was missed."""


TurnUpdate = ReceivedEvent | Gap | Reset | ConnectionLost | ConnectionRestored


# Answers


class TurnSummary(Struct, frozen=True, kw_only=True):
    """A turn without its events. Times are in ISO 8601."""

    turn_id: str
    session_id: str
    agent: str
    message: str
    phase: str
    outcome: str | None = None
    external_id: str | None = None
    parent_turn_id: str | None = None
    last_position: int = 0
    created_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None


class TurnSnapshot(TurnSummary, frozen=True, kw_only=True):
    """A turn and its state at `position`: text, steps, citations, usage, outcome, error."""

    position: int
    state: TurnState


class SessionSummary(Struct, frozen=True, kw_only=True):
    """A session without its turns."""

    id: str
    external_id: str | None = None
    title: str | None = None
    turn_count: int = 0
    created_at: str | None = None
    updated_at: str | None = None


class SessionPage(Struct, frozen=True):
    """A page of sessions. `next` is what to pass as `before` for the next page; None on the last one."""

    sessions: tuple[SessionSummary, ...]
    next: str | None = None


class SessionTurns(SessionSummary, frozen=True, kw_only=True):
    """A session and its last turns, oldest first."""

    turns: tuple[TurnSummary, ...]
