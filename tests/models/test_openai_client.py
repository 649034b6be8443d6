"""Answers of a model over both APIs, with the real client and a real socket."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.models.answers import QUESTION, read_answer, text
from tests.models.conftest import MakeModel
from tests.scripted_model import ScriptedModel, calls, garbles, says, thinks
from tests.serving import until, within
from turnwire.core.errors import ModelError
from turnwire.core.log.events import ReasoningEvent, UsageEvent
from turnwire.models import openai_client
from turnwire.models.contract import Model, ToolCallRequest
from turnwire.models.openai_client import OpenAIModel

USAGE = UsageEvent(model="small", input_tokens=11, output_tokens=7)


# Text


async def test_text_is_yielded_in_the_pieces_sent(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Because ", "it ", "rains."))
    assert await read_answer(model) == ["Because ", "it ", "rains.", USAGE]


async def test_piece_is_yielded_while_the_model_writes(model: OpenAIModel, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()
    model_server.plan(says("One, ", gate, "two."))
    answer = model.stream("", QUESTION)
    assert await within(anext(answer)) == "One, "
    gate.set()
    assert [piece async for piece in answer] == ["two.", USAGE]


async def test_empty_answer_is_valid(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says(usage=None))
    assert await read_answer(model) == []


async def test_text_in_any_script_is_unchanged(model: OpenAIModel, model_server: ScriptedModel) -> None:
    texts = 'Grün 茶 \U0001f375 \u2028 \x85 \\ " \n\n end'
    model_server.plan(says(texts, ""))
    assert text(await read_answer(model)) == texts


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_separate_from_text(model: OpenAIModel, model_server: ScriptedModel, field: str) -> None:
    model_server.plan(says(thinks("Hm, ", field), thinks("well.", field), "Yes."))
    assert await read_answer(model) == [ReasoningEvent(content="Hm, "), ReasoningEvent(content="well."), "Yes.", USAGE]


async def test_parallel_answers_do_not_mix(model: OpenAIModel, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()
    model_server.plan(says("one ", gate, "one"), says("two ", gate, "two"))
    first = asyncio.create_task(read_answer(model))
    await model_server.request()
    second = asyncio.create_task(read_answer(model))
    await model_server.request()
    gate.set()
    assert text(await first) == "one one"
    assert text(await second) == "two two"


# Tool calls


@pytest.mark.parametrize("how", [{}, {"woven": True}, {"whole": True}], ids=str)
async def test_tool_call_is_yielded_complete(
    model: OpenAIModel, model_server: ScriptedModel, how: dict[str, Any]
) -> None:
    search, fetch = '{"query": "green tea"}', '{"page": 2, "wörter": []}'
    model_server.plan(calls(("search_documents", search), ("get_document", fetch), **how))
    assert await read_answer(model) == [
        ToolCallRequest("call_1", "search_documents", search),
        ToolCallRequest("call_2", "get_document", fetch),
        USAGE,
    ]


async def test_text_comes_before_tool_calls(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("search", "{}"), text="Let me look."))
    assert await read_answer(model) == ["Let", " me", " look.", ToolCallRequest("call_1", "search", "{}"), USAGE]


@pytest.mark.parametrize("whole", [True, False])
async def test_tool_call_without_id_gets_one(model: OpenAIModel, model_server: ScriptedModel, whole: bool) -> None:
    model_server.plan(calls(("search", '{"q": 1}'), ("search", '{"q": 2}'), ids=None, whole=whole))
    first, second, _ = await read_answer(model)
    assert isinstance(first, ToolCallRequest)
    assert isinstance(second, ToolCallRequest)
    assert (first.arguments, second.arguments) == ('{"q": 1}', '{"q": 2}')
    assert first.call_id
    assert second.call_id not in ("", first.call_id)


async def test_arguments_that_are_not_json_are_passed_on(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("search", '{"query": ')))
    assert await read_answer(model) == [ToolCallRequest("call_1", "search", '{"query": '), USAGE]


# Usage


async def test_missing_usage_is_not_zero(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Yes.", usage=None))
    assert await read_answer(model) == ["Yes."]


async def test_usage_has_all_counts_of_the_server(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Yes.", usage={"input": 90, "output": 20, "cached": 64, "reasoning": 8}))
    assert (await read_answer(model))[-1] == UsageEvent(
        model="small", input_tokens=90, output_tokens=20, cached_input_tokens=64, reasoning_tokens=8
    )


# Connections


async def test_connection_is_reused(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("One."), calls(("search", "{}")), says("Two."))
    for _ in range(3):
        await read_answer(model)
    assert model_server.connections == 1


async def test_closed_model_closes_its_connections(make_model: MakeModel, model_server: ScriptedModel) -> None:
    model = make_model()
    model_server.plan(says("One."))
    await read_answer(model)
    assert model_server.open_connections == 1
    await within(model.close())
    await until(lambda: model_server.open_connections == 0)


async def test_disconnect_after_the_finish_reason_is_ignored(
    make_model: MakeModel, model_server: ScriptedModel, api: str
) -> None:
    chat, responses = b'{"choices": [{"finish_reason": "stop"}]}', b'{"type": "response.completed", "response": {}}'
    model_server.plan(replace(says("Yes.", chat if api == "chat" else responses), ending="cut"))
    assert await read_answer(make_model()) == ["Yes."]


def test_client_implements_the_model_protocol(model: OpenAIModel) -> None:
    as_declared: Model = model
    assert as_declared.name == "small"


async def test_answer_without_a_line_end_is_broken_off(
    model: OpenAIModel, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "MAX_LINE_BYTES", 100_000)
    model_server.plan(garbles("Yes", b"x" * 1_000_000))
    with pytest.raises(ModelError):
        await read_answer(model)


async def test_answer_over_the_limit_is_broken_off(
    model: OpenAIModel, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "MAX_ANSWER_BYTES", 10_000)
    model_server.plan(says(*["many words "] * 1_000))
    with pytest.raises(ModelError):
        await read_answer(model)
