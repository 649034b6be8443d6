"""Detection of SDK agents by the modules of their classes, so that no SDK is imported to find out."""

import inspect
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from msgspec import Struct

from turnwire.core.contracts import Agent


class Kind(Struct, frozen=True):
    """One SDK: the classes of its agents, the adapter for them, and the extra that installs it.

    `runner` is the module with the hook that records the SDK's runs in agents that are plain functions.
    """

    description: str
    classes: frozenset[tuple[str, str]]
    adapter: str
    extra: str
    runner: str | None = None

    def adapt(self, agent: Any) -> Agent:
        """Wrap an agent of the SDK. Raises ImportError with the pip command for the missing extra."""
        module, _, name = self.adapter.partition(":")
        try:
            adapter = getattr(import_module(f"turnwire.agents.{module}"), name)
        except ImportError as error:
            raise ImportError(
                f"{self.description} needs packages that are not installed: pip install 'turnwire[{self.extra}]'"
            ) from error
        return adapter(agent)


KINDS = (
    Kind(
        "an agent of the OpenAI Agents SDK",
        frozenset({("agents", "Agent"), ("agents", "AgentBase")}),
        "openai_agents:OpenAIAgentsAgent",
        "agents",
        "openai_agents.runner",
    ),
    Kind(
        "a LangChain runnable or LangGraph graph",
        frozenset({("langchain_core", "Runnable"), ("langgraph", "Pregel")}),
        "langgraph:LangGraphAgent",
        "langchain",
    ),
    Kind(
        "an agent of Pydantic AI",
        frozenset({("pydantic_ai", "AbstractAgent"), ("pydantic_ai", "Agent")}),
        "pydantic_ai:PydanticAIAgent",
        "pydantic-ai",
        "pydantic_ai.runner",
    ),
)


def record_loaded_sdks() -> None:
    """Record the runs of the SDKs that are imported already, also in agents that are plain functions."""
    for kind in KINDS:
        if kind.runner is not None and all(package in sys.modules for package, _ in kind.classes):
            # The application may have a package of that name, or not all of the extra.
            with suppress(ImportError):
                import_module(f"turnwire.agents.{kind.runner}").install_runner()


def kind_of(value: Any) -> Kind | None:
    """Return the SDK whose agent the object is, or None."""
    if inspect.isclass(value):
        return None
    # Compare the top-level package only: SDKs move their classes between their own modules.
    classes = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return next((kind for kind in KINDS if kind.classes & classes), None)
