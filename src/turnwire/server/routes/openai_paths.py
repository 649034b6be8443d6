"""The routes of OpenAI's clients for the OpenAPI page; they are not FastAPI's, so it does not know them."""

from typing import Any

from pydantic import BaseModel

from turnwire.server.openai_requests import CompletionBody, ResponseBody


def _operation(summary: str, *parameters: dict[str, Any], body: type[BaseModel] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"tags": ["openai"], "summary": summary, "parameters": list(parameters)}
    if body is not None:
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body.model_json_schema()}},
        }
    return {**told, "responses": {"200": {"description": "As OpenAI's clients know it"}}}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": place, "required": place == "path", "description": description, "schema": schema}


_ID = _parameter("id", "path", "`resp_<turn id>`")
_KEY = _parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
PATHS: dict[str, Any] = {
    "/v1/responses": {"post": _operation("Ask, as OpenAI's Responses API is asked", _KEY, body=ResponseBody)},
    "/v1/responses/{id}": {
        "get": _operation(
            "A response so far, or its stream",
            _ID,
            _parameter("stream", "query", "`true` for the stream."),
            _parameter("starting_after", "query", "The `sequence_number` of the last event you have."),
        ),
        "delete": _operation("Erase a response, its turn and its log", _ID),
    },
    "/v1/responses/{id}/cancel": {"post": _operation("Stop a response; answers when it has stopped", _ID)},
    "/v1/responses/{id}/input_items": {
        "get": _operation(
            "What was sent to a response",
            _ID,
            _parameter("order", "query", "`asc`, or `desc`, which is the default."),
            _parameter("after", "query", "The last id of the page before."),
            _parameter("limit", "query", "At most so many, 20 by default."),
        )
    },
    "/v1/chat/completions": {
        "post": _operation(
            "Ask, as OpenAI's Chat Completions API is asked",
            _parameter("X-Session-Id", "header", "The session to keep the turn in; a new one without it."),
            _KEY,
            body=CompletionBody,
        )
    },
    "/v1/models": {"get": _operation("The agents, by name")},
    "/v1/models/{id}": {"get": _operation("An agent", _parameter("id", "path", "Its name."))},
}
