"""The settings of MCP."""

from pydantic import Field

from turnwire.settings import PluginSettings


class McpSettings(PluginSettings, env_prefix="TURNWIRE_MCP_"):
    authorization_servers: list[str] = Field(
        default=[],
        description="Issuers of the tokens that your `authenticate` accepts; `/mcp` names them to clients.",
    )
