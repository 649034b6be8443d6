"""Deterministic simulation: several processes, their database and their users in one seeded event loop."""
