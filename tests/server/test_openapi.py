"""The OpenAPI document: valid, complete, and true for every request that can be generated from it."""

import asyncio
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from schemathesis import Case

from tests.server.conftest import Serve
from tests.serving import Served, saying

# For each operation and each mode: a few seconds for all of them.
EXAMPLES = 4
REQUEST_SECONDS = 20.0
# Values that exist, so that generated requests come further than "not found".
SESSION = "mine"


async def document_of(server: Served) -> dict[str, Any]:
    return (await server.http.get("/openapi.json")).json()


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


async def test_document_is_valid_and_complete(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        document = await document_of(server)
    await asyncio.to_thread(lambda: schemathesis.openapi.from_dict(document).validate())
    operations = dict(operations_of(document))
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)
    for name, operation in operations.items():
        assert operation["summary"], name
        assert operation["tags"], name
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Error"}, name
        declared = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
        assert declared == {part.strip("{}") for part in name.split("/") if part.startswith("{")}, name
    assert {"bearer", "key"} == set(document["components"]["securitySchemes"])


@pytest.mark.long
async def test_generated_requests_get_no_server_error_and_leave_the_server_well(serve: Serve) -> None:
    """Valid and invalid requests of every operation, always the same ones."""
    async with serve(saying("Hello."), store="sqlite") as server:
        await server.http.post("/v1/sessions", json={"id": SESSION})
        started = await server.http.post(f"/v1/sessions/{SESSION}/turns", json={"message": "Hello"})
        turn_id = started.json()["turn_id"]
        await server.whole(turn_id)
        failures, count = await asyncio.to_thread(fuzz, await document_of(server), server.url, turn_id)
        assert failures == []
        # Most operations can be called with valid and with invalid values.
        assert count > 4 * len(list(operations_of(await document_of(server))))
        assert (await server.http.get("/readyz")).json()["status"] == "ready"
        assert (await server.snapshot(turn_id))["phase"] == "ended"


def fuzz(document: dict[str, Any], url: str, turn_id: str) -> tuple[list[str], int]:
    """Send generated requests. Return those that failed, and how many were sent."""
    failures: list[str] = []
    count = 0

    def send(case: Case, mode: schemathesis.GenerationMode) -> None:
        nonlocal count
        count += 1
        if mode is schemathesis.GenerationMode.POSITIVE and case.method != "DELETE":
            known = {"id": turn_id if "/turns/" in case.path else SESSION, "session_id": SESSION, "agent": "default"}
            case.path_parameters = {name: known.get(name, value) for name, value in case.path_parameters.items()}
        request = case.as_transport_kwargs(base_url=url)
        try:
            # The body is not read: a stream may have no end.
            with http.request(**request, timeout=REQUEST_SECONDS, stream=True) as answer:
                status = answer.status_code
        except requests.RequestException as error:
            failures.append(f"{case.method} {case.path}: {type(error).__name__}")
            return
        if status >= 500:
            failures.append(f"{case.method} {case.path}: {status} {request}")

    schema, http = schemathesis.openapi.from_dict(document), requests.Session()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            if "101" in document["paths"][operation.path][operation.method]["responses"]:
                continue  # A WebSocket.
            for mode in modes_of(document["paths"][operation.path][operation.method]):
                run_examples(operation.as_strategy(generation_mode=mode), partial(send, mode=mode))
    return failures, count


def modes_of(operation: dict[str, Any]) -> list[schemathesis.GenerationMode]:
    """Return how to generate requests: invalid ones only if something can be invalid. A string in a path cannot."""
    kinds = {parameter["schema"].get("type") for parameter in operation.get("parameters", ())} - {"string"}
    has_invalid = "requestBody" in operation or kinds
    return [schemathesis.GenerationMode.POSITIVE, *([schemathesis.GenerationMode.NEGATIVE] if has_invalid else ())]


def run_examples(strategy: Any, send: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(strategy)
    def run(case: Case) -> None:
        send(case)

    run()
