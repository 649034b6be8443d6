"""Agents described in the settings: a model, its instructions, tools and MCP servers."""

import os
import re
from collections.abc import Sequence
from typing import Any

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.settings import AgentSettings, McpServerSettings, Settings
from turnwire.tools import McpServer, Toolset


def build_configured(
    agent: AgentSettings, settings: Settings, tools: Sequence[Any], servers: dict[str, Toolset]
) -> ChatCompletionsAgent:
    """Build an agent from its settings, and add missing MCP servers to `servers`, which all agents share.

    Raises ModelUnusableError, TypeError, ValueError, and ImportError, which says what to install.
    """
    if not (model := agent.model or settings.model):
        raise ValueError("the agent has no model; set its `model`, or TURNWIRE_MODEL for all agents")
    for name in agent.mcp:
        if name not in servers:
            servers[name] = build_mcp_server(name, settings.mcp_servers[name])
    built = ChatCompletionsAgent(
        model,
        instructions=agent.instructions,
        tools=[*tools, *(servers[name] for name in agent.mcp)],
        max_steps=agent.max_steps,
        on_crash=agent.on_crash,
        on_divergence=agent.on_divergence,
        base_url=agent.model_url or settings.model_url,
        api_key=_model_key(agent, settings),
        api=agent.model_api or settings.model_api,
        timeout=settings.model_timeout,
        retries=settings.model_retries,
    )
    built.description, built.starters = agent.description, agent.starters
    return built


def _model_key(agent: AgentSettings, settings: Settings) -> str | None:
    if agent.model_key_env:
        return _expand(f"${{{agent.model_key_env}}}")
    if agent.model_url not in (None, settings.model_url):
        return "none"  # Never send the key of one server to another.
    return settings.model_key.get_secret_value() if settings.model_key else None


def build_mcp_server(name: str, server: McpServerSettings) -> McpServer:
    return McpServer(
        name,
        command=server.command,
        args=[*map(_expand, server.args)],
        env={key: _expand(value.get_secret_value()) for key, value in server.env.items()},
        cwd=server.cwd,
        url=None if server.url is None else _expand(server.url),
        headers={key: _expand(value.get_secret_value()) for key, value in server.headers.items()},
        tools=server.tools,
        prefix=server.prefix,
        timeout=server.timeout,
        connect_timeout=server.connect_timeout,
        needs_approval=server.needs_approval,
    )


def _expand(text: str) -> str:
    """Replace each `${NAME}` by the value of the environment variable. Raises ValueError if it is not set."""

    def look_up(match: re.Match[str]) -> str:
        if (value := os.environ.get(match[1])) is None:
            raise ValueError(f"the environment variable {match[1]} is not set")
        return value

    return re.sub(r"\$\{(\w+)\}", look_up, text)
