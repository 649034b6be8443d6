"""The stores of one process, made of settings. `options` are those that every store takes."""

from typing import Any

from turnwire.settings import Settings
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite.store import SqliteStore


def build_memory(settings: Settings, **options: Any) -> MemoryStore:
    return MemoryStore(**options)


def build_sqlite(settings: Settings, **options: Any) -> SqliteStore:
    return SqliteStore(settings.data, **options)
