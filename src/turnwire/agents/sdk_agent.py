"""The base of the agents that run an agent of an SDK: the options that all of them have, and how their turns begin."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypedDict, cast

from msgspec.structs import replace
from pydantic import BaseModel

from turnwire.agents.event_queue import EventQueue, run_events
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES
from turnwire.core.log.model_options import SAFE_OPTIONS, chosen_options
from turnwire.core.log.turns import Turn


class SdkAgentOptions(TypedDict, total=False):
    """The options of every agent of an SDK; `SdkAgent` explains them."""

    on_crash: OnCrash
    on_divergence: OnDivergence
    idempotent: Collection[str]
    editable: Collection[str]
    takes_attachments: bool | Sequence[str]
    takes_model_options: bool | Collection[str]


def split_options(options: dict[str, Any]) -> tuple[SdkAgentOptions, dict[str, Any]]:
    """Return the options of `SdkAgent`, and the rest, which are the SDK's."""
    names = SdkAgentOptions.__annotations__
    own = {name: value for name, value in options.items() if name in names}
    return cast("SdkAgentOptions", own), {name: value for name, value in options.items() if name not in names}


class SdkAgent(ABC):
    """A Turnwire agent that runs an agent of an SDK.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"`. `idempotent` names the tools
    that may run again if they break off. If the agent has changed meanwhile, the turn fails, or with
    `on_divergence="continue"` it goes on from its last finished tools. `editable` names the tools whose arguments a
    person may change when approving a call. `takes_attachments` are the media types of files that the model can read.
    `takes_model_options` are the names of the model options that clients may send (see `core.log.model_options`), by
    default all but `instructions`, as far as the agent's model has them; agents that a tool runs do not get them.
    """

    takes_client_tools = True

    def __init__(
        self,
        possible_options: Collection[str] = (),
        *,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
    ) -> None:
        self.on_crash: OnCrash = on_crash
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments
        self.takes_model_options = chosen_options(takes_model_options, possible_options)
        self._idempotent = frozenset(idempotent)
        self._editable = frozenset(editable)

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(partial(self._run, turn))

    @abstractmethod
    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        """Run the SDK's agent for a turn, and put its events into the queue."""

    def _prepare(self, run: RunRecorder, turn: Turn) -> None:
        """Set what the turn's own run gets from the client, and what it has done already."""
        run.client_tools, run.options, run.editable = client_tools(turn.options), turn.model_options, self._editable
        if "response_format" not in self.takes_model_options:
            # The client's schema is the agent's own, which the SDK sends to the model anyway.
            run.options = replace(run.options, response_format=None)
        run.has_text = any(step.role == "assistant" and step.content for step in turn.progress)
        run.has_called = any(step.tool_calls for step in turn.progress)


def function_names(agent: Any, but: tuple[type[Any], ...] = ()) -> Iterator[str]:
    """Yield the names of the functions and tools in an agent's list of tools, without those of the types `but`."""
    tools: Any = getattr(agent, "tools", None)
    for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        if isinstance(name, str) and not isinstance(tool, but):
            yield name


def model_schema(output: Any) -> dict[str, Any] | None:
    """Return the JSON schema of an output type that is a model of pydantic; None for any other."""
    return output.model_json_schema() if isinstance(output, type) and issubclass(output, BaseModel) else None
