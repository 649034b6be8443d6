"""The store in PostgreSQL, made of settings. `options` are those that every store takes."""

from typing import Any

from turnwire.core.errors import StoreUnusableError
from turnwire.settings import Settings
from turnwire.stores.postgres.store import PostgresStore


def build_postgres(settings: Settings, **options: Any) -> PostgresStore:
    """Return the store at `database_url`. Raises StoreUnusableError."""
    if settings.database_url is None:
        raise StoreUnusableError("PostgreSQL", "no database is configured; set `database_url`")
    return PostgresStore(
        settings.database_url.get_secret_value(),
        hints=settings.database_hints,
        **options,
    )
