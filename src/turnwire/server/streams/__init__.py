"""Streams: from a committed event to the socket.

`opening` is what a request becomes, and `text` what it becomes where the answer must not begin too
early; `connection` is one open response. `pump` hands a running turn's frames to all its readers,
`replay` writes an old log, `sessions` one turn after the other; `lookahead` finds a reader's place in
a log on a wire that keeps state. `socket` is one open WebSocket, and `following` the turns on it.
`hub` knows every open stream of the process: its limits, heartbeats, time-outs and the end of them all.
"""
