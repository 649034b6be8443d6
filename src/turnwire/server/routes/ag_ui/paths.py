"""These routes for the OpenAPI page."""

from typing import Any

from turnwire.server.routes.ag_ui.messages import RunInput, StopBody

_STREAM: dict[str, Any] = {"200": {"description": "AG-UI events", "content": {"text/event-stream": {}}}}
_LAST = "The last id received; the stream goes on after it."


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "description": description, "schema": {"type": "string"}}


def _body(model: type[RunInput] | type[StopBody]) -> dict[str, Any]:
    place = "#/paths/~1ag-ui/post/requestBody/content/application~1json/schema/$defs/{model}"
    schema = model.model_json_schema(by_alias=True, ref_template=place)
    return {"required": True, "content": {"application/json": {"schema": schema}}}


PATHS: dict[str, Any] = {
    "/ag-ui": {
        "post": {
            "tags": ["ag-ui"],
            "summary": "Run a thread's agent: ask, join a run, or decide about interrupts",
            "parameters": [_parameter("Last-Event-ID", "header", _LAST)],
            "requestBody": _body(RunInput),
            "responses": _STREAM,
        },
        "get": {
            "tags": ["ag-ui"],
            "summary": "A run again, or the messages of a thread",
            "parameters": [
                _parameter("runId", "query", "The run to read."),
                _parameter("offset", "query", "-1 for the whole run, or the last id received."),
                _parameter("Last-Event-ID", "header", _LAST),
                _parameter("threadId", "query", "Without a runId: the thread whose messages are wanted, as JSON."),
                _parameter("version", "query", "1 for a client of AG-UI 1.0; 0, the default, for others."),
            ],
            "responses": {
                **_STREAM,
                "204": {"description": "The run has ended and you have all of it"},
                "416": {"description": "There are not so many frames"},
            },
        },
    },
    "/ag-ui/stop": {
        "post": {
            "tags": ["ag-ui"],
            "summary": "Stop a run, or all that runs, waits or is queued in a thread; answers when it has stopped",
            "requestBody": _body(StopBody),
            "responses": {"200": {"description": "What was stopped", "content": {"application/json": {}}}},
        }
    },
}
