"""The scripted server itself, read with the real client."""

import asyncio

import openai
import pytest

from tests.scripted_model import Request, ScriptedModel, fails, says, scripted_model, silent, toy_embedding
from tests.serving import within
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer


def client(server: ScriptedModel) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)


async def chat(server: ScriptedModel) -> str:
    async with client(server) as asking:
        chunks = await asking.chat.completions.create(model="m", messages=[], stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


async def test_planned_answers_are_sent_in_order(model_server: ScriptedModel) -> None:
    def by_model(request: Request) -> Answer:
        return says(f"I am {request.body['model']}.")

    model_server.plan(says("One."), by_model)
    assert await chat(model_server) == "One."
    assert model_server.unused == 1
    assert await chat(model_server) == "I am m."
    assert model_server.unused == 0


async def test_request_beyond_the_plan_is_an_error() -> None:
    async def ask_unplanned() -> None:
        async with scripted_model() as server:
            with pytest.raises(openai.BadRequestError):
                await chat(server)

    with pytest.raises(AssertionError, match="1 times more than planned"):
        await ask_unplanned()


async def test_requests_and_aborts_can_be_awaited(model_server: ScriptedModel) -> None:
    model_server.plan(silent("One"), silent("Two"))
    for count in (1, 2):
        asking = asyncio.create_task(chat(model_server))
        assert (await model_server.request()).path == "/v1/chat/completions"
        asking.cancel()
        await asyncio.wait({asking})
        await model_server.aborted()
        assert model_server.aborts == count


async def test_responses_events_satisfy_the_sdk_helper(model_server: ScriptedModel) -> None:
    model_server.plan(says("Because it rains."))
    async with client(model_server) as asking, asking.responses.stream(model="m", input="Why?") as stream:
        final = await within(stream.get_final_response())
    assert final.output_text == "Because it rains."


@pytest.mark.parametrize("form", ["float", "base64", None])
async def test_embeddings_have_the_requested_encoding(model_server: ScriptedModel, form: str | None) -> None:
    options = {} if form is None else {"encoding_format": form}
    async with client(model_server) as asking:
        made = await asking.embeddings.create(model="e", input=["green tea", "tea"], **options)  # type: ignore[arg-type]
    vectors = [row.embedding for row in made.data]
    if form != "base64":
        assert vectors[0] == pytest.approx(toy_embedding("green tea"), abs=1e-6)
    assert len(vectors) == 2


async def test_planned_embedding_failures_are_sent(model_server: ScriptedModel) -> None:
    model_server.embedding_failures.append(fails(503))
    async with client(model_server) as asking:
        with pytest.raises(openai.InternalServerError):
            await asking.embeddings.create(model="e", input="tea")
        assert (await asking.embeddings.create(model="e", input="tea")).data
