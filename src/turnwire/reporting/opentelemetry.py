"""Spans of ended turns for OpenTelemetry. The only module that imports its SDK, which is the extra `[otel]`.

A trace id is the turn's id without hyphens, unless the host application brings its own provider.

`export_spans` makes the spans from a turn's timeline, with the names of the semantic conventions for generative AI: the
turn and each sub-agent are `invoke_agent` spans, each model call that reported its usage is a `chat`, each tool call
and search an `execute_tool`. Without `content` a span has no message, answer, argument or result.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from uuid import UUID

from msgspec import to_builtins
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
        export_spans(self._tracer, events, content=self._content)

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


_ERRORS = {"failed": "tool_failed", "cancelled": "cancelled", "void": "cancelled"}


def export_spans(tracer: Any, events: Sequence[LoggedEvent], *, content: bool = False) -> None:
    """Export the spans of a turn, parents before children; none if the log lacks its beginning."""
    line = timeline_of(events)
    if not line.turn_id:
        return
    state = fold_events(events).state() if content else None
    spans = _TurnSpans(tracer, line, state)
    root = spans.export_root()
    by_bar: dict[int, Any] = {}
    for bar in line.bars:
        # The steps that a fork shares have spans in the trace of the other turn.
        if bar.position > line.forked_at or bar.ended > line.shared:
            span = spans.export_step(bar, by_bar.get(id(bar.parent), root))
            if span is not None:
                by_bar[id(bar)] = span


class _TurnSpans:
    """Makes the spans of one turn. With its state, they have what was asked, answered, and passed to tools."""

    def __init__(self, tracer: Any, line: Timeline, state: TurnState | None) -> None:
        self._tracer = tracer
        self._line = line
        self._state = state
        self._steps = {(step.kind, step.id): step for step in state.steps} if state is not None else {}

    def export_root(self) -> Any:
        line, state = self._line, self._state
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
        events: list[tuple[str, int, Attributes]] = [
            (f"turnwire.{milestone.name}", milestone.at, {}) for milestone in line.milestones
        ]
        for wait in (bar for bar in line.bars if bar.kind == "wait"):
            about = {"turnwire.wait.id": wait.id}
            events.append(("turnwire.wait.began", wait.began, about))
            if wait.state in ("succeeded", "failed"):
                about = {**about, "turnwire.wait.granted": wait.state == "succeeded"}
                events.append(("turnwire.wait.ended", wait.ended, about))
        error = line.error or line.outcome if line.outcome in ("failed", "interrupted") else None
        time = TimeSpan(line.shared, line.length)
        return self._export(f"invoke_agent {line.agent}", time, attributes, None, error=error, events=events)

    def export_step(self, bar: Bar, parent: Any) -> Any:
        """Export the span of a step, and return it; None for a kind of step that has none."""
        match bar.kind:
            case "agent":
                return self._export(f"invoke_agent {bar.name}", bar, _invoke_agent(bar.name), parent)
            case "model" if bar.usage is not None:
                model = bar.usage.model
                attributes = {
                    "gen_ai.operation.name": "chat",
                    **_PROVIDER,
                    **_usage(bar.usage),
                    "gen_ai.request.model": model,
                    "gen_ai.response.model": model,
                    "gen_ai.response.time_to_first_chunk": _seconds(max(bar.began, self._line.shared), bar.first_words),
                }
                name = "chat" if model is None else f"chat {model}"
                return self._export(name, bar, attributes, parent, kind=SpanKind.CLIENT)
            case "tool" | "search":
                attributes = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": bar.name,
                    "gen_ai.tool.call.id": bar.id,
                    "gen_ai.tool.type": "function" if bar.kind == "tool" else "datastore",
                }
                step = self._steps.get((bar.kind, bar.id))
                if step is not None and bar.state != "void":
                    for name, value in (("arguments", step.args), ("result", step.result)):
                        if value is not None:
                            attributes[f"gen_ai.tool.call.{name}"] = json.dumps(to_builtins(value))
                return self._export(f"execute_tool {bar.name}", bar, attributes, parent, error=_ERRORS.get(bar.state))
            case _:
                return None

    def _export(
        self,
        name: str,
        time: TimeSpan,
        attributes: Attributes,
        parent: Any,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
        events: Sequence[tuple[str, int, Attributes]] = (),
    ) -> Any:
        """Export a span. `error` is a code, never a message; `events` are those inside it, such as a wait."""
        began = max(time.began, self._line.shared)
        known = {key: value for key, value in attributes.items() if value is not None}
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        span = self._tracer.start_span(name, context, kind, known, start_time=self._nanoseconds(began))
        for event, at, about in events:
            span.add_event(event, about, self._nanoseconds(at))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(self._nanoseconds(max(time.ended, began)))
        return span

    def _nanoseconds(self, at: int) -> int:
        return (self._line.accepted_at + at) * 1_000_000


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
