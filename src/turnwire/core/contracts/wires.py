"""The interface of wires, pure functions from a log to bytes: for authors of wires."""

from typing import Protocol

from msgspec import Struct

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import TurnState


class Gap(Struct, frozen=True):
    """A control frame: the events after `after` and before `first_kept` are gone; `state` sums them up."""

    after: int
    first_kept: int
    state: TurnState


class Reset(Struct, frozen=True):
    """A control frame: the reader's position is not in this log, which is replayed from the start."""


class Reconnect(Struct, frozen=True):
    """A control frame: the server closes this stream, and the client should reconnect after `retry_ms`."""

    retry_ms: int


Control = Gap | Reset | Reconnect


class Encoder(Protocol):
    """The encoding of one turn's events, in order, for one wire."""

    @property
    def takes_heartbeat(self) -> bool:
        """Whether the wire's heartbeat may be sent after the last frame."""
        ...

    def frame(self, logged: LoggedEvent) -> bytes:
        """Encode one event; the frame may be empty for a wire that keeps state.

        Raises RestartedError if earlier frames have become void and the wire cannot take them back.
        """
        ...

    def pause(self) -> bytes:
        """Return the frames that end a stream when the turn waits for a person, or nothing if the stream stays open.

        The call changes no state. The frame of the first event after the wait begins with the same bytes, so that a
        later replay has them too.
        """
        ...


class Wire(Protocol):
    """One client protocol: a pure function from a log to bytes, without I/O or clock.

    `heartbeat` keeps an idle stream alive and is not part of the log's bytes; `opening` is sent at once if there is
    nothing else to send.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str:
        """The name and everything else that the bytes depend on: streams with the same key share their bytes."""
        ...

    @property
    def media_type(self) -> str: ...
    @property
    def keeps_state(self) -> bool:
        """Whether a frame depends on earlier events, so that an encoder must be fed all of them."""
        ...

    @property
    def numbers_frames(self) -> bool:
        """Whether the id of a frame is its number in the stream, and not a position of the log."""
        ...

    @property
    def heartbeat(self) -> bytes: ...
    @property
    def opening(self) -> bytes: ...

    def encoder(self) -> Encoder:
        """Return a new encoder for the events of one turn."""
        ...

    def control(self, control: Control) -> bytes | None:
        """Encode a control frame, or return None if the wire has none and the connection must be broken instead."""
        ...
