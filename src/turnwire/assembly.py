"""Concrete classes chosen from settings: stores, agents, models, wires and their routes."""

import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.agents.loader import load_agent, load_tool
from turnwire.core.contracts.agents import Agent, HistorySource
from turnwire.core.contracts.stores import BlockingDatabase, Store, StoreOptions
from turnwire.core.contracts.wires import Wire
from turnwire.core.errors import ModelUnusableError, StoreUnusableError
from turnwire.core.log.files import MODEL_FILE_TYPES
from turnwire.core.log.history import TrimmedHistory
from turnwire.core.log.model_options import SAFE_OPTIONS
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.models.configuration import build_model
from turnwire.models.summaries import SummarisedHistory
from turnwire.plugins import Plugin, Reference, installed
from turnwire.reporting.reports import Reports, turn_lines
from turnwire.server.router import AnyRoute
from turnwire.server.services import Services, WireFactory
from turnwire.settings import AgentSettings, McpServerSettings, Settings
from turnwire.tools import McpServer, Tool, Toolset

if TYPE_CHECKING:
    # Extensions and retrieval take a while to load, and a server of another agent does not need them.
    from turnwire.extensions.runtime import ExtensionRuntime
    from turnwire.reporting.opentelemetry import Tracing
    from turnwire.reporting.webhooks import Webhooks
    from turnwire.server.push import PushNotifier
    from turnwire.server.streams.hub import StreamHub
    from turnwire.stores.transfer import TransferSource, TransferTarget

_OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def build_routes() -> list[AnyRoute]:
    """Return the routes of all plugins, for one server."""
    return [
        route for plugin in installed().values() for reference in plugin.routes for route in plugin.load(reference)()
    ]


def build_wires() -> Mapping[str, WireFactory]:
    """Return the wires that a client can choose with `?wire=`."""
    return {name: plugin.load(reference) for plugin in installed().values() for name, reference in plugin.wires.items()}


def build_socket_wires() -> Mapping[str, Callable[[str], Wire]]:
    """Return the wires that only a socket carries, whose messages name their turn; built from the turn's id."""
    return {
        name: plugin.load(reference)
        for plugin in installed().values()
        for name, reference in plugin.socket_wires.items()
    }


def build_plugin_services(services: Services) -> None:
    """Build what plugins run in a server."""
    for name, plugin in installed().items():
        if plugin.service is not None:
            services.plugins[name] = plugin.load(plugin.service)(services)


def build_store(kind: str, settings: Settings) -> Store:
    """Return the store of this kind. Raises StoreUnusableError."""
    plugins = {name: plugin for plugin in installed().values() for name in plugin.stores}
    if kind not in plugins:
        raise StoreUnusableError(kind, f"no such store is installed; there is {', '.join(plugins)}")
    return _load_part(plugins[kind], plugins[kind].stores[kind])(settings, **_store_options(settings))


def _store_options(settings: Settings) -> StoreOptions:
    keeps_outbox = settings.webhook_url is not None
    return StoreOptions(
        lease=settings.lease,
        keeps_outbox=keeps_outbox,
        notes_waits=keeps_outbox and settings.webhook_waiting,
        seal_key=None if settings.seal_key is None else settings.seal_key.get_secret_value().encode(),
    )


def _load_part(plugin: Plugin, reference: Reference) -> Any:
    try:
        return plugin.load(reference)
    except ImportError as error:
        raise StoreUnusableError(plugin.name, str(error)) from error


def _load_only(name: str, part: Callable[[Plugin], Reference | None]) -> Any:
    """Load the part of the first store that declares it. Raises StoreUnusableError."""
    for plugin in installed().values():
        if (reference := part(plugin)) is not None:
            return _load_part(plugin, reference)
    raise StoreUnusableError(name, "no installed store has one")


def build_shared(store: Store, settings: Settings) -> BlockingDatabase | None:
    """Return the database of documents, extensions and secrets, if the store is shared. Raises StoreUnusableError."""
    return open_shared(settings) if store.is_shared and settings.database_url is not None else None


def open_shared(settings: Settings) -> BlockingDatabase:
    """Return the database that processes share, for code that blocks. Raises StoreUnusableError."""
    return _load_only("the shared database", lambda plugin: plugin.database)(settings)


def build_move(settings: Settings) -> "tuple[TransferSource, TransferTarget]":
    """Return the source and the target of a move of everything to a shared store. Raises StoreUnusableError."""
    source = _load_only("the source of a move", lambda plugin: plugin.move_from)(settings)
    target = _load_only("the target of a move", lambda plugin: plugin.move_to)
    return source, target(settings, **_store_options(settings))


def build_reports(store: Store, runner: TurnRunner, settings: Settings, tracer_provider: Any = None) -> Reports:
    """Return the reports of ended turns: log lines, webhooks, spans. Raises ValueError if the extra is missing."""
    lines = turn_lines(store, content="log" in settings.content_in)
    tracing = build_tracing(store, runner.worker.id, settings, tracer_provider)
    return Reports(runner, [lines], build_webhooks(store, settings), tracing)


def build_webhooks(store: Store, settings: Settings) -> "Webhooks | None":
    """Return the webhooks; None if no address is configured."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    from turnwire.reporting.webhooks import Webhooks

    secret, content = settings.webhook_secret.get_secret_value(), "webhooks" in settings.content_in
    return Webhooks(store, settings.webhook_url, secret, content=content, waiting=settings.webhook_waiting)


def build_push(store: Store, runner: TurnRunner, streams: "StreamHub", settings: Settings) -> "PushNotifier | None":
    """Return the notifier of browsers; None if it is not configured. Raises ValueError if the extra is missing."""
    if settings.push_contact is None:
        return None
    try:
        from turnwire.server.push import PushNotifier
    except ImportError as error:
        raise ValueError("push_contact needs an extra: pip install 'turnwire[push]'") from error
    notifier = PushNotifier(store, streams, settings.push_contact, settings.brand_name)
    runner.on_settled.append(notifier.notify)
    return notifier


def build_tracing(store: Store, worker: str, settings: Settings, provider: Any = None) -> "Tracing | None":
    """Return the tracing of ended turns; None without a provider or an address in the settings or the environment.

    Raises ValueError if the extra is missing.
    """
    has_address = settings.telemetry_url or any(map(os.environ.get, _OTLP_VARIABLES))
    if provider is None and not has_address:
        return None
    try:
        from turnwire.reporting.opentelemetry import Tracing, otlp_provider
    except ImportError as error:
        if provider is None and settings.telemetry_url is None:
            return None  # The variables may be meant only for the agents.
        raise ValueError("spans need an extra: pip install 'turnwire[otel]'") from error
    exporter = None
    if provider is None:
        provider, exporter = otlp_provider(settings.telemetry_url, worker)
    return Tracing(store, provider, content="spans" in settings.content_in, exporter=exporter)


def build_runner(store: Store, agents: Mapping[str, Agent], settings: Settings, *, spreads: bool = False) -> TurnRunner:
    """Return the runner of these agents. Raises ModelUnusableError."""
    names = [name for name in Limits.__struct_fields__ if name in Settings.model_fields]
    limits = Limits(**{name: getattr(settings, name) for name in names})
    return TurnRunner(store, agents, limits, build_history(store, settings), spreads=spreads)


def build_history(store: Store, settings: Settings) -> HistorySource:
    """Return the source of the history of turns. Raises ModelUnusableError."""
    if settings.compaction == "trim":
        return TrimmedHistory(store, settings.history_turns, settings.history_tokens)
    model = build_model(settings)
    if model is None:
        raise ModelUnusableError("`compaction` is `summarise`, which needs one; set `model`, or `compaction` to `trim`")
    return SummarisedHistory(store, model, settings.history_turns, settings.history_tokens)


def build_extensions(
    store: Store,
    runner: TurnRunner,
    folders: Sequence[Path],
    settings: Settings,
    *,
    leads: bool = True,
) -> "ExtensionRuntime":
    """Return the runtime of the extensions in these folders, and of the installed ones."""
    from turnwire.extensions.calls import ExtensionLimits
    from turnwire.extensions.runtime import ExtensionRuntime

    names = [name for name in ExtensionLimits.__struct_fields__ if name in Settings.model_fields]
    limits = ExtensionLimits(**{name: getattr(settings, name) for name in names})
    return ExtensionRuntime(
        store,
        runner,
        [*folders, *settings.extensions],
        settings.data,
        limits=limits,
        allowed=settings.allowed_extensions,
        lease=settings.lease,
        leads=leads,
    )


def offer_tools(agents: Mapping[str, Agent], tools: Sequence[Tool]) -> None:
    """Add tools to our own agents, which are the only ones that can take more. An agent's own tools come first."""
    for agent in agents.values():
        if isinstance(agent, ChatCompletionsAgent):
            for tool in tools:
                agent.tools.setdefault(tool.name, tool)


def build_agents(settings: Settings, taken: Container[str] = ()) -> dict[str, Agent]:
    """Return the agents of the settings whose names are not taken. Raises ValueError, which says what is wrong."""
    servers: dict[str, Toolset] = {}

    def build_agent(configured: AgentSettings) -> Agent:
        return build_configured(configured, settings, [*map(load_tool, configured.tools)], servers)

    agents: dict[str, Agent] = {}
    for name, configured in settings.agents.items():
        if name in taken:
            continue
        try:
            agents[name] = load_agent(configured) if isinstance(configured, str) else build_agent(configured)
        except (ImportError, ModelUnusableError, TypeError, ValueError) as error:
            raise ValueError(f"the agent {name!r} of the settings cannot be made: {error}") from error
    return agents


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
        takes_attachments=MODEL_FILE_TYPES if agent.takes_attachments is None else agent.takes_attachments,
        takes_model_options=SAFE_OPTIONS if agent.takes_model_options is None else agent.takes_model_options,
        base_url=agent.model_url or settings.model_url,
        api_key=_model_key(agent, settings),
        api=agent.model_api or settings.model_api,
        timeout=settings.model_timeout,
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
