"""Errors on OpenAI's routes: in that API's shape, and nothing is started."""

from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.server.conftest import Serve
from tests.server.openai_clients import openai_error, openai_of
from tests.server.readers import by_user, user
from tests.server.test_auth import holder
from tests.serving import saying

IMAGE = {"type": "input_image", "image_url": "https://x.example/a.png"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}

WRONG_RESPONSES: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "input", "invalid_request"),
    ({"input": ""}, "input", "invalid_request"),
    ({"input": " \n "}, "input", "invalid_request"),
    ({"input": []}, "input", "invalid_request"),
    ({"input": 7}, "input", "invalid_request"),
    ({"input": ["hi"]}, "input[0]", "invalid_request"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, None, "attachments_not_taken"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "invalid_request"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content", "invalid_request"),
    ({"input": [{"role": "judge", "content": "hi"}]}, "input[0].role", "invalid_request"),
    ({"input": [{"role": "assistant", "content": "hi"}]}, "input", "invalid_request"),
    ({"input": [{"role": "developer", "content": "hi"}]}, "input", "invalid_request"),
    ({"input": [{"type": "computer_call"}]}, "input[0]", "unsupported_content"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]", "invalid_request"),
    (
        {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "[]"}]},
        "input[0]",
        "invalid_request",
    ),
    (
        {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{"}]},
        "input[0]",
        "invalid_request",
    ),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]", "invalid_request"),
    ({"input": "hi", "temperature": "hot"}, "temperature", "invalid_request"),
    ({"input": "hi", "metadata": {"a": 1}}, "metadata.a", "invalid_request"),
    ({"input": "hi", "stream": "maybe"}, "stream", "invalid_request"),
    ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, "text.format", "unsupported_content"),
    ({"input": "hi", "conversation": "no spaces"}, "conversation", "invalid_request"),
    ({"input": "hi", "conversation": "c", "previous_response_id": "resp_x"}, "previous_response_id", "invalid_request"),
    ({"input": "hi", "previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
    ({"input": "hi", "previous_response_id": "x"}, "previous_response_id", "previous_response_not_found"),
]
WRONG_COMPLETIONS: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "messages", "invalid_request"),
    ({"messages": []}, "messages", "invalid_request"),
    ({"messages": "hi"}, "messages", "invalid_request"),
    ({"messages": [{"role": "user", "content": [PICTURE]}]}, None, "attachments_not_taken"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages", "invalid_request"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0]", "invalid_request"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
        "messages[0].tool_calls[0]",
        "invalid_request",
    ),
    ({"messages": [{"role": "user", "content": "hi"}], "n": 2}, "n", "invalid_request"),
    (
        {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}},
        "response_format",
        "unsupported_content",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_request_for_a_response_names_the_field(serve: Serve, stream: bool) -> None:
    async with serve(saying("x")) as server:
        for body, param, code in WRONG_RESPONSES:
            error = openai_error(await server.http.post("/v1/responses", json={"stream": stream, **body}), 400)
            assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), body
            assert await server.written() == (0, 0), body


@pytest.mark.parametrize(("body", "param", "code"), WRONG_COMPLETIONS)
async def test_a_wrong_request_for_a_completion_names_the_field(
    serve: Serve, body: dict[str, Any], param: str, code: str
) -> None:
    async with serve(saying("x")) as server:
        error = openai_error(await server.http.post("/v1/chat/completions", json=body), 400)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
        assert await server.written() == (0, 0)


async def test_body_that_is_not_json_is_refused(serve: Serve) -> None:
    async with serve(saying("x")) as server:
        json_type = {"Content-Type": "application/json"}
        deep = b'{"input":' + b"[" * 100_000
        for path in ("/v1/responses", "/v1/chat/completions"):
            for body in (b"{", b"[]", b"7", b"\xff", b"", deep):
                openai_error(await server.http.post(path, content=body, headers=json_type), 400)
            openai_error(await server.http.post(path, content=b"{}"), 415)
            openai_error(await server.http.get(path), 405)
            long = {"Idempotency-Key": "k" * 256}
            valid_body = {"input": "hi", "messages": [{"role": "user", "content": "hi"}]}
            openai_error(await server.http.post(path, json=valid_body, headers=long), 400)
        bad_session = {"X-Session-Id": "no spaces"}
        error = openai_error(await server.http.post("/v1/chat/completions", json=valid_body, headers=bad_session), 400)
        assert error["param"] == "X-Session-Id"
        assert await server.written() == (0, 0)


UNSUPPORTED: list[tuple[Callable[[AsyncOpenAI], Awaitable[Any]], int, str]] = [
    (lambda client: client.responses.compact(model="turnwire", input="hi"), 404, "not_found"),
    (lambda client: client.responses.input_tokens.count(model="turnwire", input="hi"), 404, "not_found"),
    (lambda client: client.embeddings.create(model="turnwire", input="hi"), 404, "not_found"),
    (lambda client: client.conversations.create(), 404, "not_found"),
    (lambda client: client.completions.create(model="turnwire", prompt="hi"), 404, "not_found"),
    (lambda client: client.models.delete("turnwire"), 405, "method_not_allowed"),
    (lambda client: client.models.retrieve("gpt-5"), 404, "model_not_found"),
    # A base URL without `/v1`.
    (lambda client: client.with_options(base_url=str(client.base_url)[: -len("v1/")]).models.list(), 404, "not_found"),
]


async def test_call_that_is_not_supported_raises_an_error_with_a_reason(serve: Serve) -> None:
    async with serve(saying("x")) as server, openai_of(server) as client:
        for call, status, code in UNSUPPORTED:
            with pytest.raises(openai.APIStatusError) as refused:
                await call(client)
            error: Any = refused.value
            assert (error.status_code, error.code, error.type, error.param) == (
                *(status, code, "invalid_request_error"),
                "model" if code == "model_not_found" else None,
            )
            assert error.body["message"]
        assert (await client.models.retrieve("turnwire")).id == "turnwire"
        assert await server.written() == (0, 0)


async def test_a_model_that_there_is_not_is_not_found(serve: Serve) -> None:
    async with serve(saying("x")) as server, openai_of(server) as client:
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(model="gpt-5", input="hi")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hi"}])
        assert await server.written() == (0, 0)


@pytest.mark.parametrize("wanted", ["resp_x", "resp_", "x", "resp_01890000-0000-7000-8000-000000000000_2", "resp_é"])
async def test_a_response_that_there_is_not_is_not_found(serve: Serve, wanted: str) -> None:
    async with serve(saying("x")) as server:
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            error = openai_error(await server.http.request(method, f"/v1/responses/{wanted}{path}"), 404)
            assert error["code"] == "response_not_found"


async def test_pages_of_items_are_refused_where_they_are_wrong(serve: Serve) -> None:
    async with serve(saying("x")) as server:
        response = (await server.http.post("/v1/responses", json={"input": "hi"})).json()
        path = f"/v1/responses/{response['id']}/input_items"
        for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"after": "nobody"}):
            openai_error(await server.http.get(path, params=query), 400)
        assert (await server.http.get(path)).json()["has_more"] is False


async def test_only_the_owner_sees_a_response(serve: Serve) -> None:
    async with (
        serve(saying("x"), authenticate=by_user) as server,
        user(server, "anna") as anna,
        user(server, "bob") as bob,
    ):
        response = (await anna.http.post("/v1/responses", json={"input": "hi", "conversation": "chat"})).json()
        path = f"/v1/responses/{response['id']}"
        for method, more in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            openai_error(await bob.http.request(method, path + more), 404)
        error = openai_error(
            await bob.http.post("/v1/responses", json={"input": "hi", "previous_response_id": response["id"]}), 400
        )
        assert error["code"] == "previous_response_not_found"
        # A conversation of the same name is another one.
        mine = (await bob.http.post("/v1/responses", json={"input": "hi", "conversation": "chat"})).json()
        assert (await bob.http.get("/v1/sessions/chat")).json()["turn_count"] == 1
        assert mine["id"] != response["id"]
        assert (await anna.http.get(path)).json() == response


async def test_a_key_is_needed_and_its_scopes_count(serve: Serve) -> None:
    async with serve(saying("x")) as server, holder(server, "anna", ("read",)) as reader:
        async with openai_of(server, "tw_wrong") as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                await stranger.models.list()
            assert refused.value.code == "invalid_api_key"
        async with openai_of(server, reader.key) as client:
            assert [model.id async for model in client.models.list()] == ["default"]
            with pytest.raises(openai.PermissionDeniedError):
                await client.responses.create(input="hi")
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(model="", messages=[{"role": "user", "content": "hi"}])
        async with openai_of(server, (await server.turnwire.keys.create("anna", ("write",)))[1]) as client:
            response = await client.responses.create(input="hi")
            for asking in (client.responses.retrieve(response.id), client.models.retrieve("default")):
                with pytest.raises(openai.PermissionDeniedError):
                    await asking


async def test_limit_errors_are_rate_limit_errors(serve: Serve) -> None:
    async with serve(max_open_streams=1) as server, openai_of(server) as client:
        async with await client.responses.create(input="hi", stream=True):
            with pytest.raises(openai.RateLimitError) as refused:
                await client.responses.create(input="hi", stream=True)
        assert refused.value.code == "too_many_streams"
        assert await server.written() == (1, 1)


async def test_other_routes_keep_their_own_shape(serve: Serve) -> None:
    async with serve(saying("x")) as server:
        error = (await server.http.post("/chat", json={})).json()["error"]
        assert set(error) == {"code", "message", "fields"}
