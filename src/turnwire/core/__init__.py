"""The core of Turnwire, independent of any framework.

A turn is a task that writes events to a log; readers follow the log. `events` defines the events, `log` and `follow`
write and read logs, `runner`, `worker` and `execution` run turns, and `contracts` has the interfaces of agents, stores
and wires.
"""
