"""The turns that one socket follows, each from its own place and until its own end."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from msgspec import Struct

from turnwire.core.contracts import Control, Wire
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.lookahead import Place
from turnwire.server.streams.pump import TurnReader
from turnwire.server.streams.replay import TurnReplay
from turnwire.server.streams.socket import Socket, SocketReader


class _Followed(Struct, eq=False):
    turn_id: str
    connection: SocketReader
    reader: TurnReader | TurnReplay | None
    room: ExitStack


class Followings:
    """By names of the caller's choice. Each counts as a stream of its principal's."""

    def __init__(self, hub: StreamHub, runner: TurnRunner, socket: Socket) -> None:
        self._hub = hub
        self._runner = runner
        self._socket = socket
        self._followed: dict[str, _Followed] = {}

    def room(self) -> ExitStack:
        """A place for one more, to be handed to `begin`. Raises TooManyStreamsError, ShuttingDownError."""
        with ExitStack() as stack:
            stack.enter_context(self._hub.room(self._socket.principal))
            return stack.pop_all()

    def turn_of(self, name: str) -> str | None:
        followed = self._followed.get(name)
        return followed.turn_id if followed else None

    def begin(
        self,
        name: str,
        record: TurnRecord,
        place: Place,
        wire: Wire,
        room: ExitStack,
        *,
        phrase: Callable[[bytes], Iterable[str]],
        ended: Callable[[bool], None],
        first: Control | None = None,
    ) -> None:
        """Has a turn written to the socket. Whoever was followed under the name is left.

        `phrase` makes messages of the wire's bytes; `ended` is told whether it was the turn's end that ended it.
        """
        self.leave(name, by_client=False)

        def end(whole: bool) -> None:
            if self._followed.get(name) is followed:
                self.leave(name, by_client=False)
                ended(whole)

        connection = SocketReader(self._socket, wire, phrase, end)
        followed = self._followed[name] = _Followed(record.id, connection, None, room)
        self._runner.reader_joined(record)
        if first is not None:
            connection.tell(first)
        connection.write(place.rest, last=place.is_end)
        if not place.is_end:
            followed.reader = self._hub.attach(record, place.position, connection, place.void)

    def leave(self, name: str, *, by_client: bool) -> None:
        followed = self._followed.pop(name, None)
        if followed is None:
            return
        followed.connection.close()
        if followed.reader is not None:
            followed.reader.close()
        followed.room.close()
        self._runner.reader_left(followed.turn_id, by_client=by_client)

    def leave_all(self, *, by_client: bool) -> None:
        for name in tuple(self._followed):
            self.leave(name, by_client=by_client)
