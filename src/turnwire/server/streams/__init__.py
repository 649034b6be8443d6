"""Streams: the way of a committed event to the client.

`stream` is one streamed response, `connection` its open body, and `socket` one WebSocket. `pump` writes a running
turn's frames to all its readers, `stored_log` writes an old log; `resume` finds where a client continues. `hub`
holds every open stream of the process: limits, heartbeats, timeouts, shutdown.
"""
