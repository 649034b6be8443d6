"""A turn's log as a file to download: one line of JSON for each event, with its position, epoch and time.

It is a stream like any other: counted, written page by page at the reader's pace, and dropped when the reader stalls.
"""

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Control
from turnwire.core.turns import TurnRecord
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.connection import Connection
from turnwire.server.streams.replay import Replay, StateReader
from turnwire.server.streams.stream import Stream, StreamSource
from turnwire.server.turns import logged_json


class LogFile:
    """The wire of a download. It has no control frames: a download that cannot go on is broken off."""

    name = key = "log_file"
    media_type = "application/jsonl"
    keeps_state = False
    heartbeat = opening = b""

    def encoder(self) -> "_LineEncoder":
        return _LineEncoder()

    def control(self, control: Control) -> None:
        return None


class _LineEncoder:
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        return logged_json(logged) + b"\n"

    def pause(self) -> bytes:
        return b""


class LogSource(StreamSource):
    """The committed events of a turn, up to the position that the log had when it was asked for."""

    waits = True

    def __init__(self, store: StateReader, record: TurnRecord) -> None:
        self._store = store
        self._record = record

    async def wait(self) -> None:
        # A log that cannot be read is an error, and never a shorter log.
        await self._store.read(self._record.id, 0, 1)

    async def write(self, connection: Connection) -> None:
        connection.takes_heartbeat = lambda: False
        replay = Replay(self._store, self._record.id, connection, 0)
        while not connection.is_finished and replay.position < self._record.last_position:
            await replay.write_page()
        if not connection.is_blocked:
            connection.write(b"", last=True)


def stream_log(request: Request, services: Services, record: TurnRecord) -> Stream:
    """Open the download of a turn's log."""
    name = f'attachment; filename="turn-{record.id}.jsonl"'
    headers = [(b"content-disposition", name.encode("ascii"))]
    source = LogSource(services.store, record)
    return Stream(request, services, LogFile(), source, headers, caching=[(b"cache-control", b"no-store")])
