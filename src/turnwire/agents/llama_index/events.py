"""Events of a run: text, reasoning and usage of its model calls, its tool calls, and what tools change in its store."""

import asyncio
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from llama_index.core.agent.workflow import ToolCall, ToolCallResult
from llama_index.core.agent.workflow.workflow_events import AgentInput, AgentOutput, AgentSetup, AgentStream
from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.workflow import Event as SdkEvent
from llama_index.core.workflow import StartEvent, StopEvent

from turnwire.agents.agent_paths import Path
from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.log.events import CustomEvent, UsageEvent
from turnwire.tools.invocation import plain

# Events of the SDK whose content the recorded copy of an agent reports itself.
_REPORTED = (AgentInput, AgentOutput, AgentSetup, ToolCall, ToolCallResult, StartEvent, StopEvent)
MAX_PARALLEL_TOOLS = 64
_COMPLETE = ("stop", "tool_calls", "function_call")
# Keys of the store that belong to the SDK, which changes them again when the run is repeated.
_OWN = frozenset(
    {
        *("agents", "can_handoff_to", "current_agent_name", "current_reasoning", "current_tool_calls"),
        *("early_stopping_method", "formatted_input_with_state", "handoff_output_prompt", "max_iterations"),
        *("memory", "next_agent", "num_iterations", "num_tool_calls", "scratchpad", "user_msg_str"),
    }
)


class StoreChanges:
    """The recorder of one run's store: of `state`, and of other keys of the application with plain JSON values."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._changes: ContextChanges | None = None

    async def take(self, store: Any) -> dict[str, Any] | None:
        """Return what has changed since the last call; nothing when it is called first."""
        state: Any = await store.get_state()
        self._values.clear()
        self._values.update((name, value) for name, value in state.items() if name not in _OWN)
        if self._changes is None:
            self._changes = ContextChanges(self._values)
        return self._changes.take()

    async def restore(self, store: Any, recorded: dict[str, Any] | None) -> None:
        """Make recorded changes again."""
        await self.take(store)
        if recorded and self._changes is not None:
            self._changes.restore(recorded)
            for name in recorded["values"]:
                await store.set(name, self._values[name])


class WorkflowListener(RunRecorder):
    """Recorder of one run. `needs_approval` names the tools that a person must approve."""

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__(queue, path, place)
        self.needs_approval: Collection[str] = ()
        self.changes = StoreChanges()
        self._reply = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._call_ids: list[str] = []
        self._missing_calls = 0
        self._all_called = asyncio.Event()

    @contextmanager
    def working(self) -> Generator[None]:
        """Note that the current task makes a call, so that `close` can cancel it."""
        task = asyncio.current_task()
        assert task is not None
        if self._is_closed:
            raise asyncio.CancelledError
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def close(self) -> None:
        """Cancel the calls of a run that has ended: the SDK forgets those that it has begun last."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    # Model calls

    def count_call(self) -> None:
        super().count_call()
        self._reply = ""

    def note_text(self, text: str) -> None:
        super().note_text(text)
        self._reply += text

    def read_result(self, result: Any) -> None:
        """Record the answer of a run, if it was not streamed: of a tool, or of an agent that thinks in its text."""
        text = str(result if result is not None else "")
        if text.strip() != self._reply.strip():
            self.write_reply(text)

    # Tool calls

    def expect_calls(self, call_ids: Sequence[str]) -> None:
        """Note which tools a reply has called."""
        self._call_ids = list(call_ids)
        self.has_called = self.has_called or bool(call_ids)
        self._missing_calls = min(len(call_ids), MAX_PARALLEL_TOOLS)
        self._all_called.clear()

    def in_order(self, results: Sequence[ToolCallResult]) -> list[ToolCallResult]:
        """Return the results of a reply's calls in the order of the calls; the SDK lists them as the calls ended."""
        order = {call_id: index for index, call_id in enumerate(self._call_ids)}
        return sorted(results, key=lambda result: order.get(result.tool_id, len(order)))

    async def announce_call(self, call: ToolCall, *, is_shown: bool = True) -> None:
        """Report a call, and wait for the others of its reply: a turn must not be suspended before all have begun."""
        if is_shown:
            self.begin_call(call.tool_id, call.tool_name, plain(cast("Any", call).tool_kwargs))
            await self.queue.flush()
        self._missing_calls -= 1
        if self._missing_calls <= 0:
            self._all_called.set()
            await asyncio.sleep(0)  # Let the calls that have waited go on first.
        await self._all_called.wait()

    # Events that the application writes to the run's stream

    def read_event(self, event: SdkEvent, *, writes_text: bool) -> None:
        """Record an event of the run's stream. `writes_text` also records its text, for a workflow without agents."""
        match event:
            case AgentStream():
                if writes_text:
                    self.write(event.delta)
            case _ if not isinstance(event, _REPORTED):
                self.put(CustomEvent(type(event).__name__, plain(event.model_dump(mode="json", fallback=str))))
            case _:
                pass


class ReplyReader:
    """Reader of the pieces of one model call: the usage and the finish reason may come with any of them."""

    def __init__(self, listener: WorkflowListener, *, thinks: bool) -> None:
        self._listener = listener
        self._thinks = thinks
        self._has_reasons = False
        self.reason: str | None = None
        self.usage: UsageEvent | None = None

    def read(self, response: ChatResponse) -> None:
        extra: dict[str, Any] = cast("Any", response).additional_kwargs
        self._listener.think(extra.get("thinking_delta"))
        if self._thinks:
            self._listener.think(response.delta)
        else:
            self._listener.write(response.delta or "")
        raw = _mapping(response.raw)
        for choice in raw.get("choices") or ():
            self._has_reasons = True
            self.reason = _mapping(choice).get("finish_reason") or self.reason
        self.usage = _usage(raw) or self.usage

    @property
    def is_complete(self) -> bool:
        """Return False if the server reports finish reasons, and that of this reply is missing or no success."""
        return not self._has_reasons or self.reason in _COMPLETE


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return cast("Any", getattr(value, "__dict__", {}))


def _usage(raw: Mapping[str, Any]) -> UsageEvent | None:
    """Return the usage in a reply of OpenAI's or Anthropic's form."""
    usage = _mapping(raw.get("usage"))
    if not usage:
        return None
    cached = _mapping(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    reasoning = _mapping(usage.get("completion_tokens_details") or usage.get("output_tokens_details"))
    return UsageEvent(
        model=raw.get("model"),
        input_tokens=usage.get("prompt_tokens", usage.get("input_tokens")),
        output_tokens=usage.get("completion_tokens", usage.get("output_tokens")),
        cached_input_tokens=cached.get("cached_tokens") or usage.get("cache_read_input_tokens") or None,
        reasoning_tokens=reasoning.get("reasoning_tokens") or None,
    )
