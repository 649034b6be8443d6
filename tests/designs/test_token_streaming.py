"""The design "Real token-by-token streaming"."""

import asyncio
import inspect
import json

import pytest

from tests.designs.conftest import Serve
from tests.retrieval.shelf import GREEN, KEY, READY, MakeModel, collect, judges, prompt, searches, synthesise
from tests.scripted_model import ScriptedModel, breaks, says
from tests.server.text_client import ask, phases
from tests.serving import within
from turnwire.core import metrics
from turnwire.core.log.events import ResponseEvent
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval import synthesis
from turnwire.retrieval.collection import collect_evidence
from turnwire.retrieval.evidence import RetrievalResult
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.synthesis import stream_synthesis


@pytest.fixture
async def result(searcher: Searcher) -> RetrievalResult:
    return (await collect(GREEN, searcher)).result


def test_retrieval_and_synthesis_are_two_functions() -> None:
    """Decision: the two phases, and their signatures."""
    assert inspect.iscoroutinefunction(collect_evidence)
    assert inspect.isasyncgenfunction(stream_synthesis)
    assert next(iter(inspect.signature(stream_synthesis).parameters)) == "result"


def test_retrieval_result_has_evidence_and_citations(result: RetrievalResult) -> None:
    """Decision, phase 2: what synthesis receives."""
    assert result.evidence
    assert len(result.citations) == len(result.evidence)


async def test_text_of_the_model_that_searches_is_discarded(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    """Decision, phase 1: the agent loop, and the manual fallback when it calls no tool."""
    model_server.plan(searches("green tea"), says("My own answer."), judges())
    found = await collect(GREEN, searcher, model=model)
    assert found.queries == ["green tea"]
    model_server.plan(says("Directly."), judges())
    assert (await collect(GREEN, searcher, model=model)).queries == [GREEN]
    model_server.plan(says("From the evidence [1]."))
    assert "My own answer." not in (await synthesise(found.result, model=model)).text


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_token_is_yielded_while_the_model_still_writes(
    result: RetrievalResult, make_model: MakeModel, model_server: ScriptedModel, api: str
) -> None:
    """Decision, phase 2: each delta of the stream is yielded when it comes."""
    gate = asyncio.Event()
    model_server.plan(says("Eighty ", gate, "degrees [1]."))
    pieces = stream_synthesis(result, model=make_model(api=api))
    assert "Eighty" in str(await within(anext(pieces)))
    assert not gate.is_set()
    gate.set()
    rest = [piece async for piece in pieces]
    assert isinstance(rest[-1], ResponseEvent)
    (request,) = model_server.requests
    assert request.path == {"responses": "/v1/responses", "chat": "/v1/chat/completions"}[api]
    assert request.body["stream"] is True


async def test_responses_api_streams_output_text_deltas(serve_documents: Serve, model_server: ScriptedModel) -> None:
    """Decision, phase 2, over HTTP: the events `response.output_text.delta` of the Responses API."""
    model_server.keeps_alive = False
    model_server.plan(searches(GREEN), READY, judges(), says("Eighty degrees [1]."))
    options = {"model": "small", "model_url": model_server.url, "model_key": KEY, "model_api": "responses"}
    async with serve_documents(**options) as server, ask(server, GREEN) as stream:
        _, answer, metadata = phases(await stream.rest())
    assert (answer, metadata["mode"]) == ("Eighty degrees [1].", "synthesis")
    assert {request.path for request in model_server.requests} == {"/v1/responses"}


async def test_prompt_has_the_evidence_and_the_question(
    result: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    """Decision, phase 2: the synthesis prompt."""
    model_server.plan(says("Eighty degrees [1]."))
    await synthesise(result, model=model)
    text = prompt(model_server.bodies[0])
    assert "eighty degrees" in text
    assert GREEN in text


def test_fallback_has_its_name() -> None:
    """Decision, phase 2: `_simple_summary`."""
    assert inspect.isasyncgenfunction(synthesis._simple_summary)


@pytest.mark.parametrize("written", ["", "Half an answer"])
async def test_streaming_error_falls_back_to_the_simple_summary(
    result: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel, written: str
) -> None:
    """Decision, phase 2: the fallback on any streaming error."""
    model_server.plan(breaks(written))
    answer = await synthesise(result, model=model)
    assert answer.text.startswith(written)
    assert "Green tea is brewed at eighty degrees" in answer.text
    assert answer.mode == "fallback"


async def test_metadata_follows_the_answer_behind_a_record_separator(serve_documents: Serve) -> None:
    """Wire protocol."""
    async with serve_documents() as server, ask(server, GREEN) as stream:
        body = (await stream.rest()).decode()
    answer, separator, metadata = body.rpartition("\x1e")
    assert separator
    assert answer
    assert {"citations", "mode", "tools_used"} <= json.loads(metadata).keys()


async def test_stream_is_plain_text_that_no_proxy_buffers(serve_documents: Serve) -> None:
    """Consequences, and alternative 3: the media type and the header."""
    async with serve_documents() as server, ask(server, GREEN) as stream:
        await stream.rest()
        assert stream.headers["content-type"].startswith("text/plain")
        assert stream.headers["x-accel-buffering"] == "no"


async def test_answer_is_not_a_fixed_number_of_characters_a_piece(
    result: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    """Context: nothing is cut into pieces after it is complete."""
    model_server.plan(says("One ", "two three four five six seven eight nine ten eleven twelve thirteen [1]."))
    pieces = [piece async for piece in stream_synthesis(result, model=model) if isinstance(piece, str)]
    assert len({len(piece) for piece in pieces}) > 1


async def test_model_may_answer_directly_instead(serve_documents: Serve, model_server: ScriptedModel) -> None:
    """Follow-up actions: the agent's final turn streamed without a second call."""
    model_server.keeps_alive = False
    model_server.plan(searches(GREEN), says("At eighty degrees [1]."))
    options = {"model": "small", "model_url": model_server.url, "model_key": KEY}
    async with serve_documents(**options) as server, ask(server, GREEN, answer="direct") as stream:
        _, answer, metadata = phases(await stream.rest())
    assert (answer, metadata["mode"]) == ("At eighty degrees [1].", "direct")
    assert len(model_server.requests) == 2


async def test_first_token_and_stream_duration_are_measured_by_route(serve_documents: Serve) -> None:
    """Follow-up actions: latency metrics."""
    count = {metric: _count(metric) for metric in (metrics.STREAM_FIRST_TOKEN, metrics.STREAM_SECONDS)}
    async with serve_documents() as server, ask(server, GREEN) as stream:
        _, _, metadata = phases(await stream.rest())
    assert metadata["timings"]["first_token_ms"] <= metadata["timings"]["total_ms"]
    for metric, before in count.items():
        assert _count(metric) == before + 1


def _count(metric: metrics.LabelledHistogram) -> int:
    series = metric.series.get(("three_phase_text", "/v1/rag/sessions/{session_id}/messages/stream"))
    return sum(series.counts) if series else 0
