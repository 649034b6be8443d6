"""The routes of a server and its answers to refused requests, one line each. `UPDATE_GOLDEN=1` writes them again."""

import inspect
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from tests.golden.files import compare
from tests.serving import Client, quick_settings, saying, serving
from turnwire import Turnwire, TurnwireError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNLISTED_PATHS = ("/docs", "/guide/", "/openapi.json", "/v1/keys", "/v1/keys/{id}", "/turns/{id}", "/nothing", "/chat/")
STRANGER = "01890000-0000-7000-8000-000000000000"


def a_server(folder: Path, authenticate: Any = None, **settings: Any) -> Turnwire:
    return Turnwire(
        saying("Hello"), store="memory", settings=quick_settings(folder, **settings), authenticate=authenticate
    )


async def answer_of(client: Client, method: str, path: str, **request: Any) -> str:
    """Return the answer to a request as a line: its status, its error code, and the field that is wrong."""
    response = await client.http.request(method, path, **request)
    if not response.is_error or not response.content:
        return str(response.status_code)
    error = response.json()["error"]
    return " ".join(str(part) for part in (response.status_code, error["code"], error.get("param") or "")).strip()


def operation_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield each operation of an OpenAPI document with its parameters, the fields of its body, and its answers."""
    for path, operations in sorted(document["paths"].items()):
        for method, operation in sorted(operations.items()):
            parameters = sorted(f"{each['in']}:{each['name']}" for each in operation.get("parameters", ()))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            answers = sorted(operation["responses"])
            fields = sorted(_resolved(document, body).get("properties", {}))
            yield f"{method.upper()} {path} | {' '.join(parameters)} | {' '.join(fields)} | {' '.join(answers)}"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


async def test_openapi_document_has_the_routes_as_before(tmp_path: Path) -> None:
    async with serving(a_server(tmp_path)) as server:
        document = (await server.http.get("/openapi.json")).json()
    compare("openapi.txt", "\n".join(operation_lines(document)))


async def test_paths_take_the_methods_as_before(tmp_path: Path) -> None:
    found: list[str] = []
    async with serving(a_server(tmp_path)) as server:
        paths = {*(await server.http.get("/openapi.json")).json()["paths"], *UNLISTED_PATHS}
        for path in sorted(paths):
            sample = re.sub(r"\{\w+\}", "x", path)
            answers = [(method, await answer_of(server, method, sample)) for method in METHODS]
            taken = [f"{method} {answer}" for method, answer in answers if not answer.startswith("405")]
            found.append(f"{path} | {' | '.join(taken)}")
    compare("methods.txt", "\n".join(found))


def message_requests() -> list[tuple[str, dict[str, Any]]]:
    """Return a request for each path that starts a turn, with a valid body."""
    text = [{"type": "text", "text": "Hello"}]
    chat = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": text}], "trigger": "submit-message"}
    run = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hello"}]}
    completion = {"messages": [{"role": "user", "content": "Hello"}]}
    return [
        ("/chat", {"message": "Hello"}),
        ("/chat/stream", {"message": "Hello"}),
        ("/v1/rag/sessions/s/messages", {"message": "Hello"}),
        ("/v1/rag/sessions/s/messages/stream", {"prompt": "Hello"}),
        ("/api/chat", chat),
        ("/ag-ui", {**run, "state": {}, "tools": [], "context": [], "forwardedProps": {}}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/chat/completions", completion),
    ]


async def test_refused_messages_have_the_answers_as_before(tmp_path: Path) -> None:
    found: list[str] = []
    async with serving(a_server(tmp_path, max_body_bytes=2_000)) as server:

        async def add(method: str, path: str, note: str, **request: Any) -> None:
            found.append(f"{method} {path} ({note}) | {await answer_of(server, method, path, **request)}")

        for path, body in message_requests():
            sent = {"headers": {"Content-Type": "application/json"}}
            await add("POST", path, "not JSON", content=b"{", **sent)
            await add("POST", path, "empty object", json={})
            await add("POST", path, "list", json=[])
            await add("POST", path, "wrong media type", content=b"{}", headers={"Content-Type": "text/plain"})
            await add("POST", path, "too large", content=b" " * 3_000, **sent)
            await add("POST", path, "unknown agent", json={**body, "agent": "nobody", "model": "nobody"})
            await add("POST", path, "foreign Host", json=body, headers={"Host": "evil.example"})
            await add("POST", path, "foreign Origin", json=body, headers={"Origin": "https://evil.example"})
        for key, value in {
            "attachments": [{"media_type": "image/png", "data": "aGk="}],
            "images": "x",
            "file": "x",
            "session_id": "a b",
            "parent_turn_id": "nowhere",
        }.items():
            await add("POST", "/chat", key, json={"message": "Hello", key: value})
        await add("POST", "/chat", "blank", json={"message": " "})
        await add("POST", "/chat", "foreign id of our form", json={"message": "Hello", "session_id": STRANGER})
        await add("POST", "/v1/turns/x/approvals/y", "unknown turn", json={"approved": True})
        await add("POST", "/v1/turns/x/approvals/y", "not a decision", json={"approved": "yes"})
        await add("PATCH", "/v1/sessions/x", "blank title", json={"title": " "})
        await add("POST", "/ag-ui/stop", "unknown run", json={"runId": "x"})
        keyed: dict[str, Any] = {"headers": {"Idempotency-Key": "key-1"}}
        await add("POST", "/chat", "key-1", json={"message": "Hello", "turn_id": "turn-1"}, **keyed)
        await add("POST", "/chat", "key-1 again", json={"message": "Hello", "turn_id": "turn-1"}, **keyed)
        await add("POST", "/chat", "key-1, another message", json={"message": "Other"}, **keyed)
        for path in (
            "/v1/turns/turn-1/events?wire=morse",
            "/v1/turns/turn-1/events?after=x",
            "/v1/turns/turn-1/events?after=99999",
            "/v1/turns/turn-1/events?offset=3",
            "/v1/turns/turn-1/events?wire=three_phase_text&offset=99999",
            "/v1/turns/turn-1/events?wait=x",
            "/v1/turns/turn-1/events?wire=ai_sdk&sdk_version=4",
            "/v1/turns/turn-1/events?wire=ag_ui&version=9",
            "/v1/turns/turn-1/events?wire=openai_responses&segment=x",
            "/v1/sessions?limit=0",
            "/v1/sessions/x/events?after=x",
            "/v1/responses/resp_x?stream=true&starting_after=x",
            "/v1/models/nobody",
            "/api/chat/turn-1/stream?startIndex=x",
            "/ag-ui?runId=x",
        ):
            await add("GET", path, "query")
    compare("refusals.txt", "\n".join(found))


def error_samples() -> Iterator[TurnwireError]:
    """Yield an instance of every error class of the core, and of every code that one of them may have."""
    waiting: list[type[TurnwireError]] = [TurnwireError]
    while waiting:
        kind = waiting.pop()
        waiting += [below for below in kind.__subclasses__() if below.__module__ == TurnwireError.__module__]
        parameters = [
            parameter
            for parameter in inspect.signature(kind.__init__).parameters.values()
            if parameter.name != "self"
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        choices = [_sample_values(parameter.annotation) for parameter in parameters]
        for values in product(*choices):
            yield kind(**{parameter.name: value for parameter, value in zip(parameters, values, strict=True)})


def _sample_values(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return (10**13,) if annotation is int else ("sample",)


async def test_error_classes_have_the_codes_and_statuses_as_before(tmp_path: Path) -> None:
    raised: list[Exception] = []

    def authenticate(scope: Any) -> str:
        raise raised[-1]

    found: set[str] = set()
    async with serving(a_server(tmp_path, authenticate)) as server:
        for error in error_samples():
            raised.append(error)
            plain, openai = await server.http.get("/v1/sessions"), await server.http.get("/v1/models")
            assert plain.json()["error"]["code"] == error.code
            again = "Retry-After" if "retry-after" in plain.headers else "-"
            other = openai.json()["error"]
            found.add(
                f"{error.code} | {plain.status_code} | {again} | "
                f"OpenAI: {openai.status_code} {other['code']} {other['type']} {other['param']}"
            )
    compare("errors.txt", "\n".join(sorted(found)))
