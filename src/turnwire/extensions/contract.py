"""The contract between an extension and Turnwire: everything that the author of an extension needs to know.

An extension is a class with the five methods of `Extension`. Its other abilities are detected with `isinstance`, from
the protocols that it fits: there is no registration and no flag. No protocol that extensions implement ever gets
another method, because every extension that was written before would cease to fit it.

A channel derives from `Channel`, or from `StreamingChannel` if it shows answers while they are made. Both implement the
lifecycle and all optional methods, so that its author writes `send_to_user` and what the channel does beyond it.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import Logger, getLogger
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable

from msgspec import Struct

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import ShuttingDownError
from turnwire.core.log.files import Blob
from turnwire.extensions.tables import ExtensionTables
from turnwire.tools import Tool

if TYPE_CHECKING:
    from turnwire.extensions.events import EventBus
    from turnwire.extensions.host import ExtensionHost
    from turnwire.extensions.router import MessageRouter

Topic = Literal["user_message", "agent_response"]
Subscriber = Callable[[dict[str, Any]], Awaitable[None]]
OnChunk = Callable[[str], Awaitable[None]]
OnToolCall = Callable[[str], Awaitable[None]]
STOPPED = "(Stopped.)"


class Health(Struct, frozen=True):
    """The health of an extension. `unconfigured` means that a person has to set it up; it is not a failure."""

    state: Literal["running", "degraded", "unconfigured", "failed"]
    message: str = ""
    hint: str = ""


class StreamStep(Struct, frozen=True, kw_only=True):
    """A step of the agent while it answers: a tool, a search, a review, a handoff.

    It is reported when it starts and when it ends, with the same `id`; `progress` may come between.
    """

    id: str
    kind: Literal["tool", "search", "review", "handoff", "status"]
    name: str
    phase: Literal["started", "progress", "finished", "failed"]
    summary: str | None = None
    elapsed_ms: float | None = None
    fraction: float | None = None

    @property
    def line(self) -> str | None:
        """The step as one line, or None if the line would only repeat another."""
        match self.kind, self.phase:
            case "tool", "started":
                return f"Using: {self.name}"
            case "tool", "progress":
                return f"{self.name}: {self.summary}" if self.summary else None
            case _, "failed":
                return f"Failed: {self.name}"
            case "search", "started":
                return f"Searching: {self.summary}"
            case "review", _:
                return f"Reviewed: {self.summary}"
            case "handoff", _:
                return f"Handing over to: {self.name}"
            case "status", _:
                return self.name
            case _:
                return None


class ApprovalAsk(Struct, frozen=True, kw_only=True):
    """A tool call that a person must approve; `turn_id` and `call_id` go back with the decision.

    The same call may be asked about again, at another `position` of the turn's log, for example after it broke off.
    """

    turn_id: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    reason: str | None = None
    position: int = 0


class QuestionAsk(Struct, frozen=True, kw_only=True):
    """A question of a turn to a person; `turn_id` and `question_id` go back with the reply.

    `schema` is the JSON schema of the value, as `core.people.schemas` allows it; None takes any value.
    """

    turn_id: str
    question_id: str
    prompt: str
    schema: Mapping[str, Any] | None = None


class MessageFields(TypedDict, total=False):
    """The optional fields of a message, beside its text and its user."""

    principal: str | None
    """The owner of the turn, by default `<extension_id>:<user_id>`."""
    message_id: str | None
    """The channel's own id: the same id again is the same message, which is answered once."""
    agent_id: str | None
    attachments: Sequence[Blob]
    """Files, which `turnwire.core.log.files.new_blob` makes."""


class MessageReceipt:
    """The receipt of a message that is durable: it will be answered once, by this process or by the next one.

    `message_id` is the channel's own id of the message, or the one that Turnwire has given it.
    """

    def __init__(self, message_id: str, user_id: str, text: str | None = None) -> None:
        self.message_id = message_id
        self.user_id = user_id
        self.text: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # The exception is retrieved here, because the channel may never await the answer.
        self.text.add_done_callback(lambda future: future.cancelled() or future.exception())
        if text is not None:
            self.complete(text)

    async def answer(self) -> str:
        """Wait until the channel has taken the answer, or failed to for the first time, and return the answer's text.

        An answer that fails is a text too, and gives the reason at its end. Cancelling this call does not cancel the
        answer. Raises ShuttingDownError when the answer is left to the next process.
        """
        return await asyncio.shield(self.text)

    def complete(self, text: str) -> None:
        if not self.text.done():
            self.text.set_result(text)

    def fail(self, error: Exception) -> None:
        if not self.text.done():
            self.text.set_exception(error)


class ExtensionContext:
    """The services that Turnwire gives an extension: its configuration, the agents and the other channels.

    `user_id` is the channel's own name for where an answer goes: a chat, a thread, a terminal. `tables` are the
    extension's own tables in the store.
    """

    def __init__(
        self,
        host: "ExtensionHost",
        router: "MessageRouter",
        bus: "EventBus",
        folder: Path,
        tables: ExtensionTables,
    ) -> None:
        self.extension_id = host.id
        self.tables = tables
        self._host = host
        self._router = router
        self._bus = bus
        self._folder = folder

    @property
    def config(self) -> Mapping[str, Any]:
        """The manifest's `config` with the user's settings, validated by the extension's `ConfigModel`."""
        return MappingProxyType(dict(self._host.config))

    @property
    def data_folder(self) -> Path:
        """The extension's own folder, created on first use, that outlives the process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    @property
    def logger(self) -> Logger:
        return getLogger(f"turnwire.extensions.{self.extension_id}")

    def get_config(self, name: str, default: Any = None) -> Any:
        return self._host.config.get(name, default)

    def get_secret(self, env: str) -> str | None:
        """Return the value of an environment variable that the manifest names as a secret. Never log it.

        Raises LookupError if the manifest does not name it, so that people can see what is read.
        """
        if env not in {secret.env for secret in self._host.manifest.secrets}:
            raise LookupError(f"the manifest of {self.extension_id!r} names no secret {env!r}; add it to its secrets")
        return os.environ.get(env) or None

    async def accept(self, text: str, user_id: str, **fields: Unpack[MessageFields]) -> MessageReceipt:
        """Accept a person's message: return as soon as it is durable, without waiting for the agent.

        From then on the source of the message may forget it: the answer comes back to this channel, after a crash too.
        The messages of one `user_id` are answered one after the other. Raises ShuttingDownError if this process does
        not run the channel any more.
        """
        if "channel" in self._host.provides and self.extension_id not in self._router.channels:
            raise ShuttingDownError
        return await self._router.accept(text, user_id, self.extension_id, **fields)

    def current_message(self, user_id: str) -> MessageReceipt | None:
        """Return the receipt of the message whose answer is being delivered to this user, if there is one."""
        return self._router.current_message(self.extension_id, user_id)

    async def handle_user_message(self, text: str, user_id: str, **fields: Unpack[MessageFields]) -> str:
        """Accept a person's message, wait for the answer and return its text: `accept` and `answer` in one call."""
        return await (await self.accept(text, user_id, **fields)).answer()

    async def cancel(self, user_id: str) -> bool:
        """Cancel the answer to this user, and those that wait behind it. Return False if there was none."""
        return await self._router.cancel(self.extension_id, user_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        """Record the decision on an `ApprovalAsk`. Raises TurnwireError if it can no longer be decided."""
        await self._router.runner.decide(turn_id, call_id, approved=approved, by=by, reason=reason)

    async def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        by: str,
        declined: bool = False,
        reason: str | None = None,
    ) -> None:
        """Record the reply to a `QuestionAsk`; the same reply again changes nothing.

        Raises InvalidReplyError if the value does not fit the schema, and another TurnwireError if the question can no
        longer be answered.
        """
        await self._router.runner.reply(turn_id, question_id, value, declined=declined, reason=reason, by=by)

    async def new_session(self, user_id: str) -> None:
        """Start a new conversation with this user's next message."""
        await self._router.new_session(self.extension_id, user_id)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        """Run the agent on the extension's own behalf and return its answer. Raises AgentError."""
        return await self._router.invoke_agent(prompt, agent_id, owner=self.extension_id)

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: OnChunk, on_tool_call: OnToolCall | None = None, agent_id: str | None = None
    ) -> str:
        """Run the agent like `invoke_agent`, and pass on the answer while it is made. Return the whole answer."""
        owner = self.extension_id
        return await self._router.invoke_agent_streamed(prompt, on_chunk, on_tool_call, agent_id, owner=owner)

    async def speak_to_user(self, channel_id: str, user_id: str, prompt: str, **fields: Unpack[MessageFields]) -> str:
        """Run the agent in a user's conversation on another extension's channel, and return the answer's text.

        The channel shows the answer while it is written, if it can, and gets it at least once, after a crash too.
        Raises LookupError if there is no such channel.
        """
        return await self._router.handle_user_message(prompt, user_id, channel_id, **fields)

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        """Send a message through another extension's channel. Raises LookupError if there is no such channel."""
        await self._router.channel(channel_id).send_to_user(user_id, message)

    async def send_message(self, channel_id: str, message: str) -> None:
        """Send a message to the default recipient of a channel. Raises LookupError if there is no such channel."""
        await self._router.channel(channel_id).send_message(message)

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        """Call `subscriber` for every event of the topic, at least once each, including those before a crash.

        To be called in `initialize`.
        """
        self._bus.subscribe(self.extension_id, topic, subscriber)


@runtime_checkable
class Extension(Protocol):
    """The lifecycle that every extension implements."""

    async def initialize(self, context: ExtensionContext) -> None:
        """Read the configuration, and subscribe to events. Must not do anything else yet."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Stop; `start` may be called again."""
        ...

    async def destroy(self) -> None: ...

    async def health_check(self) -> Health: ...


@runtime_checkable
class ChannelProvider(Protocol):
    """A channel: a way to bring messages to people. `Channel` has the promises of the methods."""

    async def send_to_user(self, user_id: str, message: str) -> None: ...

    async def send_message(self, message: str) -> None: ...


@runtime_checkable
class StreamingChannelProvider(Protocol):
    """A channel that shows answers while they are made. `StreamingChannel` has the promises of the methods."""

    async def on_stream_start(self, user_id: str) -> None: ...

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None: ...

    async def on_stream_status(self, user_id: str, status: str) -> None: ...

    async def on_stream_end(self, user_id: str, full_text: str) -> None: ...


@runtime_checkable
class ToolProvider(Protocol):
    def get_tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class ServiceProvider(Protocol):
    async def run_background(self) -> None:
        """Run until it is cancelled. A run that fails is started again, after a delay."""
        ...


@runtime_checkable
class ContextProvider(Protocol):
    async def get_context(self, prompt: str, agent_id: str | None) -> str | None:
        """Return what the agent should know beside the prompt, or None."""
        ...


@runtime_checkable
class AgentProvider(Protocol):
    def get_agents(self) -> Mapping[str, Any]:
        """Return agents by name: anything that Turnwire can make an agent of."""
        ...


PROTOCOLS: dict[str, type] = {
    "channel": ChannelProvider,
    "streaming_channel": StreamingChannelProvider,
    "tools": ToolProvider,
    "service": ServiceProvider,
    "context": ContextProvider,
    "agents": AgentProvider,
}
"""The protocols by their names in a manifest's `provides`."""


class Channel(ABC):
    """The base class of a channel that gets whole answers.

    Its author does two things:

    1. Bring messages in: call `await self.context.accept(text, user_id, message_id=...)` for each message of a person,
       for example in `run_background`. When it returns, the message is durable, and its source may forget it.
    2. Take answers: implement `send_to_user`. Return when the answer is with the person, or durable in the channel. If
       it raises, Turnwire tries again, also after a restart, so an answer may come twice. The channel can recognize it
       by the id of the message that is being answered, which `self.context.current_message(user_id)` has.

    Everything else is optional: each method below has a default that does nothing, or something simple.
    """

    on_busy: OnBusy = "enqueue"
    """What happens to a message of somebody who is being answered: `enqueue`, `steer`, `collect` or `interrupt`.

    The message of a turn that was joined has no answer of its own.
    """
    context: ExtensionContext
    """Set by `initialize`."""

    async def initialize(self, context: ExtensionContext) -> None:
        self.context = context

    async def start(self) -> None:
        """Open connections. Messages may be accepted from now on."""

    async def stop(self) -> None:
        """Close what `start` has opened; `start` may be called again."""

    async def destroy(self) -> None:
        """Release what outlives `stop`."""

    async def health_check(self) -> Health:
        return Health("running")

    @abstractmethod
    async def send_to_user(self, user_id: str, message: str) -> None:
        """Deliver a whole answer. It may be long, and it is Markdown."""

    async def send_message(self, message: str) -> None:
        """Deliver a message to the channel's default recipient. Raises LookupError if there is none."""
        raise LookupError("the channel has no default recipient")

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        """Ask the person about a tool call, and return True. `context.decide` takes the decision.

        If it returns False, the person sees a line that says that the agent waits.
        """
        return False

    async def on_question(self, user_id: str, ask: QuestionAsk) -> bool:
        """Show the question, and return True; `context.reply` takes the reply. It may come again after a crash.

        If it returns False, the person sees the question as a line.
        """
        return False

    async def on_question_closed(self, user_id: str, ask: QuestionAsk) -> None:
        """Take the question back: it was answered, here or elsewhere, or its turn has ended. It may not be known."""

    async def wait_for_delivery(self, user_id: str) -> None:
        """Return when every answer that was taken for this user has been posted, however long that takes.

        It is called before the next answer to the same user, so a channel that posts later needs no queue of its own.
        """


class StreamingChannel(Channel):
    """The base class of a channel that shows answers while they are made; it fits `StreamingChannelProvider`.

    The calls of one answer are `on_stream_start`, then chunks and steps in order, then one of `on_stream_end` and
    `on_stream_cancel`. They are never made for two answers to the same `user_id` at once. `send_to_user` gets answers
    that were complete before, such as those from before a restart, and those whose `on_stream_end` has failed.
    """

    async def on_stream_start(self, user_id: str) -> None:
        """Show that an answer begins, for example as typing."""

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        """Show a piece of the answer. A slow channel gets fewer and longer pieces."""

    async def on_stream_status(self, user_id: str, status: str) -> None:
        """Show a line about what the agent does now, such as `Using: search`."""

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        """Show a step. The default shows its line as a status."""
        if (line := step.line) is not None:
            await self.on_stream_status(user_id, line)

    async def on_stream_restart(self, user_id: str, text: str) -> bool:
        """Replace everything shown so far by `text`, and return True: the answer was broken off and started again.

        If it returns False, the repeated part appears twice, until the end shows the answer as it is.
        """
        return False

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        """Show the complete answer, or the failed one, which gives the reason at its end."""
        await self.send_to_user(user_id, full_text)

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        """Show the partial text of a cancelled answer. The default ends the answer with a note."""
        await self.on_stream_end(user_id, with_note(full_text, STOPPED))


def with_note(text: str, note: str) -> str:
    """Return the text of an answer with a note at its end."""
    return f"{text}\n\n{note}" if text else note
