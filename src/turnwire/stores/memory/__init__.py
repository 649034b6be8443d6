from turnwire.stores.memory.store import MemoryStore
from turnwire.stores.memory.world import World

__all__ = ["MemoryStore", "World"]
