"""The store for many processes: one PostgreSQL database, any number of workers.

The server uses `store`. A turn that has not ended has a row in `head`, which every append checks and updates in the
statement that writes the events (`writer`), so a worker that has lost a turn cannot write to it. `notifications` tells
the readers of this process what any process has committed. `schema` has the tables.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

__getattr__ = lazy_exports(__name__, {"PostgresStore": "store"})
