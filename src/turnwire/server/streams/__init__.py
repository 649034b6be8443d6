"""Streams: from a committed event to the socket.

`opening` is what a request becomes, `connection` one open response. `pump` hands a running turn's
frames to all its readers, `replay` writes an old log, `sessions` one turn after the other. `hub`
knows every open stream of the process: its limits, heartbeats, time-outs and the end of them all.
"""
