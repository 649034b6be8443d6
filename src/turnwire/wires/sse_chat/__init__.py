"""`sse_chat`: the log itself as server-sent events, and the routes that stream it."""
