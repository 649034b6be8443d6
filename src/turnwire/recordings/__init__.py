"""Recordings of turns: written to files, replayed against the agent of today, and compared."""
