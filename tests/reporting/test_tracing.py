"""Tests of spans: names of the conventions, times of the log, and no content by default."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.reporting.http_receiver import run_receiver
from tests.reporting.test_timeline import log
from tests.serving import quick_settings, until
from turnwire import Turn, Turnwire
from turnwire.core.errors import AgentError
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import (
    DoneEvent,
    ReasoningEvent,
    RestartEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.run.runner import TurnRequest
from turnwire.reporting.opentelemetry import export_spans


async def answer(turn: Turn) -> Any:
    yield ReasoningEvent("secret thought")
    yield UsageEvent("planner", 10, 2)
    yield SearchEvent("s1", "started", "documents", "secret query")
    yield SearchEvent("s1", "finished", "documents", "secret query", hits=())
    yield ToolCallEvent("c1", "weather", {"city": "secret city"}, agent_path=("helper",))
    yield ToolResultEvent("c1", "weather", False, "secret result", agent_path=("helper",))
    yield "secret answer"
    yield UsageEvent("writer", 20, 5)
    if turn.message == "fail":
        raise AgentError("secret failure", code="broken")


async def ask(turnwire: Turnwire, message: str) -> tuple[str, str]:
    record = (await turnwire.runner.start(TurnRequest(principal="ann", message=message))).record
    return record.id, record.session_id


async def spans(tmp_path: Path, message: str, **settings: Any) -> tuple[Sequence[ReadableSpan], str, str]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    turnwire = Turnwire(answer, store="memory", settings=quick_settings(tmp_path, **settings), tracer_provider=provider)
    async with turnwire.lifespan():
        turn_id, session_id = await ask(turnwire, message)
        await until(lambda: len(exporter.get_finished_spans()) == 6)
    return exporter.get_finished_spans(), turn_id, session_id


class Exported(NamedTuple):
    """A span with times in ms."""

    name: str
    began_at: int
    ended_at: int
    attributes: dict[str, Any]
    events: list[str]

    @property
    def error(self) -> str | None:
        return self.attributes.get("error.type")


def spans_of(events: list[LoggedEvent], *, content: bool = False) -> list[Exported]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    export_spans(provider.get_tracer("test"), events, content=content)
    return [
        Exported(
            span.name,
            (span.start_time or 0) // 1_000_000,
            (span.end_time or 0) // 1_000_000,
            dict(span.attributes or {}),
            [event.name for event in span.events],
        )
        for span in exporter.get_finished_spans()
    ]


def own_id(span: ReadableSpan) -> int:
    return span.context.span_id if span.context else 0


def parent_id(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent else 0


async def test_turn_is_exported_as_a_tree_of_spans(tmp_path: Path) -> None:
    exported, turn_id, session_id = await spans(tmp_path, "secret message")
    names = [
        "invoke_agent default",
        "chat planner",
        "execute_tool documents",
        "invoke_agent helper",
        "execute_tool weather",
        "chat writer",
    ]
    by_name = {span.name: span for span in exported}
    assert by_name.keys() == set(names)
    root, planner, search, helper, weather, writer = (by_name[name] for name in names)
    assert root.parent is None
    assert [parent_id(span) for span in (planner, search, helper, writer)] == [own_id(root)] * 4
    assert parent_id(weather) == own_id(helper)
    attributes = dict(root.attributes or {})
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert (attributes["gen_ai.conversation.id"], attributes["turnwire.turn.id"]) == (session_id, turn_id)
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (30, 7)
    assert attributes["turnwire.outcome"] == "completed"
    assert attributes["gen_ai.response.time_to_first_chunk"] >= 0  # type: ignore[operator]
    assert dict(planner.attributes or {})["gen_ai.request.model"] == "planner"
    assert (planner.kind, root.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    assert dict(weather.attributes or {})["gen_ai.tool.call.id"] == "c1"
    assert (weather.status.status_code, root.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    for span in exported:
        began, ended = root.start_time or 0, root.end_time or 0
        assert began <= (span.start_time or 0) <= (span.end_time or 0) <= ended
        assert "secret" not in span.to_json()


async def test_telemetry_content_adds_messages_arguments_and_results(tmp_path: Path) -> None:
    exported, _, _ = await spans(tmp_path, "fail", content_in=["spans"])
    attributes = {span.name: dict(span.attributes or {}) for span in exported}
    root, weather = attributes["invoke_agent default"], attributes["execute_tool weather"]
    assert json.loads(str(root["gen_ai.input.messages"]))[0]["parts"][0]["content"] == "fail"
    assert json.loads(str(root["gen_ai.output.messages"]))[0]["parts"][0]["content"] == "secret answer"
    assert json.loads(str(weather["gen_ai.tool.call.arguments"])) == {"city": "secret city"}
    assert json.loads(str(weather["gen_ai.tool.call.result"])) == "secret result"
    assert (root["error.type"], root["turnwire.outcome"]) == ("broken", "failed")
    assert exported[0].status.status_code is StatusCode.ERROR


def test_restart_takes_back_the_answer_and_ends_the_open_steps() -> None:
    events = log(
        (100, TokenEvent("kept ")),
        (200, TokenEvent("lost ")),
        (300, ToolCallEvent("c1", "slow", {})),
        (9_000, RestartEvent(3, "worker_lost")),
        (9_500, ToolCallEvent("c1", "slow", {})),
        (9_600, ToolResultEvent("c1", "slow", True)),
        (9_700, TokenEvent("new")),
        (9_800, UsageEvent("writer", 1, 1)),
        (9_900, DoneEvent("completed", "s", "t")),
    )
    root, lost, repeated, _ = spans_of(events, content=True)
    assert json.loads(root.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "kept new"
    assert root.attributes["gen_ai.response.time_to_first_chunk"] == 0.1
    # The log does not say when the lost worker stopped.
    assert (lost.ended_at - lost.began_at, lost.error) == (0, "cancelled")
    assert root.events == ["turnwire.restarted"]
    assert (repeated.ended_at - repeated.began_at, repeated.error) == (100, None)


def test_model_call_after_a_restart_begins_with_the_restart() -> None:
    events = log(
        (100, TokenEvent("lost")),
        (9_000, RestartEvent(2, "worker_lost")),
        (9_400, TokenEvent("new")),
        (9_800, UsageEvent("writer", 1, 1)),
        (9_900, DoneEvent("completed", "s", "t")),
    )
    _, chat = spans_of(events)
    assert chat.ended_at - chat.began_at == 800
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] == 0.4


def test_copied_steps_of_a_fork_have_no_spans() -> None:
    events = log(
        (100, UsageEvent("planner", 1_000, 1)),
        (200, ToolCallEvent("c1", "slow", {})),
        (300, ToolResultEvent("c1", "slow", True)),
        (400, TokenEvent("kept ")),
        (900, TokenEvent("own")),
        (1_000, UsageEvent("writer", 10, 1)),
        (1_100, DoneEvent("completed", "s", "t")),
    )
    session = log_event(SessionEvent("s", "t", "a", forked_from="t0", forked_at=6), 1, 1)
    session.at = events[0].at
    root, chat = spans_of([session, *events[1:]], content=True)
    assert (root.began_at - session.at, root.ended_at - session.at) == (400, 1_100)
    assert root.attributes["gen_ai.usage.input_tokens"] == chat.attributes["gen_ai.usage.input_tokens"] == 10
    assert (chat.began_at - session.at, chat.name) == (400, "chat writer")
    assert json.loads(root.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == "hi"
    assert json.loads(root.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "kept own"


def test_sub_agent_that_only_writes_is_measured_to_its_last_token() -> None:
    events = log(
        (100, TokenEvent("I ask the helper.")),
        *((1_000 + number, TokenEvent("word ", agent_path=("helper",))) for number in range(500)),
        (2_000, DoneEvent("completed", "s", "t")),
    )
    _, helper = spans_of(events)
    assert (helper.name, helper.ended_at - helper.began_at) == ("invoke_agent helper", 499)


async def test_collector_receives_a_trace_with_the_id_of_the_turn(tmp_path: Path) -> None:
    async with run_receiver() as collector:
        settings = quick_settings(tmp_path, telemetry_url=collector.url)
        turnwire = Turnwire(answer, store="memory", settings=settings)
        async with turnwire.lifespan():
            turn_id, _ = await ask(turnwire, "secret message")
            await until(lambda: len(turnwire.runner.worker.running) == 0)
        # The last spans are sent when the server closes.
        (call,) = await collector.count(1)
    assert (call.path, call.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    sent = ExportTraceServiceRequest.FromString(call.body)
    (of_resource,) = sent.resource_spans
    service = {attribute.key: attribute.value.string_value for attribute in of_resource.resource.attributes}
    assert service["service.name"] == "turnwire"
    assert service["service.instance.id"] == turnwire.runner.worker.id
    received = of_resource.scope_spans[0].spans
    assert len(received) == 6
    assert {span.trace_id for span in received} == {UUID(turn_id).bytes}
    assert b"secret" not in call.body


async def test_turns_without_telemetry_url_are_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert Turnwire(answer, store="memory", settings=quick_settings(tmp_path)).reports.tracing is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    traced = Turnwire(answer, store="memory", settings=quick_settings(tmp_path)).reports.tracing
    assert traced is not None
    await traced.close()
