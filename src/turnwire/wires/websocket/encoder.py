"""`websocket`: the log itself, one JSON message per event, for a socket that carries many turns.

Each message names its turn and its position there, so a client resumes with the last position of each turn. A message
is one line that ends with a line feed, so several messages in one piece of bytes can be split.
"""

from typing import assert_never

from turnwire.core.contracts.wires import Control, Encoder, Gap, Reconnect, Reset
from turnwire.core.log.codec import LoggedEvent, ascii_json, json_string
from turnwire.wires.frames import BaseEncoder


class WebSocket:
    """One turn on a socket; without a turn id, the socket itself, which sends only controls and heartbeats."""

    name = "websocket"
    media_type = "application/json"
    keeps_state = numbers_frames = False
    heartbeat = b'{"type":"heartbeat"}\n'
    opening = b""

    def __init__(self, turn_id: str = "") -> None:
        self.turn_id = turn_id
        self.key = f"websocket?turn_id={turn_id}"

    def encoder(self) -> Encoder:
        return _SocketEncoder(json_string(self.turn_id))

    def control(self, control: Control) -> bytes:
        match control:
            case Gap(after=after, first_kept=first_kept, state=state):
                return message("gap", turn_id=self.turn_id, after=after, first_kept=first_kept, state=state)
            case Reset():
                return message("reset", turn_id=self.turn_id)
            case Reconnect(retry_ms=retry_ms):
                return message("reconnect", retry_ms=retry_ms)
            case _:
                assert_never(control)


class _SocketEncoder(BaseEncoder):
    def __init__(self, turn_json: bytes) -> None:
        self._turn_json = turn_json

    def frame(self, logged: LoggedEvent) -> bytes:
        # Every token passes here, so the stored line is put in without decoding it.
        return b'{"type":"event","turn_id":%b,"position":%d,"epoch":%d,"event":%b}\n' % (
            self._turn_json,
            logged.position,
            logged.epoch,
            logged.body,
        )


def message(kind: str, **fields: object) -> bytes:
    """Return a message of the server that is not an event of a log."""
    return ascii_json({"type": kind, **fields}) + b"\n"
