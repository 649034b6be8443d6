"""Objects that may be given as an agent: functions, objects with `answer`, agents of SDKs, and references to them.

SDKs are recognised by the module names of their classes, so that no SDK has to be imported for this.
"""

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args

from turnwire.core.contracts.agents import (
    Agent,
    OnCrash,
    attachment_types,
    description_of,
    starters_of,
    takes_client_tools,
)
from turnwire.core.log.events import Event, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.log.model_options import declared_options, output_schema
from turnwire.core.log.turns import Turn
from turnwire.plugins import AgentKind, Plugin, installed
from turnwire.tools.threads import call_in_thread, iterate_in_thread

logger = logging.getLogger("turnwire.agents")

_CLOSE_SECONDS = 20.0
"""Within this time the factories of agents must have closed."""

# Plain functions

Answer = Callable[[Turn], AsyncIterator[Event | str]]
AnswerFunction = Callable[[Turn], Awaitable[str | None]]
BlockingAnswer = Callable[[Turn], Iterator[Event | str] | str | None]


class WrappedFunction:
    """Base class of the wrappers: the optional attributes of an agent, which the wrapped function may declare."""

    takes_attachments: bool | Sequence[str] = False
    takes_client_tools = False
    takes_model_options: bool | Collection[str] | None = None
    output_schema: dict[str, Any] | None = None
    on_crash: OnCrash = "close"
    repeats: Callable[[str], bool] | None = None
    description: str | None = None
    starters: Sequence[str] = ()


class GeneratorAgent(WrappedFunction):
    """Wrapper of `async def answer(turn): yield ...`, which yields text or events."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return self._answer(turn)


class FunctionAgent(WrappedFunction):
    """Wrapper of `async def answer(turn) -> str | None`. The text may also come from `emit(TokenEvent(...))`."""

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        text = await self._answer(turn)
        if text:
            yield text


class BlockingAgent(WrappedFunction):
    """Wrapper of `def answer(turn)`, which yields or returns its answer.

    It runs in the threads of its turn, so that it may block.
    """

    def __init__(self, answer: BlockingAnswer) -> None:
        self._answer = answer

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        answer = await call_in_thread(self._answer, turn)
        if isinstance(answer, str):
            yield answer
        elif isinstance(answer, Iterator):
            async with aclosing(iterate_in_thread(cast("Iterator[Event | str]", answer))) as items:
                async for item in items:
                    yield item
        elif answer is not None:
            raise TypeError(f"the agent returned {type(answer).__name__}; it has to return text or to yield its answer")


# Objects that only offer LangChain's `astream_events`, such as clients of remote runnables. The runnables and graphs of
# LangChain itself have the adapter `turnwire.agents.langgraph`, which also knows approvals, sub-agents and threads.


StreamEvents = Callable[..., AsyncGenerator[Mapping[str, Any]]]


class StreamEventsAgent:
    """Wrapper of an object with `astream_events(input, version=...)`; the input has the conversation's messages."""

    takes_model_options = False

    def __init__(self, target: Any) -> None:
        self._stream: StreamEvents = target.astream_events

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        messages = [
            {"role": message.role, "content": message.content}
            for message in turn.history
            if message.role in ("user", "assistant") and message.content
        ]
        messages.append({"role": "user", "content": turn.message})
        async with aclosing(self._stream({"messages": messages}, version="v2")) as events:
            async for event in events:
                for piece in _read_streamed(event):
                    yield piece


def _read_streamed(event: Mapping[str, Any]) -> list[Event | str]:
    data: dict[str, Any] = event.get("data") or {}
    call_id, name = str(event.get("run_id", "")), str(event.get("name", ""))
    match event.get("event"):
        case "on_chat_model_stream" | "on_llm_stream":
            text = _chunk_text(data.get("chunk"))
            return [text] if text else []
        case "on_chat_model_end":
            usage: dict[str, Any] = getattr(data.get("output"), "usage_metadata", None) or {}
            return [UsageEvent(name, usage.get("input_tokens"), usage.get("output_tokens"))] if usage else []
        case "on_tool_start":
            args: Any = data.get("input")
            return [
                ToolCallEvent(call_id, name, cast("dict[str, Any]", args) if type(args) is dict else {"input": args})
            ]
        case "on_tool_end":
            return [ToolResultEvent(call_id, name, True, _content(data.get("output")))]
        case "on_tool_error":
            return [ToolResultEvent(call_id, name, False, str(data.get("error", "")))]
        case _:
            return []


def _chunk_text(chunk: Any) -> str:
    """Return the text of a message chunk, whose content may be a list of blocks."""
    content = _content(chunk)
    if isinstance(content, list):
        blocks = cast("list[str | dict[str, Any]]", content)
        return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)
    return content if isinstance(content, str) else ""


def _content(message: Any) -> Any:
    """Return the content of a message; return any other value unchanged."""
    return getattr(message, "content", message)


# Agents of SDKs


def record_loaded_sdks() -> None:
    """Record the runs of the SDKs that are imported already, also in agents that are plain functions."""
    for plugin, kind in _kinds():
        if kind.hook is not None and all(package in sys.modules for package, _ in kind.classes):
            try:
                plugin.load(kind.hook)()
            except ImportError:
                pass  # The application may have its own package of that name, or lack a package of the extra.
            except RuntimeError as error:
                logger.warning("runs in plain functions are not recorded: %s", error)


def kind_of(value: Any) -> tuple[Plugin, AgentKind] | None:
    """Return the plugin and the kind of an SDK's agent; None for any other object."""
    if inspect.isclass(value):
        return None
    # Compare the package only, which may be in a namespace: SDKs move their classes between their own modules.
    bases = [(base.__module__.split("."), base.__name__) for base in type(value).__mro__]
    classes = {(".".join(parts[:depth]), name) for parts, name in bases for depth in (1, 2)}
    return next(((plugin, kind) for plugin, kind in _kinds() if kind.classes & classes), None)


def _kinds() -> Iterator[tuple[Plugin, AgentKind]]:
    return ((plugin, kind) for plugin in installed().values() for kind in plugin.kinds)


# Agents of all kinds


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
        if inspect.isgeneratorfunction(method):
            return _as_declared(BlockingAgent(method), target)
        return _as_declared(FunctionAgent(method), target) if inspect.iscoroutinefunction(method) else target
    if found := kind_of(target):
        plugin, kind = found
        return plugin.load(kind.adapter)(target)
    if _is(inspect.iscoroutinefunction, target):
        return _as_declared(FunctionAgent(target), target)
    if callable(getattr(target, "astream_events", None)):
        return StreamEventsAgent(target)
    if factory := factory_of(target):
        return factory
    if inspect.isroutine(target) or _is(inspect.isgeneratorfunction, target):
        return _as_declared(BlockingAgent(target), target)
    kinds = ", ".join(kind.description for _, kind in _kinds())
    raise TypeError(
        f"{_short_name(target)} is not an agent: give a function `async def answer(turn)` or `def answer(turn)` that"
        f" yields or returns its answer, an object with such an `answer` method, {kinds}, or an @asynccontextmanager"
        " function without arguments that yields one of them"
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
    keyword = "async def" if is_async else "def"
    try:
        inspect.signature(target).bind(None)
    except (TypeError, ValueError):
        return f"{name} cannot be called with a turn: write `{keyword} {target.__name__}(turn)`"
    if not is_async and len(inspect.signature(target).parameters) > 1:
        # An agent may have more parameters with defaults, but they are the best sign of a function that is no agent.
        return f"{name} takes more than a turn: write `def {target.__name__}(turn)`"
    return None


def _short_name(target: Any) -> str:
    if inspect.isroutine(target) or inspect.isclass(target):
        return f"`{target.__qualname__}`"
    return f"an object of type `{type(target).__qualname__}`"


def _as_declared(agent: GeneratorAgent | FunctionAgent | BlockingAgent, target: Any) -> Agent:
    """Copy what a function declares about itself to the agent that wraps it."""
    agent.takes_attachments = attachment_types(target)
    agent.takes_client_tools = takes_client_tools(target)
    agent.takes_model_options = declared_options(target)
    agent.output_schema = output_schema(target)
    agent.on_crash = getattr(target, "on_crash", "close")
    agent.repeats = getattr(target, "repeats", None)
    agent.description, agent.starters = description_of(target), starters_of(target)
    return agent


def _is(kind: Callable[[Any], bool], target: Any) -> bool:
    """Return True if a function, or the `__call__` of an object, is of this kind."""
    return kind(target) or (not inspect.isclass(target) and kind(getattr(target, "__call__", None)))  # noqa: B004


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
    except (ImportError, RuntimeError, TypeError) as error:
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
    missing = object()
    try:
        # The default, because the module itself may fail with an AttributeError.
        found = getattr(import_module(module_name), name, missing)
    except ImportError as error:
        raise ValueError(f"{module_name!r} cannot be imported: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        # The module itself failed, such as a client that finds no key in the environment.
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if frame.filename.startswith(folder)), frames[-1])
        raise ValueError(
            f"{module_name!r} failed at {frame.filename}, line {frame.lineno}: {type(error).__name__}: {error}"
        ) from error
    if found is missing:
        raise ValueError(f"{module_name!r} has no {name!r}")
    return found


class AgentFactory:
    """Stands in for an agent that needs a running event loop: for a checkpointer, an MCP server, a connection pool.

        @asynccontextmanager
        async def make():
            async with AsyncSqliteSaver.from_conn_string("threads.db") as saver:
                yield create_agent(model, checkpointer=saver)

    The server opens the factory on its event loop when the server itself opens, and closes it after everything that
    uses the agent. `make` returns the context manager that yields the agent.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.make = make

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        raise RuntimeError("the agent's factory is not open; open the server first")


def factory_of(target: Any) -> AgentFactory | None:
    """Return the factory if the object is an async context manager, or a function of no arguments that makes one."""
    if inspect.isclass(target):
        return None
    if isinstance(target, AbstractAsyncContextManager):
        manager = cast("AbstractAsyncContextManager[Any]", target)
        return AgentFactory(lambda: manager)
    if not inspect.isasyncgenfunction(getattr(target, "__wrapped__", None)) or inspect.isasyncgenfunction(target):
        return None
    required = [name for name, value in inspect.signature(target).parameters.items() if value.default is value.empty]
    return None if required else AgentFactory(target)


class FactoryAgents:
    """Opens the factories in a mapping of agents, and replaces each factory with the agent that it yields.

    One task opens and closes all of them, because a cancel scope of an MCP client must be left in the task that has
    entered it.
    """

    def __init__(self, agents: MutableMapping[str, Agent]) -> None:
        self.opened: set[str] = set()
        self._agents = agents
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the factories. Raises what they raise, with a note that names the agent."""
        factories = {name: agent for name, agent in self._agents.items() if isinstance(agent, AgentFactory)}
        if not factories:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(factories, opened))
        await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            failed, self._task = self._task, None
            failed.result()

    async def _hold(self, factories: dict[str, AgentFactory], opened: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            for name, factory in factories.items():
                try:
                    agent = as_agent(await stack.enter_async_context(factory.make()))
                    if isinstance(agent, AgentFactory):
                        raise TypeError("a factory must yield an agent, not another factory")
                except Exception as error:
                    error.add_note(f"The agent {name!r} could not be made by its factory.")
                    raise
                self._agents[name] = agent
                self.opened.add(name)
            opened.set_result(None)
            await self._closing.wait()

    async def close(self) -> None:
        """Close the factories, in the reverse order. Raises what they raise, and TimeoutError."""
        self._closing.set()
        if self._task is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._task
