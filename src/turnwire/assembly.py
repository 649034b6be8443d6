"""The one place that names concrete classes: which store, which agents, which wires."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from turnwire.agents.demo import demo_agent
from turnwire.agents.generator import GeneratorAgent
from turnwire.core.contracts import Agent, Store, Wire
from turnwire.core.limits import Limits
from turnwire.core.runner import TurnRunner
from turnwire.settings import Settings
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite import SqliteStore
from turnwire.wires.sse_chat import SseChat

StoreKind = Literal["memory", "sqlite"]

SSE_CHAT = SseChat()
WIRES: Mapping[str, Wire] = {wire.name: wire for wire in (SSE_CHAT,)}


def build_store(kind: StoreKind, settings: Settings) -> Store:
    if kind == "memory":
        return MemoryStore(lease=settings.lease)
    return SqliteStore(settings.data, lease=settings.lease)


def build_runner(store: Store, agents: Mapping[str, Agent], settings: Settings) -> TurnRunner:
    limits = Limits(**{name: getattr(settings, name) for name in Limits.__struct_fields__})
    return TurnRunner(store, agents, limits)


def demo() -> Agent:
    return GeneratorAgent(demo_agent)


def as_agent(given: Any) -> Agent:
    """Makes an agent of what a developer has. Raises TypeError, which says what would do."""
    if inspect.isasyncgenfunction(given) or inspect.isasyncgenfunction(getattr(given, "__call__", None)):  # noqa: B004
        return GeneratorAgent(given)
    if callable(getattr(given, "answer", None)):
        return given
    raise TypeError(
        f"{given!r} is not an agent: give an async generator function `async def answer(turn): yield ...` "
        "or an object with such an `answer` method"
    )


def load_agent(reference: str) -> Agent:
    """Imports `module:name`, also from the current folder. Raises ValueError, which says what is wrong."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ValueError(f"{reference!r} is not of the form module:name")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return as_agent(getattr(importlib.import_module(module_name), name))
    except ImportError as error:
        raise ValueError(f"{module_name!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise ValueError(f"{module_name!r} has no {name!r}") from error
    except TypeError as error:
        raise ValueError(str(error)) from error
