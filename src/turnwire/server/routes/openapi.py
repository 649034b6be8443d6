"""The streaming routes for the OpenAPI page; they are not FastAPI's, so it does not know them."""

from typing import Any

from turnwire.server.requests import MessageBody, RagMessageBody
from turnwire.server.routes import ag_ui, ai_sdk, openai_paths, sockets


def _body(model: type[MessageBody]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


_MESSAGE = _body(MessageBody)
_ANSWER: dict[str, Any] = {"200": {"description": "The answer", "content": {"application/json": {}}}}
_STREAM: dict[str, Any] = {"200": {"description": "The turn's events", "content": {"text/event-stream": {}}}}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": {"type": "string"},
    }


_KEY = _parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
_ID = _parameter("id", "path", "Our id, or your own.")
_SESSION = _parameter("session_id", "path", "Our id, or your own; one of your own is made when it is new.")
_FAILED: dict[str, Any] = {"500": {"description": "The turn failed: `chat_failed`"}}
_LAST = _parameter("Last-Event-ID", "header", "The last id received; the stream goes on after it.")

_PATHS: dict[str, Any] = {
    "/chat": {
        "post": {
            "tags": ["chat"],
            "summary": "Ask, and get the whole answer when it is there",
            "parameters": [_KEY],
            "requestBody": _MESSAGE,
            "responses": _ANSWER,
        }
    },
    "/chat/stream": {
        "post": {
            "tags": ["chat"],
            "summary": "Ask, and watch the answer being made",
            "parameters": [_KEY, _LAST],
            "requestBody": _MESSAGE,
            "responses": _STREAM,
        }
    },
    "/v1/turns/{id}/events": {
        "get": {
            "tags": ["turns"],
            "summary": "A turn's events from any position, live or finished",
            "parameters": [
                _ID,
                _LAST,
                _parameter("after", "query", "Where to go on from, if there is no Last-Event-ID."),
                _parameter("offset", "query", "How many bytes you have, on a text wire."),
                _parameter("wire", "query", "The protocol to write them in; `sse_chat` by default."),
                _parameter("wait", "query", "Answer with JSON; wait this many seconds if there is nothing yet."),
            ],
            "responses": {
                **_STREAM,
                "204": {"description": "The turn has ended and you have all of it"},
                "410": {"description": "On a text wire: its events are past their retention"},
                "416": {"description": "There are not so many bytes, or they are void"},
            },
        }
    },
    "/v1/rag/sessions/{session_id}/messages": {
        "post": {
            "tags": ["rag"],
            "summary": "Ask in a session, and get the whole answer when it is there",
            "parameters": [_SESSION, _KEY],
            "requestBody": _body(RagMessageBody),
            "responses": {**_ANSWER, **_FAILED},
        }
    },
    "/v1/rag/sessions/{session_id}/messages/stream": {
        "post": {
            "tags": ["rag"],
            "summary": "Ask in a session, and watch: events, the answer, its citations, as plain text",
            "parameters": [_SESSION, _KEY],
            "requestBody": _body(RagMessageBody),
            "responses": {
                "200": {"description": "`three_phase_text`", "content": {"text/plain": {}}},
                **_FAILED,
            },
        }
    },
    "/v1/sessions/{id}/events": {
        "get": {
            "tags": ["sessions"],
            "summary": "All turns of a session, as they happen",
            "parameters": [_ID, _LAST, _parameter("after", "query", "`<turn_id>:<position>`")],
            "responses": _STREAM,
        }
    },
}


def with_streams(schema: dict[str, Any]) -> dict[str, Any]:
    schema["paths"] = {
        **_PATHS,
        **ag_ui.PATHS,
        **ai_sdk.PATHS,
        **openai_paths.PATHS,
        **sockets.PATHS,
        **schema["paths"],
    }
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for model in (MessageBody, RagMessageBody):
        message = model.model_json_schema(ref_template="#/components/schemas/{model}")
        components.update(message.pop("$defs", {}))
        components[model.__name__] = message
    return schema
