"""`websocket`: the log itself, one JSON message an event, for a socket that carries many turns.

Each message says which turn it is of and its position there, so a client needs nothing but the last
position of each turn to go on. A message is one line and ends with a line feed: several of them in one
piece of bytes can be told apart.
"""

from turnwire.core.codec import LoggedEvent, ascii_json, json_string
from turnwire.core.contracts import Control, Encoder, Gap, Reconnect, Reset


class _SocketEncoder:
    takes_heartbeat = True

    def __init__(self, turn: bytes) -> None:
        self._turn = turn

    def frame(self, logged: LoggedEvent) -> bytes:
        # The path of every token: the stored line is put in as it is.
        return b'{"type":"event","turn_id":%b,"position":%d,"epoch":%d,"event":%b}\n' % (
            self._turn,
            logged.position,
            logged.epoch,
            logged.body,
        )

    def pause(self) -> bytes:
        return b""


class WebSocket:
    """One turn on a socket; with no turn it is the socket itself, which has controls and heartbeats alone."""

    name = "websocket"
    media_type = "application/json"
    keeps_state = False
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
                told = {"turn_id": self.turn_id, "after": after, "first_kept": first_kept, "state": state}
                return message("gap", **told)
            case Reset():
                return message("reset", turn_id=self.turn_id)
            case Reconnect(retry_ms=retry_ms):
                return message("reconnect", retry_ms=retry_ms)


def message(kind: str, **fields: object) -> bytes:
    """What the server says that is no event."""
    return ascii_json({"type": kind, **fields}) + b"\n"
