"""The default store: one process, one file, no set-up.

`store` is what the server uses, `archive` what another process reads with while it runs. Live
events go to an append-only journal (`writer`, `live`); a log that has ended is sealed into one
compressed row. `schema` has the tables, `disk` the lock and the reserve for a full disk.
"""

from turnwire.stores.sqlite.store import SqliteStore
from turnwire.stores.sqlite.transfer import SqliteArchive

__all__ = ["SqliteArchive", "SqliteStore"]
