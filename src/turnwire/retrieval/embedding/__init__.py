"""Embedders: texts as vectors, so that a search finds passages that say the same in other words."""
