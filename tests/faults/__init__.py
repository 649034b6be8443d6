"""Faults on purpose: real processes, a real database, and a network that breaks, watched from the outside.

`campaign` makes the faults while `people` use the servers; `checking` says which promises were broken.
`scripts/faults` runs it for as long as you like, the tests for a few seconds.
"""
