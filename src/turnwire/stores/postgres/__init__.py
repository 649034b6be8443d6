"""The store for many processes: one PostgreSQL database, any number of workers.

`store` is what the server uses. A turn that has not ended has a row in `head`, which every append checks and moves in
the statement that writes it (`appending`); so whoever has lost a turn cannot write to it, whatever they believe.
`following` tells readers in this process what any process has committed. `schema` has the tables.
"""

from turnwire.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
