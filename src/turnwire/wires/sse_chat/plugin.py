"""The plugin `sse_chat`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="sse_chat",
    description="the log itself as server-sent events",
    routes=["turnwire.wires.sse_chat.routes:routes"],
    wires={"sse_chat": "turnwire.wires.sse_chat.encoder:SseChat.of_query"},
)
