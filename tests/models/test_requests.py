"""Requests to a model's server: one conversation in the form of each API."""

from typing import Any

import pytest
from inline_snapshot import snapshot

from tests.models.answers import read_answer
from tests.models.conftest import MakeModel
from tests.scripted_model import ScriptedModel, says
from tests.serving import within
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.models.contract import ToolSpec
from turnwire.models.openai_client import OpenAIModel

CONVERSATION = (
    Message("user", "What is green?"),
    Message("assistant", "Let me look.", (ToolRequest("call_1", "search", {"query": "grün"}),)),
    Message("tool", "Tea [1].", call_id="call_1"),
    Message("assistant", "", (ToolRequest("call_2", "read", {}), ToolRequest("call_3", "read", {"page": 2}))),
    Message("tool", "One.", call_id="call_2"),
    Message("tool", "Two.", call_id="call_3"),
    Message("assistant", "Tea is."),
    Message("user", "And red?"),
)
SEARCH = ToolSpec("search", "Finds passages.", {"type": "object", "properties": {"query": {"type": "string"}}})
CLOSED = {
    "type": "object",
    "properties": {"verdict": {"type": "string"}},
    "required": ["verdict"],
    "additionalProperties": False,
}


async def request_body(model: OpenAIModel, server: ScriptedModel, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    server.plan(says("Yes."))

    async def read() -> None:
        async for _ in model.stream(*arguments, **options):
            pass

    await within(read())
    return server.requests[-1].body


@pytest.mark.parametrize("api", ["chat"])
async def test_chat_completions_request_has_the_conversation(model: OpenAIModel, model_server: ScriptedModel) -> None:
    body = await request_body(model, model_server, "Be kind.", CONVERSATION)
    assert model_server.requests[-1].path == "/v1/chat/completions"
    assert body == snapshot(
        {
            "model": "small",
            "stream": True,
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "What is green?"},
                {
                    "role": "assistant",
                    "content": "Let me look.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "search", "arguments": '{"query": "grün"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "Tea [1]."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                        {"id": "call_3", "type": "function", "function": {"name": "read", "arguments": '{"page": 2}'}},
                    ],
                },
                {"role": "tool", "tool_call_id": "call_2", "content": "One."},
                {"role": "tool", "tool_call_id": "call_3", "content": "Two."},
                {"role": "assistant", "content": "Tea is."},
                {"role": "user", "content": "And red?"},
            ],
            "stream_options": {"include_usage": True},
        }
    )


@pytest.mark.parametrize("api", ["responses"])
async def test_responses_request_has_the_conversation(model: OpenAIModel, model_server: ScriptedModel) -> None:
    body = await request_body(model, model_server, "Be kind.", CONVERSATION)
    assert model_server.requests[-1].path == "/v1/responses"
    assert body == snapshot(
        {
            "model": "small",
            "stream": True,
            "input": [
                {"type": "message", "role": "user", "content": "What is green?"},
                {"type": "message", "role": "assistant", "content": "Let me look."},
                {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"query": "grün"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "Tea [1]."},
                {"type": "function_call", "call_id": "call_2", "name": "read", "arguments": "{}"},
                {"type": "function_call", "call_id": "call_3", "name": "read", "arguments": '{"page": 2}'},
                {"type": "function_call_output", "call_id": "call_2", "output": "One."},
                {"type": "function_call_output", "call_id": "call_3", "output": "Two."},
                {"type": "message", "role": "assistant", "content": "Tea is."},
                {"type": "message", "role": "user", "content": "And red?"},
            ],
            "instructions": "Be kind.",
            "store": False,
        }
    )


@pytest.mark.parametrize("api", ["chat"])
async def test_chat_completions_request_has_tools_and_schema(model: OpenAIModel, model_server: ScriptedModel) -> None:
    body = await request_body(model, model_server, "", (), tools=[SEARCH], schema=CLOSED)
    assert (body["messages"], body["tools"], body["response_format"]) == snapshot(
        (
            [],
            [
                {
                    "type": "function",
                    "function": {
                        "name": "search",
                        "description": "Finds passages.",
                        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                    },
                }
            ],
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": {
                        "type": "object",
                        "properties": {"verdict": {"type": "string"}},
                        "required": ["verdict"],
                        "additionalProperties": False,
                    },
                    "strict": True,
                },
            },
        )
    )


@pytest.mark.parametrize("api", ["responses"])
async def test_responses_request_has_tools_and_schema(model: OpenAIModel, model_server: ScriptedModel) -> None:
    body = await request_body(model, model_server, "", (), tools=[SEARCH], schema=CLOSED)
    assert "instructions" not in body
    assert (body["input"], body["tools"], body["text"]) == snapshot(
        (
            [],
            [
                {
                    "type": "function",
                    "name": "search",
                    "description": "Finds passages.",
                    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                    "strict": False,
                }
            ],
            {
                "format": {
                    "type": "json_schema",
                    "name": "answer",
                    "schema": {
                        "type": "object",
                        "properties": {"verdict": {"type": "string"}},
                        "required": ["verdict"],
                        "additionalProperties": False,
                    },
                    "strict": True,
                }
            },
        )
    )


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({"type": "array", "items": CLOSED}, True),
        ({**CLOSED, "properties": {"verdict": {"anyOf": [{"type": "object"}]}}}, False),
    ],
)
async def test_schema_is_strict_only_if_closed(
    model: OpenAIModel, model_server: ScriptedModel, api: str, schema: dict[str, Any], strict: bool
) -> None:
    body = await request_body(model, model_server, "", (), schema=schema)
    result = body["response_format"]["json_schema"] if api == "chat" else body["text"]["format"]
    assert (result["schema"], result["strict"]) == (schema, strict)


async def test_request_has_no_unused_fields(model: OpenAIModel, model_server: ScriptedModel) -> None:
    body = await request_body(model, model_server, "Be kind.", (Message("user", "Why?"),))
    assert not {"tools", "response_format", "text"} & set(body)


async def test_lone_surrogate_is_removed_from_the_request(model: OpenAIModel, model_server: ScriptedModel) -> None:
    messages = (
        Message("user", "a \ud800 b"),
        Message("assistant", "", (ToolRequest("call_1", "search", {"query": "\udfff"}),)),
        Message("tool", "\ud83d", call_id="call_1"),
    )
    await request_body(model, model_server, "\udc00", messages)
    assert "a \N{REPLACEMENT CHARACTER} b" in str(model_server.bodies[-1])


@pytest.mark.parametrize(
    ("key", "environment_key", "sent"),
    [
        (None, None, "none"),
        (None, "sk-around", "sk-around"),
        ("sk-given", "sk-around", "sk-given"),
        ("sk-given\n", None, "sk-given"),
        ("", None, "none"),
    ],
)
async def test_key_comes_from_the_argument_or_the_environment(
    make_model: MakeModel,
    model_server: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    environment_key: str | None,
    sent: str,
) -> None:
    if environment_key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", environment_key)
    model_server.plan(says("Yes."))
    await read_answer(make_model(api_key=key))
    assert model_server.requests[-1].headers["authorization"] == f"Bearer {sent}"
