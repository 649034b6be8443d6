"""A store that forgets: `store` has turns and logs, `registry` sessions and keys, `world` is where they are kept."""

from turnwire.stores.memory.store import MemoryStore
from turnwire.stores.memory.world import World

__all__ = ["MemoryStore", "World"]
