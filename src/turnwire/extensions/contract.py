"""What an extension is, and what it may ask of Turnwire. All that the author of one needs to know.

An extension is a class with the five methods of `Extension`. What else it can do is told by the other protocols
it fits: no registration, no flag. A protocol here is never given another method, because every extension that was
written before would cease to fit it; a new ability is a new protocol.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import Logger
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from turnwire.tools import Tool

Topic = Literal["user_message", "agent_response"]
Subscriber = Callable[[dict[str, Any]], Awaitable[None]]
OnChunk = Callable[[str], Awaitable[None]]
OnToolCall = Callable[[str], Awaitable[None]]


class Health(Struct, frozen=True):
    """How an extension is. `unconfigured` waits for somebody to set it up; that is not a failure."""

    state: Literal["running", "degraded", "unconfigured", "failed"]
    message: str = ""
    hint: str = ""


class StreamStep(Struct, frozen=True, kw_only=True):
    """Something that the agent does while it answers: a tool, a search, a review, a handoff.

    It is told when it starts and when it ends, with the same `id`; `progress` may come between.
    """

    id: str
    kind: Literal["tool", "search", "review", "handoff", "status"]
    name: str
    phase: Literal["started", "progress", "finished", "failed"]
    summary: str | None = None
    elapsed_ms: float | None = None
    fraction: float | None = None


class ApprovalAsk(Struct, frozen=True, kw_only=True):
    """A tool that may run only if a person says so; `turn_id` and `call_id` go back with the answer.

    A call may be asked about again, at another `position` of the turn's log: it broke off, say.
    """

    turn_id: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    reason: str | None = None
    position: int = 0


class ExtensionContext(Protocol):
    """What an extension is given: its own configuration, and the way to the agents and to other channels.

    `user_id` is the channel's own name for where an answer goes: a chat, a thread, a terminal.
    """

    @property
    def extension_id(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]:
        """The manifest's `config`, with what the user has set; validated by the extension's `ConfigModel`."""
        ...

    @property
    def data_folder(self) -> Path:
        """A folder of its own, made on first use, that outlives the process."""
        ...

    @property
    def logger(self) -> Logger: ...

    def get_config(self, name: str, default: Any = None) -> Any: ...

    def get_secret(self, env: str) -> str | None:
        """The value of one of the environment variables that the manifest names. Never log it."""
        ...

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Brings a person's message to the agent, and the answer back to this channel. Returns the answer's text.

        `principal` is who asks, by default `<extension_id>:<user_id>`. The same `message_id` again is the same
        message: it is answered once, also after a crash. Messages to one `user_id` are answered one after the other.
        """
        ...

    async def cancel(self, user_id: str) -> bool:
        """Stops what is being answered for this user, at once and whatever waits. False if nothing was."""
        ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        """Answers an `ApprovalAsk`. Raises TurnwireError if it cannot be answered any more."""
        ...

    async def new_session(self, user_id: str) -> None:
        """The next message of this user begins a new conversation."""
        ...

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        """Asks the agent on the extension's own behalf. Raises AgentError."""
        ...

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: OnChunk, on_tool_call: OnToolCall | None = None, agent_id: str | None = None
    ) -> str:
        """The same, with the answer as it comes. Returns the whole of it when the run is over."""
        ...

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        """Says something through another extension's channel. Raises LookupError if there is no such channel."""
        ...

    async def send_message(self, channel_id: str, message: str) -> None:
        """The same, to whomever that channel speaks to by default."""
        ...

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        """Is told of what is asked and answered: at least once each, also of what happened before a crash."""
        ...


@runtime_checkable
class Extension(Protocol):
    async def initialize(self, context: ExtensionContext) -> None:
        """Takes its configuration. Must not do anything yet."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Stops; `start` may come again."""
        ...

    async def destroy(self) -> None: ...

    async def health_check(self) -> Health: ...


@runtime_checkable
class ChannelProvider(Protocol):
    async def send_to_user(self, user_id: str, message: str) -> None:
        """Delivers a whole answer. It may be long and Markdown."""
        ...

    async def send_message(self, message: str) -> None:
        """Delivers a message to whomever the channel speaks to by default."""
        ...


@runtime_checkable
class StreamingChannelProvider(Protocol):
    """A channel that shows answers while they are made. It is never called for two answers to a `user_id` at once."""

    async def on_stream_start(self, user_id: str) -> None: ...

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        """A piece of the answer. A channel that is slow gets fewer and longer ones."""
        ...

    async def on_stream_status(self, user_id: str, status: str) -> None:
        """A line about what the agent does now, such as `Using: search`."""
        ...

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        """The answer is complete, or has failed: then its end says why."""
        ...


@runtime_checkable
class CancellableChannel(Protocol):
    """A streaming channel that shows a stopped answer in another way. Called in place of `on_stream_end`."""

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None: ...


@runtime_checkable
class RestartableChannel(Protocol):
    """A streaming channel that can take back what it has shown. To any other, what is said again is said twice, until
    the end tells the answer as it is.
    """

    async def on_stream_restart(self, user_id: str, text: str) -> None:
        """The answer was broken off and is begun again: only `text` still stands of it."""
        ...


@runtime_checkable
class StepChannel(Protocol):
    """A streaming channel that wants steps as they are. Called in place of `on_stream_status`."""

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None: ...


@runtime_checkable
class ApprovalChannel(Protocol):
    """A channel where a person can allow a tool. Without one, the request is told as a status."""

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> None: ...


@runtime_checkable
class ToolProvider(Protocol):
    def get_tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class ServiceProvider(Protocol):
    async def run_background(self) -> None:
        """Runs until it is cancelled. When it fails it is started again, after a while."""
        ...


@runtime_checkable
class ContextProvider(Protocol):
    async def get_context(self, prompt: str, agent_id: str | None) -> str | None:
        """What the agent should know beside the prompt, or None."""
        ...


@runtime_checkable
class AgentProvider(Protocol):
    def get_agents(self) -> Mapping[str, Any]:
        """Agents by name: whatever Turnwire can make an agent of."""
        ...
