"""Streams: from a committed event to the socket.

`connection` is one open response, `pump` hands a turn's frames to all its readers, `hub` knows
every open stream of the process: its limits, heartbeats, time-outs and the end of them all.
"""
