"""An agent that the settings describe: a model, its instructions, tools and MCP servers."""

import os
import re
from collections.abc import Sequence
from typing import Any

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.settings import AgentSettings, McpServerSettings, Settings
from turnwire.tools import McpServer, Toolset


def build_configured(
    wanted: AgentSettings, settings: Settings, tools: Sequence[Any], servers: dict[str, Toolset]
) -> ChatCompletionsAgent:
    """Adds to `servers` what is not there yet: agents share their connections.

    Raises ModelUnusableError, TypeError, ValueError, and ImportError, which says what to install.
    """
    if not (model := wanted.model or settings.model):
        raise ValueError("it has no model; give it one, or all of them with TURNWIRE_MODEL")
    for name in wanted.mcp:
        if name not in servers:
            servers[name] = build_mcp_server(name, settings.mcp_servers[name])
    return ChatCompletionsAgent(
        model,
        instructions=wanted.instructions,
        tools=[*tools, *(servers[name] for name in wanted.mcp)],
        max_steps=wanted.max_steps,
        on_crash=wanted.on_crash,
        base_url=wanted.model_url or settings.model_url,
        api_key=_key_of(wanted, settings),
        api=wanted.model_api or settings.model_api,
        timeout=settings.model_timeout,
        retries=settings.model_retries,
    )


def _key_of(wanted: AgentSettings, settings: Settings) -> str | None:
    if wanted.model_key_env:
        return _expand(f"${{{wanted.model_key_env}}}")
    if wanted.model_url not in (None, settings.model_url):
        return "none"  # What opens one server is not sent to another.
    return settings.model_key.get_secret_value() if settings.model_key else None


def build_mcp_server(name: str, wanted: McpServerSettings) -> McpServer:
    return McpServer(
        name,
        command=wanted.command,
        args=[*map(_expand, wanted.args)],
        env={key: _expand(value.get_secret_value()) for key, value in wanted.env.items()},
        cwd=wanted.cwd,
        url=None if wanted.url is None else _expand(wanted.url),
        headers={key: _expand(value.get_secret_value()) for key, value in wanted.headers.items()},
        tools=wanted.tools,
        prefix=wanted.prefix,
        timeout=wanted.timeout,
        connect_timeout=wanted.connect_timeout,
        needs_approval=wanted.needs_approval,
    )


def _expand(text: str) -> str:
    """The text with the value of the environment variable NAME for each `${NAME}`."""

    def look_up(found: re.Match[str]) -> str:
        if (value := os.environ.get(found[1])) is None:
            raise ValueError(f"the environment variable {found[1]} is not set")
        return value

    return re.sub(r"\$\{(\w+)\}", look_up, text)
