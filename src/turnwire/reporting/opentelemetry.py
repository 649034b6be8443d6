"""Export of ended turns' spans to OpenTelemetry. The only module that imports its SDK, which is the extra `[otel]`.

A trace id is the turn's id without hyphens, unless the host application brings its own provider.
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

    def _export_span(self, span: Span, parent: Any) -> Any:
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
