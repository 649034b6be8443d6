"""Model options sent by real clients: they reach the model, or the request is refused by the name of the option."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients.conftest import AI_SDKS, Run, node, run
from tests.contracts.agent_cases import chat_completions
from tests.contracts.agents import PATIENT
from tests.contracts.test_agent_options import SCHEMA, SENT, choice_of, format_of, look, settings_of, system_text
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says, too_long
from tests.server.socket_client import talking
from tests.serving import Served, quick_settings, saying, serving, within
from turnwire import Turnwire
from turnwire.client import AsyncClient, RefusedError, ServerAddress

__all__ = ["lost_connections_are_collected", "model_server", "node", "run"]
pytestmark = [pytest.mark.timeout(300), IGNORED]

OPTIONS: dict[str, Any] = {
    **SENT,
    "tool_choice": {"name": "look"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}},
}
CLIENTS = [*AI_SDKS, "ag_ui", "responses", "completions"]
ANSWER = {"city": "Oslo", "degrees": -3}
NAMES = {
    "responses": {"max_tokens": "max_output_tokens", "response_format": "text.format"},
    "completions": {"instructions": "messages", "max_tokens": "max_completion_tokens"},
}


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.fixture
async def served(model_server: ScriptedModel, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with agents that allow everything, the default, and nothing; and one that is a function."""
    built = chat_completions.build(model_server.url, [look], api="chat", timeout=PATIENT)
    agents: dict[str, Any] = {
        "open": chat_completions.allow(built, True),
        "default": built,
        "closed": chat_completions.allow(built, False),
        "function": saying("x"),
    }
    async with serving(Turnwire(agents=agents, store="memory", settings=quick_settings(tmp_path))) as server:
        yield server


def plan(server: ScriptedModel) -> None:
    server.plan(calls(("look", {"city": "Oslo"})), says('{"city": "Os', 'lo", "degrees": -3}'))


def check_requests(server: ScriptedModel, *, without: tuple[str, ...] = ()) -> None:
    first, second = server.bodies
    for body in (first, second):
        expected = {name: value for name, value in SENT.items() if name not in ("instructions", *without)}
        assert settings_of(body) == expected
        assert format_of(body) == SCHEMA
        assert system_text(body).startswith("Be kind.\n\nIn rhyme.")
    assert (choice_of(first), choice_of(second)) == ("look", None)


@pytest.mark.node
@pytest.mark.parametrize("client", CLIENTS)
async def test_options_of_a_node_client_reach_the_model(
    served: Served, run: Run, model_server: ScriptedModel, client: str
) -> None:
    plan(model_server)
    async with run("options.mjs", served.url, client, "open") as script:
        report = await script.next()
        await script.ended()
    assert json.loads(report["answer"]) == ANSWER
    # The Responses API has no `stop`.
    check_requests(model_server, without=("stop",) if client == "responses" else ())


@pytest.mark.node
@pytest.mark.parametrize("client", ["ai6", "responses", "completions"])
@pytest.mark.parametrize("agent", ["default", "closed"])
async def test_options_that_are_not_allowed_are_an_error_of_a_node_client(
    served: Served, run: Run, model_server: ScriptedModel, client: str, agent: str
) -> None:
    async with run("options.mjs", served.url, client, agent) as script:
        report = await script.next()
        await script.ended()
    assert "takes_model_options" in report["error"]
    if client in NAMES:
        assert (report["status"], report["param"]) == (400, NAMES[client].get("instructions", "instructions"))
    assert not model_server.bodies
    assert await served.written() == (0, 0)


async def test_python_client_of_openai_parses_the_answer(served: Served, model_server: ScriptedModel) -> None:
    plan(model_server)
    plan(model_server)
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        completion = await within(
            client.chat.completions.parse(
                model="open", messages=[{"role": "user", "content": "How is Oslo?"}], response_format=Weather
            )
        )
        assert completion.choices[0].message.parsed == Weather(**ANSWER)
        response = await within(client.responses.parse(model="open", input="How is Oslo?", text_format=Weather))
        assert response.output_parsed == Weather(**ANSWER)
        again = await within(client.responses.retrieve(response.id))
        assert again.text is not None
        assert again.text.format == response.text.format  # type: ignore[union-attr]
    for body in model_server.bodies:
        assert set(format_of(body)["properties"]) == {"city", "degrees"}


@pytest.mark.parametrize(("option", "value"), list(OPTIONS.items()))
async def test_refused_option_is_named_by_every_api(
    served: Served, model_server: ScriptedModel, option: str, value: Any
) -> None:
    native = await served.http.post(
        "/chat", json={"message": "Hello", "agent": "closed", "model_options": {option: value}}
    )
    assert native.status_code == 422
    error = native.json()["error"]
    assert (error["code"], error["fields"][0]["field"]) == ("model_option_not_taken", option)
    assert await served.written() == (0, 0)


async def test_native_routes_socket_and_python_client_send_options(served: Served, model_server: ScriptedModel) -> None:
    plan(model_server)
    body = {"message": "How is Oslo?", "agent": "open", "model_options": OPTIONS}
    answer = await served.http.post("/chat", json=body)
    assert json.loads(answer.json()["content"]) == ANSWER
    check_requests(model_server)
    model_server.reset()
    plan(model_server)
    async with talking(served) as socket:
        accepted = await socket.ask("start", **body)
        await socket.events(accepted["turn_id"])
    check_requests(model_server)
    model_server.reset()
    plan(model_server)
    async with AsyncClient(ServerAddress(served.url, None, is_local=True)) as client:
        turn = await within(client.start("How is Oslo?", agent="open", model_options=OPTIONS))
        async for _ in turn.events():
            pass
        assert json.loads(turn.text) == ANSWER
        with pytest.raises(RefusedError, match="temperature"):
            await within(client.start("How is Oslo?", agent="closed", model_options={"temperature": 1}))
    check_requests(model_server)


async def test_wrong_or_unknown_options_are_refused(served: Served, model_server: ScriptedModel) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 3}, "model_options.temperature"),
        ({"max_tokens": 0}, "model_options.max_tokens"),
        ({"seed": 7}, "model_options.seed"),
        ({"response_format": {"type": "json_schema"}}, "model_options.response_format"),
        ({"tool_choice": "some"}, "model_options.tool_choice"),
    ]
    for options, field in wrong:
        answer = await served.http.post("/chat", json={"message": "Hello", "agent": "open", "model_options": options})
        assert answer.status_code == 422
        assert answer.json()["error"]["fields"][0]["field"].startswith(field)
    assert await served.written() == (0, 0)
    assert not model_server.bodies


async def test_function_is_given_options_and_refused_for_a_schema(served: Served) -> None:
    body = {"message": "Hello", "agent": "function", "model_options": {"temperature": 1}}
    assert (await served.http.post("/chat", json=body)).status_code == 200
    body["model_options"] = {"response_format": {"type": "json_object"}}
    assert (await served.http.post("/chat", json=body)).status_code == 422
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await within(client.responses.parse(model="function", input="Hello", text_format=Weather))
    assert refused.value.param == "text.format"


async def test_agents_are_listed_with_the_options_that_they_take(served: Served) -> None:
    listed = {
        each["name"]: each.get("model_options") for each in (await served.http.get("/v1/agents")).json()["agents"]
    }
    assert "instructions" in listed["open"]
    assert "instructions" not in listed["default"]
    assert (listed["closed"], listed["function"]) == (None, None)


async def test_answer_that_reaches_max_tokens_is_cut_short_and_no_error(
    served: Served, model_server: ScriptedModel
) -> None:
    model_server.plan(*[too_long("Once upon")] * 5)
    messages: Any = [{"role": "user", "content": "Tell a story."}]
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        whole = await within(client.chat.completions.create(model="open", messages=messages, max_tokens=2))
        stream = await client.chat.completions.create(
            model="open", messages=messages, max_completion_tokens=2, stream=True
        )
        chunks = [chunk async for chunk in stream]
        response = await within(client.responses.create(model="open", input="Tell a story.", max_output_tokens=2))
        events = [event async for event in await client.responses.retrieve(response.id, stream=True)]
        with pytest.raises(openai.InternalServerError):  # Without a limit of its own, the client expects all of it.
            await within(client.chat.completions.create(model="open", messages=messages))
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Once upon", "length")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Once upon"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (response.status, response.output_text) == ("incomplete", "Once upon")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"
    native = await served.http.post(
        "/chat", json={"message": "Tell a story.", "agent": "open", "model_options": {"max_tokens": 2}}
    )
    assert (native.status_code, native.json()["error"]["code"]) == (500, "truncated")
