"""Variants of OpenAI-compatible servers. Each case is a real one."""

import json
from typing import Any

import pytest

from tests.models.answers import failure, read_answer, text
from tests.models.conftest import MakeModel
from tests.scripted_model import ScriptedModel, says
from turnwire.core.log.events import UsageEvent
from turnwire.models.contract import Piece, ToolCallRequest
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": finish_reason}]}).encode()


def call(arguments: str, name: str | None = None, **rest: Any) -> bytes:
    return chunk(tool_calls=[{**rest, "function": {"name": name, "arguments": arguments}}])


def exactly(*chunks: bytes) -> Answer:
    """Return an answer of these chunks without a further finish reason."""
    return Answer(chunks, "unfinished")


async def chat(make_model: MakeModel, server: ScriptedModel, *chunks: bytes) -> list[Piece]:
    server.plan(exactly(*chunks))
    return await read_answer(make_model(api="chat"))


@pytest.fixture
def api() -> str:
    return "chat"


async def test_calls_with_the_same_index_are_separated_by_id(
    make_model: MakeModel, model_server: ScriptedModel
) -> None:
    pieces = await chat(
        make_model,
        model_server,
        call('{"q":1}', "search", index=0, id="a"),
        call('{"q":', "search", index=0, id="b"),
        call("2}", index=0, id="b"),
        chunk("tool_calls"),
    )
    assert pieces == [ToolCallRequest("a", "search", '{"q":1}'), ToolCallRequest("b", "search", '{"q":2}')]


async def test_calls_without_index_are_separated_by_name(make_model: MakeModel, model_server: ScriptedModel) -> None:
    pieces = await chat(
        make_model,
        model_server,
        call("{", "search", id="a"),
        call("}"),
        call("{}", "read", id="b"),
        chunk("tool_calls"),
    )
    assert pieces == [ToolCallRequest("a", "search", "{}"), ToolCallRequest("b", "read", "{}")]


async def test_repeated_id_and_name_begin_no_new_call(make_model: MakeModel, model_server: ScriptedModel) -> None:
    pieces = await chat(
        make_model,
        model_server,
        call("{", "search", index=0, id="a"),
        call("}", "search", index=0, id="a"),
        chunk("tool_calls"),
    )
    assert pieces == [ToolCallRequest("a", "search", "{}")]


async def test_call_in_the_last_chunk_is_yielded(make_model: MakeModel, model_server: ScriptedModel) -> None:
    wanted = [{"index": 0, "id": "a", "function": {"name": "search", "arguments": "{}"}}]
    pieces = await chat(make_model, model_server, chunk("stop", tool_calls=wanted))
    assert pieces == [ToolCallRequest("a", "search", "{}")]


@pytest.mark.parametrize("reason", ["stop", "eos_token", "stop_sequence", "function_call"])
async def test_known_finish_reasons_complete_an_answer(
    make_model: MakeModel, model_server: ScriptedModel, reason: str
) -> None:
    assert await chat(make_model, model_server, chunk(content="Yes."), chunk(reason)) == ["Yes."]


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource"])
async def test_unknown_finish_reason_is_truncated(
    make_model: MakeModel, model_server: ScriptedModel, reason: str
) -> None:
    model_server.plan(exactly(chunk(content="Ye"), chunk(reason)))
    error, pieces = await failure(make_model())
    assert error.code == "truncated"
    assert text(pieces) == "Ye"


async def test_running_usage_is_yielded_once(make_model: MakeModel, model_server: ScriptedModel) -> None:
    counts = [
        json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": n}}).encode() for n in (1, 2)
    ]
    pieces = await chat(make_model, model_server, *counts, chunk("stop"))
    assert pieces == [UsageEvent(model="small", input_tokens=5, output_tokens=2)]


async def test_refusal_is_text(make_model: MakeModel, model_server: ScriptedModel) -> None:
    assert await chat(make_model, model_server, chunk(refusal="I will not."), chunk("stop")) == ["I will not."]


async def test_empty_chunks_are_ignored(make_model: MakeModel, model_server: ScriptedModel) -> None:
    silent = [b"{}", b'{"choices": null}', b'{"choices": [{"index": 0}]}', chunk(content=None, tool_calls=None)]
    assert await chat(make_model, model_server, *silent, chunk("stop", content="Yes.")) == ["Yes."]


@pytest.mark.parametrize(
    "wrong", [b'{"choices": 5}', chunk(content={"parts": []}), b'{"choices": [{"delta": "Yes."}]}'], ids=str
)
async def test_field_of_the_wrong_type_is_an_error(
    make_model: MakeModel, model_server: ScriptedModel, wrong: bytes
) -> None:
    model_server.plan(exactly(wrong, chunk("stop")))
    error, _ = await failure(make_model())
    assert error.code == "model_unavailable"


async def test_unknown_responses_events_are_ignored(make_model: MakeModel, model_server: ScriptedModel) -> None:
    model_server.plan(
        says("Yes", b'{"type": "response.sings", "delta": {"note": "c"}}', b'{"kind": 1}', ".", usage=None)
    )
    assert await read_answer(make_model(api="responses")) == ["Yes", "."]


async def test_responses_reasoning_and_refusals_are_yielded(make_model: MakeModel, model_server: ScriptedModel) -> None:
    thought = b'{"type": "response.reasoning_text.delta", "delta": "Hm."}'
    refusal = b'{"type": "response.refusal.delta", "delta": "No."}'
    model_server.plan(says(thought, refusal, usage=None))
    pieces = await read_answer(make_model(api="responses"))
    assert [getattr(piece, "content", piece) for piece in pieces] == ["Hm.", "No."]
