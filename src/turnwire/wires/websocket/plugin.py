"""The plugin `websocket`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="websocket",
    description="many turns of many sessions on one socket",
    routes=["turnwire.wires.websocket.routes:routes"],
    socket_wires={"websocket": "turnwire.wires.websocket.encoder:WebSocket"},
)
