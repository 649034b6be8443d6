"""Fixtures that every folder of tests may use."""

from hypothesis import settings

from tests.contracts.stores import backend, place, store

__all__ = ["backend", "place", "store"]

# A loaded machine is slow, not wrong.
settings.register_profile("turnwire", deadline=None)
settings.load_profile("turnwire")
