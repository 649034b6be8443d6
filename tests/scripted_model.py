"""The scripted model of `turnwire.testing`, as our own tests use it, and a fixture of it on the test's event loop."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from turnwire.testing.scripted_server import (
    USAGE,
    Failure,
    ModelRequest,
    Plan,
    Reply,
    ScriptedAnswer,
    ScriptedModel,
    breaks,
    calls,
    cuts,
    fails,
    filtered,
    garbles,
    hangs,
    says,
    scripted_model,
    silent,
    thinks,
    too_long,
    toy_embedding,
    truncates,
    words,
)

Answer = ScriptedAnswer
Request = ModelRequest

__all__ = [
    "USAGE",
    "Answer",
    "Failure",
    "Plan",
    "Reply",
    "Request",
    "ScriptedModel",
    "breaks",
    "calls",
    "conversation_of",
    "cuts",
    "fails",
    "filtered",
    "garbles",
    "hangs",
    "model_server",
    "offered_tools",
    "says",
    "scripted_model",
    "silent",
    "thinks",
    "too_long",
    "toy_embedding",
    "truncates",
    "use_scripted_model",
    "words",
]


def conversation_of(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the texts, calls and results of a model request, in one form for all APIs."""
    if "contents" in body:
        return [entry for content in body["contents"] for entry in _gemini_entries(content)]
    entries: list[tuple[str, Any]] = []
    for item in body["messages"] if "messages" in body else body["input"]:
        role, kind = item.get("role"), item.get("type", "message")
        if isinstance(item.get("content"), list) and any(_is_anthropic(part) for part in item["content"]):
            entries += _messages_entries(item)
            continue
        content = _content(item.get("content"))
        if role == "tool":
            entries.append(("result", (item["tool_call_id"], content)))
        elif kind == "function_call":
            entries.append(("call", (item["call_id"], item["name"], json.loads(item["arguments"]))))
        elif kind == "function_call_output":
            entries.append(("result", (item["call_id"], _content(item["output"]))))
        elif role in ("user", "assistant"):
            if content:
                entries.append((role, content))
            for call in item.get("tool_calls") or ():
                function = call["function"]
                entries.append(("call", (call["id"], function["name"], json.loads(function["arguments"]))))
    return entries


def offered_tools(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tools that a request offers to the model, by name, in one form for all APIs."""
    tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
    if "contents" in body:
        tools = [each for tool in tools for each in tool.get("functionDeclarations", ())]
        # Google's servers take both spellings of a field, and its client uses both.
        schemas = ("parametersJsonSchema", "parameters_json_schema")
        tools = [{"parameters": tool.get(name), **tool} for tool in tools for name in schemas if name in tool]
    return {tool["name"]: tool for tool in tools}


def _gemini_entries(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for part in content["parts"]:
        if call := part.get("functionCall"):
            yield "call", (call.get("id"), call["name"], call.get("args") or {})
        elif result := part.get("functionResponse"):
            response = result["response"]
            value = response["result"] if list(response) == ["result"] else response
            yield (
                "result",
                (result.get("id"), value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))),
            )
        elif part.get("text"):
            yield "assistant" if content["role"] == "model" else "user", part["text"]


def _is_anthropic(part: dict[str, Any]) -> bool:
    return part["type"] in ("tool_use", "tool_result", "thinking")


def _messages_entries(message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a message of Anthropic's API. Claude Code adds texts of its own to results."""
    has_results = any(part["type"] == "tool_result" for part in message["content"])
    for part in message["content"]:
        if part["type"] == "tool_use":
            yield "call", (part["id"], part["name"], part["input"])
        elif part["type"] == "tool_result":
            yield "result", (part["tool_use_id"], _content(part["content"]))
        elif part["type"] == "text" and not has_results:
            yield message["role"], part["text"]


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def use_scripted_model(monkeypatch: pytest.MonkeyPatch, server: ScriptedModel) -> None:
    """Let clients that are configured by the environment ask this server, also those that nobody closes."""
    server.keeps_alive = False
    addresses = {"OPENAI_BASE_URL": server.url, "GOOGLE_GEMINI_BASE_URL": server.url.removesuffix("/v1")}
    for name, value in {**addresses, "OPENAI_API_KEY": "none", "GOOGLE_API_KEY": "none"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def model_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedModel]:
    """A server with no answers yet, in an environment that knows of no other one."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with scripted_model() as server:
        yield server
