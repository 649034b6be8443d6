"""Spans of ended turns for OpenTelemetry. The only module that imports its SDK, which is the extra `[otel]`.

A trace id is the turn's id without hyphens, unless the host application brings its own provider.

`spans_of` makes the spans from a turn's timeline, with the names of the semantic conventions for generative AI: the
turn and each sub-agent are `invoke_agent` spans, each model call that reported its usage is a `chat`, each tool call
and search an `execute_tool`. Without `content` a span has no message, answer, argument or result.
"""

import asyncio
import json
import os
from collections.abc import Sequence
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
from turnwire.core.log.events import Usage, UsageEvent
from turnwire.core.log.follow import read_all
from turnwire.core.log.state import fold_events
from turnwire.core.log.turns import TurnState
from turnwire.reporting.timeline import Bar, Timeline, TimeSpan, timeline_of

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_CLOSE_SECONDS = 2.0
_VERSION = version("turnwire")
_TRACES_PATH = "/v1/traces"
# The log does not name the model's provider.
_PROVIDER = {"gen_ai.provider.name": "turnwire"}

Attributes = dict[str, Any]


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
        for event in span.events:
            exported.add_event(event.name, event.attributes, event.at * 1_000_000)
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
    """An event inside a span, such as the beginning of a wait."""

    name: str
    at: int
    attributes: Attributes


class Span(Struct, eq=False):
    """A span with times in ms. `error` is a code, never a message."""

    name: str
    kind: Literal["internal", "client"]
    began_at: int
    ended_at: int
    attributes: Attributes
    parent: "Span | None" = None
    error: str | None = None
    events: list[SpanEvent] = field(default_factory=list[SpanEvent])


_ERRORS = {"failed": "tool_failed", "cancelled": "cancelled", "void": "cancelled"}


def spans_of(events: Sequence[LoggedEvent], *, content: bool = False) -> list[Span]:
    """Return the spans, parents before children; empty if the log lacks its beginning."""
    line = timeline_of(events)
    if not line.turn_id:
        return []
    state = fold_events(events).state() if content else None
    spans = [_root(line, state)]
    by_bar: dict[int, Span] = {}
    for bar in line.bars:
        # The steps that a fork shares have spans in the trace of the other turn.
        if bar.position > line.forked_at or bar.ended > line.shared:
            span = _span(bar, line, by_bar.get(id(bar.parent), spans[0]))
            if span is not None:
                by_bar[id(bar)] = span
                spans.append(span)
    if state is not None:
        _add_contents(line, by_bar, state)
    return spans


def _root(line: Timeline, state: TurnState | None) -> Span:
    attributes = {
        **_invoke_agent(line.agent),
        "gen_ai.conversation.id": line.session_id,
        "turnwire.turn.id": line.turn_id,
        "turnwire.outcome": line.outcome,
        "turnwire.reason": line.reason,
        **(_usage(line.usage) if line.usage is not None else {}),
        "gen_ai.response.time_to_first_chunk": _seconds(line.shared, line.first_words),
    }
    if state is not None:
        attributes["gen_ai.input.messages"] = _messages("user", state.message)
        attributes["gen_ai.output.messages"] = _messages("assistant", state.text)
    root = _new_span(f"invoke_agent {line.agent}", line, TimeSpan(line.shared, line.length), attributes)
    if line.outcome in ("failed", "interrupted"):
        root.error = line.error or line.outcome
    root.events = [SpanEvent(f"turnwire.{mark.name}", line.accepted_at + mark.at, {}) for mark in line.marks]
    for wait in (bar for bar in line.bars if bar.kind == "wait"):
        about = {"turnwire.wait.id": wait.id}
        root.events.append(SpanEvent("turnwire.wait.began", line.accepted_at + wait.began, about))
        if wait.state in ("succeeded", "failed"):
            about = {**about, "turnwire.wait.granted": wait.state == "succeeded"}
            root.events.append(SpanEvent("turnwire.wait.ended", line.accepted_at + wait.ended, about))
    return root


def _span(bar: Bar, line: Timeline, parent: Span) -> Span | None:
    """Return the span of a step; None for a kind of step that has none."""
    match bar.kind:
        case "agent":
            span = _new_span(f"invoke_agent {bar.name}", line, bar, _invoke_agent(bar.name), parent)
        case "model" if bar.usage is not None:
            model = bar.usage.model
            attributes = {
                "gen_ai.operation.name": "chat",
                **_PROVIDER,
                **_usage(bar.usage),
                "gen_ai.request.model": model,
                "gen_ai.response.model": model,
                "gen_ai.response.time_to_first_chunk": _seconds(max(bar.began, line.shared), bar.first_words),
            }
            span = _new_span("chat" if model is None else f"chat {model}", line, bar, attributes, parent)
            span.kind = "client"
        case "tool" | "search":
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": bar.name,
                "gen_ai.tool.call.id": bar.id,
                "gen_ai.tool.type": "function" if bar.kind == "tool" else "datastore",
            }
            span = _new_span(f"execute_tool {bar.name}", line, bar, attributes, parent)
            span.error = _ERRORS.get(bar.state)
        case _:
            return None
    return span


def _new_span(name: str, line: Timeline, time: TimeSpan, attributes: Attributes, parent: Span | None = None) -> Span:
    began, known = max(time.began, line.shared), {key: value for key, value in attributes.items() if value is not None}
    return Span(name, "internal", line.accepted_at + began, line.accepted_at + max(time.ended, began), known, parent)


def _add_contents(line: Timeline, spans: dict[int, Span], state: TurnState) -> None:
    """Add the arguments and results of tools to their spans."""
    steps = {(step.kind, step.id): step for step in state.steps}
    for bar in line.bars:
        span, step = spans.get(id(bar)), steps.get((bar.kind, bar.id))
        if span is not None and step is not None and bar.state != "void":
            for name, value in (("arguments", step.args), ("result", step.result)):
                if value is not None:
                    span.attributes[f"gen_ai.tool.call.{name}"] = json.dumps(to_builtins(value))


def _invoke_agent(name: str) -> Attributes:
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, **_PROVIDER}


def _seconds(began: int, ended: int | None) -> float | None:
    return None if ended is None else max(ended - began, 0) / 1000


def _usage(usage: Usage | UsageEvent) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
