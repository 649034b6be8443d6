"""Spans of ended turns for OpenTelemetry. The only module that imports its SDK, which is the extra `[otel]`.

A trace id is the turn's id without hyphens, unless the host application brings its own provider.

`spans_of` is a pure function of a log, with the names of the semantic conventions for generative AI: the turn and each
sub-agent are `invoke_agent` spans, each model call that reported its usage is a `chat`, each tool call and search an
`execute_tool`. The log has no start of a model call: a `chat` span begins where the step before it ended. Without
`content` a span has no message, answer, argument or result.
"""

import asyncio
import json
import os
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct, field, to_builtins
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, Status, StatusCode

from turnwire.core.contracts.stores import LogReader
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    MessageEvent,
    ReasoningEvent,
    RestartEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.follow import read_all
from turnwire.core.log.state import add_usage

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_CLOSE_SECONDS = 2.0
_VERSION = version("turnwire")
_TRACES_PATH = "/v1/traces"
# The log does not name the model's provider.
_PROVIDER = {"gen_ai.provider.name": "turnwire"}

Attributes = dict[str, Any]
Path = tuple[str, ...]


class TurnIdGenerator(RandomIdGenerator):
    """Makes the id of the current turn the id of the next trace."""

    def __init__(self) -> None:
        self.turn_id: str | None = None

    def generate_trace_id(self) -> int:
        try:
            return UUID(self.turn_id).int if self.turn_id else super().generate_trace_id()
        except ValueError:
            return super().generate_trace_id()


class Tracing:
    """Reads the log of an ended turn and exports its spans."""

    def __init__(self, store: LogReader, provider: Any, *, content: bool, exporter: SpanExporter | None = None) -> None:
        """`exporter` is that of a provider which this object owns and closes."""
        self._store = store
        self._provider = provider
        self._content = content
        self._exporter = exporter
        self._tracer = provider.get_tracer("turnwire", _VERSION)

    async def report(self, turn_id: str) -> None:
        """Export the turn's spans. Raise TurnNotFoundError, StoreError."""
        events = [logged async for page in read_all(self._store, turn_id) for logged in page]
        # In a thread, because decoding thousands of events would block the streams.
        await asyncio.to_thread(self._export, turn_id, events)

    def _export(self, turn_id: str, events: list[LoggedEvent]) -> None:
        ids = getattr(self._provider, "id_generator", None)
        if isinstance(ids, TurnIdGenerator):
            ids.turn_id = turn_id
        exported: dict[int, Any] = {}
        for span in spans_of(events, content=self._content):
            exported[id(span)] = self._export_span(span, exported.get(id(span.parent)))

    def _export_span(self, span: "Span", parent: Any) -> Any:
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        exported = self._tracer.start_span(
            span.name, context, _KINDS[span.kind], span.attributes, start_time=span.began_at * 1_000_000
        )
        for mark in span.marks:
            exported.add_event(mark.name, mark.attributes, mark.at * 1_000_000)
        if span.error is not None:
            exported.set_attribute("error.type", span.error)
            exported.set_status(Status(StatusCode.ERROR, span.error))
        exported.end(span.ended_at * 1_000_000)
        return exported

    async def close(self) -> None:
        """Export the remaining spans within a short time, if the provider is owned."""
        if self._exporter is None:
            return
        closing = asyncio.create_task(asyncio.to_thread(self._provider.shutdown))
        sent, _ = await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        if not sent:
            self._exporter.shutdown()  # Ends the exporter's retries.
            await closing


def otlp_provider(url: str | None, worker: str) -> tuple[TracerProvider, SpanExporter]:
    """Return a provider that exports to the URL, or to the target in OpenTelemetry's environment variables."""
    attributes = {"service.version": _VERSION, "service.instance.id": worker}
    if "OTEL_SERVICE_NAME" not in os.environ:
        attributes["service.name"] = "turnwire"
    endpoint = None if url is None else url.rstrip("/").removesuffix(_TRACES_PATH) + _TRACES_PATH
    provider = TracerProvider(resource=Resource.create(attributes), id_generator=TurnIdGenerator())
    exporter = OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, exporter


# The spans of a log.


class SpanEvent(Struct):
    """An event inside a span, such as an approval."""

    name: str
    at: int
    attributes: Attributes


class Span(Struct, eq=False):
    """A span with times in ms. `error` is a code, never a message."""

    name: str
    kind: Literal["internal", "client"]
    began_at: int
    attributes: Attributes
    parent: "Span | None" = None
    ended_at: int = 0
    error: str | None = None
    marks: list[SpanEvent] = field(default_factory=list[SpanEvent])


def spans_of(events: Iterable[LoggedEvent], *, content: bool = False) -> list[Span]:
    """Return the spans, parents before children; empty if the log lacks its beginning."""
    builder = _SpanBuilder(content)
    for logged in events:
        builder.add(logged)
    return builder.build()


class _SpanBuilder:
    """Folds a log into spans, event by event."""

    def __init__(self, content: bool) -> None:
        self._content = content
        self._spans: list[Span] = []
        self._agents: dict[Path, Span] = {}
        self._open: dict[str, Span] = {}
        self._resumed_at: dict[Path, int] = {}
        """When each agent's model may have started: after the step that it waited for."""
        self._first_words: dict[Path, int] = {}
        self._answer: list[tuple[int, str]] = []
        """The tokens of the answer, each with its position."""
        self._usage: Usage | None = None
        self._error: str | None = None
        self._last_at = 0
        self._copied_until = 0

    def add(self, logged: LoggedEvent) -> None:
        self._last_at = logged.at
        if not self._spans:
            self._begin(logged)
            return
        if logged.position <= self._copied_until:
            self._copy(logged)
            return
        if not self._content and () in self._first_words and _is_token_of_answer(logged):
            return  # Most events are later tokens of the answer, which change nothing.
        event, at = logged.event, logged.at
        span = self._agent(event.agent_path, at)
        match event:
            case MessageEvent():
                self._take_message(event)
            case TokenEvent() | ReasoningEvent():
                self._first_words.setdefault(event.agent_path, at)
                if isinstance(event, TokenEvent) and not event.agent_path:
                    self._answer.append((logged.position, event.content))
            case UsageEvent():
                self._chat(event, span, at)
            case ToolCallEvent():
                self._call(event.call_id, event.tool, "function", span, at)
                self._write(event.call_id, "arguments", event.args)
            case ToolResultEvent():
                if event.call_id not in self._open:
                    self._call(event.call_id, event.tool, "function", span, at - int(event.ms or 0))
                self._write(event.call_id, "result", event.result)
                self._return(event.call_id, event.agent_path, at, event.success)
            case SearchEvent(phase="started"):
                self._call(event.step_id, event.tool, "datastore", span, at)
                self._write(event.step_id, "arguments", {"query": event.query})
            case SearchEvent():
                if event.step_id not in self._open:
                    self._call(event.step_id, event.tool, "datastore", span, at - int(event.ms or 0))
                self._write(event.step_id, "result", to_builtins(event.hits))
                self._return(event.step_id, event.agent_path, at, event.phase == "finished")
            case ApprovalRequestEvent():
                self._mark("turnwire.approval.requested", at, {"gen_ai.tool.call.id": event.call_id})
            case ApprovalResponseEvent():
                decision = {"gen_ai.tool.call.id": event.call_id, "turnwire.approved": event.approved}
                self._mark("turnwire.approval.decided", at, decision)
                self._resumed_at[event.agent_path] = at
            case RestartEvent():
                self._restart(event, at)
            case ErrorEvent():
                self._error = event.code
            case DoneEvent():
                self._end(event)
            case _:
                pass

    @property
    def _root(self) -> Span:
        return self._spans[0]

    def _begin(self, logged: LoggedEvent) -> None:
        event = logged.event
        if not isinstance(event, SessionEvent):
            return
        root = self._invoke(event.agent, None, logged.at)
        root.attributes |= {"gen_ai.conversation.id": event.session_id, "turnwire.turn.id": event.turn_id}
        self._agents[()] = root
        self._copied_until = event.forked_at or 0

    def _copy(self, logged: LoggedEvent) -> None:
        """Take over the texts of an event that a fork shares; its steps have spans in the trace of the other turn."""
        self._root.began_at = logged.at
        if not self._content:
            return
        event = logged.event
        if isinstance(event, MessageEvent):
            self._take_message(event)
        elif isinstance(event, TokenEvent) and not event.agent_path:
            self._answer.append((logged.position, event.content))

    def _take_message(self, event: MessageEvent) -> None:
        if self._content:
            self._root.attributes["gen_ai.input.messages"] = _messages("user", event.content)

    def _invoke(self, name: str, parent: Span | None, at: int) -> Span:
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, **_PROVIDER}
        span = Span(f"invoke_agent {name}", "internal", at, attributes, parent)
        self._spans.append(span)
        return span

    def _agent(self, path: Path, at: int) -> Span:
        """Return the span of an agent, extended to `at`; create it and its parents if needed."""
        for length in range(len(path) + 1):
            part = path[:length]
            if part not in self._agents:
                self._agents[part] = self._invoke(part[-1], self._agents[part[:-1]], at)
            self._agents[part].ended_at = at
        return self._agents[path]

    def _chat(self, event: UsageEvent, parent: Span, at: int) -> None:
        path = event.agent_path
        began = self._resumed_at.get(path, parent.began_at)
        attributes: Attributes = {"gen_ai.operation.name": "chat", **_PROVIDER, **_usage(event)}
        if event.model is not None:
            attributes |= {"gen_ai.request.model": event.model, "gen_ai.response.model": event.model}
        self._time_first_chunk()
        if (first := self._first_words.pop(path, None)) is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = max(first - began, 0) / 1000
        name = "chat" if event.model is None else f"chat {event.model}"
        self._spans.append(Span(name, "client", began, attributes, parent, ended_at=at))
        self._usage = add_usage(self._usage, event)
        self._resumed_at[path] = at

    def _call(self, call_id: str, tool: str, kind: str, parent: Span, at: int) -> None:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": kind,
        }
        self._open[call_id] = Span(f"execute_tool {tool}", "internal", at, attributes, parent)
        self._spans.append(self._open[call_id])

    def _write(self, call_id: str, field: str, value: Any) -> None:
        if self._content and value is not None:
            self._open[call_id].attributes[f"gen_ai.tool.call.{field}"] = json.dumps(value)

    def _return(self, call_id: str, path: Path, at: int, success: bool) -> None:
        span = self._open.pop(call_id)
        span.ended_at, span.error = at, None if success else "tool_failed"
        self._resumed_at[path] = at

    def _mark(self, name: str, at: int, attributes: Attributes) -> None:
        self._root.marks.append(SpanEvent(name, at, attributes))

    def _restart(self, event: RestartEvent, at: int) -> None:
        """Take back the text after the position, and end the open steps: the agent takes them again from here."""
        self._mark("turnwire.restarted", at, {"turnwire.from_position": event.from_position})
        self._cancel_open(at)
        self._time_first_chunk()
        self._first_words.clear()
        self._resumed_at = dict.fromkeys(self._agents, at)
        self._answer = [(position, text) for position, text in self._answer if position <= event.from_position]

    def _cancel_open(self, at: int) -> None:
        for span in self._open.values():
            span.ended_at, span.error = at, "cancelled"
        self._open.clear()

    def _time_first_chunk(self) -> None:
        """Write the time to the turn's first words, unless earlier ones were written."""
        if (first := self._first_words.get(())) is not None:
            seconds = (first - self._root.began_at) / 1000
            self._root.attributes.setdefault("gen_ai.response.time_to_first_chunk", seconds)

    def _end(self, event: DoneEvent) -> None:
        attributes = self._root.attributes
        attributes["turnwire.outcome"] = event.outcome
        if event.reason is not None:
            attributes["turnwire.reason"] = event.reason
        if self._usage is not None:
            attributes |= _usage(self._usage)
        self._time_first_chunk()
        if self._content:
            answer = "".join(text for _, text in self._answer)
            attributes["gen_ai.output.messages"] = _messages("assistant", answer)
        if event.outcome in ("failed", "interrupted"):
            self._root.error = self._error or event.outcome

    def build(self) -> list[Span]:
        self._cancel_open(self._last_at)  # Steps without a result ended with the turn.
        for span in self._spans:
            span.ended_at = max(span.ended_at, span.began_at)
        if self._spans:
            self._root.ended_at = self._last_at
        return self._spans


def _is_token_of_answer(logged: LoggedEvent) -> bool:
    """Return True for a token that no sub-agent wrote, without decoding it."""
    return logged.type == "token" and b'"agent_path":' not in logged.body


def _usage(usage: Usage | UsageEvent) -> Attributes:
    attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
