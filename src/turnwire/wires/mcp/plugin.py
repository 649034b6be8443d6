"""The plugin `mcp`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="mcp",
    description="the agents as tools of an MCP server",
    extra="turnwire[mcp]",
    routes=["turnwire.wires.mcp.routes:routes"],
    settings="turnwire.wires.mcp.settings:McpSettings",
    commands="turnwire.wires.mcp.commands:add_commands",
)
