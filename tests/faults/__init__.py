"""Fault injection: real processes, a real database and a network that fails, observed from outside.

`campaign` injects faults while `users` use the servers; `checks` finds broken promises. `scripts/faults` runs a
campaign of any length, the tests a short one.
"""
