"""These routes for the OpenAPI page."""

from typing import Any

from turnwire.server.routes.ai_sdk.messages import ChatBody

_STREAM: dict[str, Any] = {"200": {"description": "A UI message stream", "content": {"text/event-stream": {}}}}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": place, "required": place == "path", "description": description, "schema": schema}


_VERSION = _parameter("sdk_version", "query", "The client's major version: 5, 6 or 7.")
_TEXT = _parameter("stream", "query", "`text` for the bare text of the answer.")
_CHAT = _parameter("id", "path", "The chat, by the client's id or by ours; or the `x-workflow-run-id` of an answer.")

PATHS: dict[str, Any] = {
    "/api/chat": {
        "post": {
            "tags": ["ai sdk"],
            "summary": "Ask, ask again, or decide, and watch the answer being made",
            "parameters": [_VERSION, _TEXT, _parameter("Idempotency-Key", "header", "As everywhere.")],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": ChatBody.model_json_schema(by_alias=True)}},
            },
            "responses": _STREAM,
        }
    },
    "/api/chat/{id}/stream": {
        "get": {
            "tags": ["ai sdk"],
            "summary": "The answer that is being made, from its start",
            "parameters": [
                _CHAT,
                _VERSION,
                _TEXT,
                _parameter("startIndex", "query", "The first chunk wanted, from the end if it is negative."),
            ],
            "responses": {**_STREAM, "204": {"description": "None is being made"}},
        }
    },
    "/api/chat/{id}/stop": {
        "post": {
            "tags": ["ai sdk"],
            "summary": "Stop what runs, waits or is queued in the chat; answers when it has stopped",
            "parameters": [_CHAT],
            "responses": {"200": {"description": "What was stopped", "content": {"application/json": {}}}},
        }
    },
}
