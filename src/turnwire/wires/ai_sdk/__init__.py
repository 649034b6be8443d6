"""`ai_sdk`: the UI message stream of the Vercel AI SDK, for versions 5, 6 and 7 of its clients.

`encoder` turns a log into chunks, `messages` parses requests, `resume` and `conversation` find
the turn that a request means, `routes` serves them, over HTTP and on a WebSocket.
"""
