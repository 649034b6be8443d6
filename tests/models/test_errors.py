"""Errors of model servers: stable codes, and messages without secrets."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from tests.models.answers import QUESTION, failure, read_answer, text
from tests.models.conftest import MakeModel
from tests.scripted_model import (
    Answer,
    Failure,
    ScriptedModel,
    breaks,
    calls,
    cuts,
    fails,
    filtered,
    garbles,
    hangs,
    says,
    silent,
    too_long,
    truncates,
)
from tests.serving import within
from turnwire.core.errors import AgentError, ModelErrorCode
from turnwire.core.log.events import UsageEvent
from turnwire.models.contract import ToolCallRequest
from turnwire.models.openai_client import OpenAIModel

KEY = "sk-very-secret-0123456789"


# Answers that end too early


@pytest.mark.parametrize(
    ("answer", "code", "retryable"),
    [
        (truncates("Half an"), "truncated", False),
        (too_long("Half an"), "truncated", False),
        (filtered("Half an"), "content_filtered", False),
        (cuts("Half an"), "model_unavailable", True),
        (garbles("Half an"), "model_unavailable", True),
        (garbles("Half an", b"\xff\xfe"), "model_unavailable", True),
        (garbles("Half an", b"42"), "model_unavailable", True),
        (garbles("Half an", b"[]"), "model_unavailable", True),
        (garbles("Half an", b"null"), "model_unavailable", True),
        (breaks("Half an"), "model_unavailable", True),
        (breaks("Half an", as_event=True), "model_unavailable", True),
        (breaks("Half an", "rate_limit_exceeded"), "rate_limited", True),
        (breaks("Half an", "rate_limit_exceeded", as_event=True), "rate_limited", True),
        (breaks("Half an", "context_length_exceeded"), "context_too_long", False),
        (breaks("Half an", "content_filter", as_event=True), "content_filtered", False),
    ],
    ids=lambda value: value.ending if isinstance(value, Answer) else str(value),
)
async def test_truncated_answer_yields_its_text_then_raises(
    model: OpenAIModel, model_server: ScriptedModel, answer: Answer, code: str, retryable: bool
) -> None:
    model_server.plan(answer)
    error, pieces = await failure(model)
    assert text(pieces) == "Half an"
    assert (error.code, error.retryable) == (code, retryable)


async def test_answer_over_the_length_limit_reports_usage(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(too_long("Half an"))
    _, pieces = await failure(model)
    assert pieces[-1] == UsageEvent(model="small", input_tokens=11, output_tokens=7)


@pytest.mark.parametrize("ending", ["unfinished", "length", "cut"])
async def test_truncated_answer_yields_no_tool_call(
    model: OpenAIModel, model_server: ScriptedModel, ending: Any
) -> None:
    whole = calls(("delete_all", {"sure": True}))
    model_server.plan(Answer(whole.pieces, ending))
    _, pieces = await failure(model)
    assert not [piece for piece in pieces if isinstance(piece, ToolCallRequest)]


# Silence


@pytest.mark.parametrize("answer", [silent("Half an"), silent(), hangs()], ids=["midway", "at once", "no answer"])
async def test_silent_server_times_out(
    make_model: MakeModel, model_server: ScriptedModel, answer: Answer | Failure
) -> None:
    sent = "".join(getattr(answer, "pieces", ()))
    # A slow machine may need more time for what is sent before the silence.
    for seconds in (0.2, 2, 20):
        model_server.plan(answer)
        error, pieces = await failure(make_model(timeout=seconds))
        assert (error.code, error.retryable) == ("model_unavailable", True)
        assert f"{seconds} seconds" in str(error)
        await model_server.aborted()
        if text(pieces) == sent:
            break
    assert text(pieces) == sent


async def test_unreachable_server_is_model_unavailable(make_model: MakeModel) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error, _ = await failure(make_model(base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1"))
    assert (error.code, error.retryable) == ("model_unavailable", True)


# Refusals


@pytest.mark.parametrize(
    ("refusal", "code", "words"),
    [
        (fails(400), "model_refused", "status 400"),
        (fails(401), "model_refused", "refused the API key"),
        (fails(403), "model_refused", "refused the API key"),
        (fails(404), "model_refused", "no model 'small'"),
        (fails(408), "model_unavailable", "try again"),
        (fails(422), "model_refused", "status 422"),
        (fails(429), "rate_limited", "rate limit or quota"),
        (fails(500), "model_unavailable", "try again"),
        (fails(503), "model_unavailable", "try again"),
        (fails(413), "context_too_long", "start a new one"),
        (fails(400, code="context_length_exceeded"), "context_too_long", "start a new one"),
        (fails(400, message="This model's maximum context length is 8 tokens"), "context_too_long", "start a new one"),
        (fails(400, message="the request exceeds the available context size"), "context_too_long", "start a new one"),
        (fails(400, code="content_filter"), "content_filtered", "content filter"),
    ],
    ids=lambda value: str(value.status or "") if isinstance(value, Failure) else value,
)
async def test_http_error_has_a_code_and_an_instruction(
    model: OpenAIModel, model_server: ScriptedModel, refusal: Failure, code: str, words: str
) -> None:
    model_server.plan(refusal)
    error, pieces = await failure(model)
    assert pieces == []
    assert error.code == code
    assert error.retryable == (code in ("model_unavailable", "rate_limited"))
    assert words in str(error)
    assert error.__cause__ is not None


@pytest.mark.parametrize(
    "answer",
    [
        fails(400, message=f"You sent {KEY}."),
        fails(401, code=KEY, message=f"Incorrect API key provided: {KEY}."),
        fails(500, message=f"Traceback: {KEY}"),
        breaks("Half", KEY, message=f"Authorization: Bearer {KEY}"),
        garbles("Half", KEY.encode()),
        cuts("Half"),
    ],
    ids=lambda answer: getattr(answer, "ending", None) or str(getattr(answer, "status", "")),
)
async def test_error_shows_neither_key_nor_server_message(
    make_model: MakeModel,
    model_server: ScriptedModel,
    caplog: pytest.LogCaptureFixture,
    answer: Answer | Failure,
) -> None:
    caplog.set_level(logging.INFO)
    model = make_model(api_key=KEY)
    model_server.plan(answer)
    error, _ = await failure(model)
    assert model_server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "Traceback" not in str(error)
    for shown in (str(error), repr(error), repr(model)):
        assert KEY not in shown
    assert "the model 'small' failed" in caplog.text or "reported an error" in caplog.text
    assert KEY not in caplog.text


# Retries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the client's backoff pauses, and skip them."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(anyio, "sleep", pause)
    return made


async def test_request_is_retried_before_the_first_byte(
    make_model: MakeModel, model_server: ScriptedModel, pauses: list[float]
) -> None:
    model_server.plan(fails(500), fails(429, retry_after_ms=1234), says("At last."))
    assert text(await read_answer(make_model(retries=2))) == "At last."
    assert len(model_server.requests) == 3
    assert pauses[1] == 1.234


async def test_number_of_retries_is_limited(
    make_model: MakeModel, model_server: ScriptedModel, pauses: list[float]
) -> None:
    model_server.plan(*[fails(429)] * 3)
    error, _ = await failure(make_model(retries=2))
    assert error.code == "rate_limited"
    assert len(pauses) == 2


async def test_permanent_error_is_not_retried(make_model: MakeModel, model_server: ScriptedModel) -> None:
    model_server.plan(fails(401))
    await failure(make_model(retries=2))
    assert len(model_server.requests) == 1


@pytest.mark.parametrize("answer", [cuts("Half"), truncates("Half"), garbles("Half"), breaks("Half")])
async def test_begun_answer_is_not_retried(make_model: MakeModel, model_server: ScriptedModel, answer: Answer) -> None:
    model_server.plan(answer)
    await failure(make_model(retries=2))
    assert len(model_server.requests) == 1


# Cancellation


async def test_closed_stream_closes_the_connection(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(silent("Half an"))
    answer = model.stream("", QUESTION)
    assert await within(anext(answer)) == "Half"
    await within(answer.aclose())
    await model_server.aborted()


@pytest.mark.parametrize("answer", [silent("Half an"), hangs()], ids=["midway", "no answer"])
async def test_cancelled_task_closes_the_connection(
    model: OpenAIModel, model_server: ScriptedModel, answer: Answer | Failure
) -> None:
    model_server.plan(answer)
    task = asyncio.create_task(read_answer(model))
    await model_server.request()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    await model_server.aborted()


async def test_model_works_after_a_closed_stream(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(silent("Half an"), says("Whole."))
    answer = model.stream("", QUESTION)
    await within(anext(answer))
    await within(answer.aclose())
    assert text(await read_answer(model)) == "Whole."


# Documentation


def test_every_model_error_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
    for code in get_args(ModelErrorCode):
        assert f"`{code}`" in page


async def test_model_error_is_an_agent_error(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(fails(401))
    error, _ = await failure(model)
    assert isinstance(error, AgentError)
