"""Whose agent an object is: told by the modules of its classes, so that no SDK is imported to find out."""

import inspect
from importlib import import_module
from typing import Any

from msgspec import Struct

from turnwire.core.contracts import Agent


class Kind(Struct, frozen=True):
    """One SDK: what its agents are instances of, who adapts them, and which extra brings it."""

    says: str
    classes: frozenset[tuple[str, str]]
    adapter: str
    extra: str

    def adapt(self, given: Any) -> Agent:
        """Raises ImportError, which says what to install."""
        module, _, name = self.adapter.partition(":")
        try:
            adapter = getattr(import_module(f"turnwire.agents.{module}"), name)
        except ImportError as error:
            raise ImportError(
                f"{self.says} needs more than is installed: pip install 'turnwire[{self.extra}]'"
            ) from error
        return adapter(given)


KINDS = (
    Kind(
        "an agent of the OpenAI Agents SDK",
        frozenset({("agents", "Agent"), ("agents", "AgentBase")}),
        "openai_agents:OpenAIAgentsAgent",
        "agents",
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
    ),
)


def kind_of(given: Any) -> Kind | None:
    """The SDK that an object is an agent of, if it is one."""
    if inspect.isclass(given):
        return None
    # The package is told by its top name alone: SDKs move their classes between their own modules.
    classes = {(base.__module__.partition(".")[0], base.__name__) for base in type(given).__mro__}
    return next((kind for kind in KINDS if kind.classes & classes), None)


def is_adapter(given: Any) -> bool:
    """Whether it is an agent of an SDK that was wrapped already."""
    adapters = {f"turnwire.agents.{kind.adapter.partition(':')[0]}" for kind in KINDS}
    return any(base.__module__.startswith(tuple(adapters)) for base in type(given).__mro__)
