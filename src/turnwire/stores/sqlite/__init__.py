"""The default store: one process, one file, no set-up.

The server uses `store`; another process reads with `SqliteArchive` while it runs. Live events go to an append-only
table (`writer`, `live_turn`); `maintenance` seals the log of an ended turn into one compressed row. `schema` has the
tables, `disk` the lock and the ballast for a full disk.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.stores.sqlite.store import SqliteStore
    from turnwire.stores.sqlite.transfer import SqliteArchive

__all__ = ["SqliteArchive", "SqliteStore"]

__getattr__ = lazy_exports(__name__, {"SqliteArchive": "transfer", "SqliteStore": "store"})
