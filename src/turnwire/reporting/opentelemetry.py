"""Sends the spans of ended turns to OpenTelemetry. The only module that knows its SDK, which is an extra, `[otel]`.

A trace has the id of its turn (without the hyphens), so that who has one finds the other; where a host application
brings its own provider, the provider gives the ids.
"""

import asyncio
import os
from importlib.metadata import version
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, Status, StatusCode

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import LogReader
from turnwire.core.follow import read_all
from turnwire.reporting.spans import Span, spans_of

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_CLOSE_SECONDS = 2.0
_VERSION = version("turnwire")
_TRACES_PATH = "/v1/traces"


class TurnIds(RandomIdGenerator):
    """Gives the next trace the id of a turn."""

    def __init__(self) -> None:
        self.turn_id: str | None = None

    def generate_trace_id(self) -> int:
        try:
            return UUID(self.turn_id).int if self.turn_id else super().generate_trace_id()
        except ValueError:
            return super().generate_trace_id()


class Tracing:
    def __init__(self, store: LogReader, provider: Any, *, content: bool, exporter: SpanExporter | None = None) -> None:
        """With the `exporter` of a provider that is ours to close."""
        self._store = store
        self._provider = provider
        self._content = content
        self._exporter = exporter
        self._tracer = provider.get_tracer("turnwire", _VERSION)

    async def tell(self, turn_id: str) -> None:
        """Raises TurnNotFoundError, StoreError."""
        events = [logged async for page in read_all(self._store, turn_id) for logged in page]
        # Reading thousands of events takes a while that no stream should wait for.
        await asyncio.to_thread(self._send, turn_id, events)

    def _send(self, turn_id: str, events: list[LoggedEvent]) -> None:
        ids = getattr(self._provider, "id_generator", None)
        if isinstance(ids, TurnIds):
            ids.turn_id = turn_id
        begun: dict[int, Any] = {}
        for span in spans_of(events, content=self._content):
            begun[id(span)] = self._begin(span, begun.get(id(span.parent)))

    def _begin(self, span: Span, parent: Any) -> Any:
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        made = self._tracer.start_span(
            span.name, context, _KINDS[span.kind], span.attributes, start_time=span.began_at * 1_000_000
        )
        for mark in span.marks:
            made.add_event(mark.name, mark.attributes, mark.at * 1_000_000)
        if span.error is not None:
            made.set_attribute("error.type", span.error)
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.ended_at * 1_000_000)
        return made

    async def close(self) -> None:
        """Sends what is left, if the provider is our own and somebody takes it soon."""
        if self._exporter is None:
            return
        closing = asyncio.create_task(asyncio.to_thread(self._provider.shutdown))
        sent, _ = await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        if not sent:
            self._exporter.shutdown()  # It would try again for a while.
            await closing


def otlp_provider(url: str | None, worker: str) -> tuple[TracerProvider, SpanExporter]:
    """Sends to this address, or, without one, to where the environment variables of OpenTelemetry say."""
    about = {"service.version": _VERSION, "service.instance.id": worker}
    if "OTEL_SERVICE_NAME" not in os.environ:
        about["service.name"] = "turnwire"
    endpoint = None if url is None else url.rstrip("/").removesuffix(_TRACES_PATH) + _TRACES_PATH
    provider = TracerProvider(resource=Resource.create(about), id_generator=TurnIds())
    exporter = OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, exporter
