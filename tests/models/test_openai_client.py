"""What a model says, over both APIs, with the real client and a real socket."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.models.asking import QUESTION, ask, text
from tests.models.conftest import MakeModel
from tests.scripted_model import ScriptedModel, calls, says, thinks
from tests.serving import until, within
from turnwire.core.events import ReasoningEvent, UsageEvent
from turnwire.models.contract import Model, ToolWish
from turnwire.models.openai_client import OpenAIModel

USAGE = UsageEvent(model="small", input_tokens=11, output_tokens=7)


# Text


async def test_text_comes_in_the_pieces_it_is_sent_in(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Because ", "it ", "rains."))
    assert await ask(model) == ["Because ", "it ", "rains.", USAGE]


async def test_a_piece_comes_while_the_model_still_writes(model: OpenAIModel, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()
    model_server.plan(says("One, ", gate, "two."))
    answer = model.stream("", QUESTION)
    assert await within(anext(answer)) == "One, "
    gate.set()
    assert [piece async for piece in answer] == ["two.", USAGE]


async def test_an_empty_answer_is_an_answer(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says(usage=None))
    assert await ask(model) == []


async def test_text_in_any_script_arrives_as_it_was_sent(model: OpenAIModel, model_server: ScriptedModel) -> None:
    said = 'Grün 茶 \U0001f375 \u2028 \x85 \\ " \n\n end'
    model_server.plan(says(said, ""))
    assert text(await ask(model)) == said


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thoughts_are_told_apart_from_text(model: OpenAIModel, model_server: ScriptedModel, field: str) -> None:
    model_server.plan(says(thinks("Hm, ", field), thinks("well.", field), "Yes."))
    assert await ask(model) == [ReasoningEvent(content="Hm, "), ReasoningEvent(content="well."), "Yes.", USAGE]


async def test_answers_given_at_the_same_time_do_not_mix(model: OpenAIModel, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()
    model_server.plan(says("one ", gate, "one"), says("two ", gate, "two"))
    first = asyncio.create_task(ask(model))
    await model_server.request()
    second = asyncio.create_task(ask(model))
    await model_server.request()
    gate.set()
    assert text(await first) == "one one"
    assert text(await second) == "two two"


# Tool calls


@pytest.mark.parametrize("how", [{}, {"woven": True}, {"whole": True}], ids=str)
async def test_a_tool_call_is_told_when_it_is_whole(
    model: OpenAIModel, model_server: ScriptedModel, how: dict[str, Any]
) -> None:
    search, fetch = '{"query": "green tea"}', '{"page": 2, "wörter": []}'
    model_server.plan(calls(("search_documents", search), ("get_document", fetch), **how))
    assert await ask(model) == [
        ToolWish("call_1", "search_documents", search),
        ToolWish("call_2", "get_document", fetch),
        USAGE,
    ]


async def test_text_may_come_before_tool_calls(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("search", "{}"), text="Let me look."))
    assert await ask(model) == ["Let", " me", " look.", ToolWish("call_1", "search", "{}"), USAGE]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_call_without_an_id_gets_one_of_its_own(
    model: OpenAIModel, model_server: ScriptedModel, whole: bool
) -> None:
    model_server.plan(calls(("search", '{"q": 1}'), ("search", '{"q": 2}'), ids=None, whole=whole))
    first, second, _ = await ask(model)
    assert isinstance(first, ToolWish)
    assert isinstance(second, ToolWish)
    assert (first.arguments, second.arguments) == ('{"q": 1}', '{"q": 2}')
    assert first.call_id
    assert second.call_id not in ("", first.call_id)


async def test_arguments_that_are_not_json_are_handed_on(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("search", '{"query": ')))
    assert await ask(model) == [ToolWish("call_1", "search", '{"query": '), USAGE]


# Usage


async def test_usage_that_is_not_told_is_not_zero(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Yes.", usage=None))
    assert await ask(model) == ["Yes."]


async def test_usage_tells_all_that_the_server_told(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("Yes.", usage={"input": 90, "output": 20, "cached": 64, "reasoning": 8}))
    assert (await ask(model))[-1] == UsageEvent(
        model="small", input_tokens=90, output_tokens=20, cached_input_tokens=64, reasoning_tokens=8
    )


# Connections


async def test_a_connection_is_used_again(model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(says("One."), calls(("search", "{}")), says("Two."))
    for _ in range(3):
        await ask(model)
    assert model_server.connections == 1


async def test_closing_the_model_closes_its_connections(make_model: MakeModel, model_server: ScriptedModel) -> None:
    model = make_model()
    model_server.plan(says("One."))
    await ask(model)
    assert model_server.open_connections == 1
    await within(model.close())
    await until(lambda: model_server.open_connections == 0)


async def test_a_cut_after_the_model_has_finished_costs_nothing(
    make_model: MakeModel, model_server: ScriptedModel, api: str
) -> None:
    chat, responses = b'{"choices": [{"finish_reason": "stop"}]}', b'{"type": "response.completed", "response": {}}'
    model_server.plan(replace(says("Yes.", chat if api == "chat" else responses), ending="cut"))
    assert await ask(make_model()) == ["Yes."]


def test_the_client_is_a_model(model: OpenAIModel) -> None:
    as_declared: Model = model
    assert as_declared.name == "small"
