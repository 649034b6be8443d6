"""The objects that the parts of the SQLite store share."""

from turnwire.stores.database import StorePart
from turnwire.stores.lines import SealedLogs
from turnwire.stores.sqlite.database import Connections, SqliteDatabase
from turnwire.stores.sqlite.disk import Ballast
from turnwire.stores.sqlite.live_turn import LiveTurns
from turnwire.stores.sqlite.writer import SqliteWriter


class SqliteParts(StorePart):
    """The base of the parts: connections, the writer, and the live turns of this process."""

    def __init__(
        self,
        writing: Connections,
        reading: Connections,
        searching: Connections,
        ballast: Ballast | None,
        turns: LiveTurns,
        *,
        keeps_outbox: bool,
        notes_waits: bool,
        interval: float,
    ) -> None:
        self._threads = writing
        self.readers = reading
        self._searchers = searching
        self._turns = turns
        self._sealed_logs = SealedLogs()
        self._writer = SqliteWriter(
            writing, self._turns, ballast, keeps_outbox=keeps_outbox, notes_waits=notes_waits, interval=interval
        )
        self._database = SqliteDatabase(reading, searching, self._writer, self._turns)
