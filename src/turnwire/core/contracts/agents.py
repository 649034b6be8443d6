"""The interface of agents and the capabilities that they declare: for authors of agents."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol, cast

from turnwire.core.log.events import Event
from turnwire.core.log.turns import Message, Turn, TurnRecord

logger = logging.getLogger("turnwire.runner")

OnCrash = Literal["close", "resume"]
OnDivergence = Literal["end", "continue"]


class Agent(Protocol):
    """An agent answers a turn by yielding events; a `str` is a piece of the answer.

    It must not yield `session`, `message` or `done`, which Turnwire writes. It may be cancelled at any await and then
    has a few seconds to clean up. The message of an `AgentError` is shown to the user; of any other exception only the
    class name is.

    Optional attributes:

    - `takes_attachments`: the media types of the files that a message may have, such as `("image/*",
      "application/pdf")`, or True for all. They are described in `turn.attachments`, and `read_file` reads them.
      Without it, a message with files is refused.
    - `takes_client_tools = True`: the tools that the client runs are in `turn.options["client_tools"]`, and the agent
      offers them to its model. Without it, a message with tools is refused. `tool_names`, a collection, has the names
      that the client's tools must not have.
    - `takes_model_options`: the names of the options in `core.log.model_options` that clients may send, or True for
      all. They are in `turn.options` and, typed, in `turn.model_options`; any other is refused. An agent without it
      gets all but `tool_choice` and `response_format`, and decides for itself. `output_schema` is the JSON schema of
      the value that the agent always answers with, as JSON; a client may then ask for that schema.
    - `takes_model = True`: `turn.options["model"]`, if it is there, names the model to use. Without it, a fork with
      another model is refused.
    - `on_crash = "resume"`: when its worker is lost, the agent is called again as if for the first time, and the calls
      that it had finished are answered from the turn's journal (see `core.journal`). Without it, the turn ends as
      interrupted.
    - `on_divergence = "continue"`: an agent that makes other calls than before, because it has changed, is called again
      with the finished tool steps in `turn.progress`. Without it, the turn fails with `diverged`.
    - `repeats(tool) -> bool`: whether a tool call that was interrupted by a crash may run again. Without it, a person
      is asked.
    - `find_problems() -> list[str]`: what is missing, such as a key; it is reported when the server starts.
    - `with_model(address) -> Agent`: the same agent with another model, for evaluations.
    - `description` (text) and `starters` (messages to begin with): shown where a person chooses an agent.
    """

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]: ...


def takes_attachments(agent: object) -> bool:
    return bool(attachment_types(agent))


def attachment_types(agent: object) -> tuple[str, ...]:
    """Return the media types of the files that an agent takes: `*/*` for all, none if it takes no files."""
    types: object = getattr(agent, "takes_attachments", False)
    if types is True:
        return ("*/*",)
    return tuple(cast("Sequence[str]", types)) if isinstance(types, list | tuple) else ()


def takes_client_tools(agent: object) -> bool:
    return getattr(agent, "takes_client_tools", False) is True


def tool_names(agent: object) -> frozenset[str]:
    """Return the names of the agent's own tools, as far as they are known before it runs."""
    return frozenset(getattr(agent, "tool_names", ()))


def takes_model(agent: object) -> bool:
    return getattr(agent, "takes_model", False) is True


def resumes(agent: object) -> bool:
    return getattr(agent, "on_crash", "close") == "resume"


def continues_diverged(agent: object) -> bool:
    return getattr(agent, "on_divergence", "end") == "continue"


def repeats(agent: object, tool: str) -> bool:
    may_repeat: Callable[[str], object] | None = getattr(agent, "repeats", None)
    try:
        return may_repeat is not None and may_repeat(tool) is True
    except Exception:
        # A tool call is repeated only if the agent says that this is harmless.
        logger.exception("the agent's `repeats` failed for tool %s; a person is asked instead", tool)
        return False


def description_of(agent: object) -> str | None:
    text = getattr(agent, "description", None)
    return text if isinstance(text, str) and text else None


def starters_of(agent: object) -> list[str]:
    texts: object = getattr(agent, "starters", ())
    if not isinstance(texts, list | tuple):
        return []
    return [text for text in cast(Sequence[object], texts) if isinstance(text, str)]


def problems_of(agent: object) -> list[str]:
    """Return the problems that an agent reports. If its `find_problems` fails, the server starts all the same."""
    find: Callable[[], list[str]] | None = getattr(agent, "find_problems", None)
    try:
        return [] if find is None else find()
    except Exception:
        logger.exception("an agent's `find_problems` failed")
        return []


class HistorySource(Protocol):
    """The source of the conversation that an agent gets with a turn.

    The conversation fits the configured size and is one that every model provider accepts. Logs are never changed.
    """

    async def recall(self, record: TurnRecord) -> tuple[Message, ...]:
        """Return the messages before this turn. Raises StoreError.

        Runs inside the turn, so it may be cancelled and may `emit()` events.
        """
        ...

    async def close(self) -> None: ...
