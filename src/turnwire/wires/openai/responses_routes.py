"""`/v1/responses`: turns as OpenAI responses, to create, read again, continue, stop and delete.

Every turn is a response, however it was started: `resp_<turn id>`. A turn that waited for a person has another response
for each time that it continued: `resp_<turn id>_2` …
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from turnwire.core.turns import TurnRecord
from turnwire.server.request import Request
from turnwire.server.router import AnyRoute, Endpoint, Parameter, Route, SocketRoute, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import START, ResumePoint
from turnwire.server.streams.stream import Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import while_connected
from turnwire.wires.openai.conversation import begin_response, find_response
from turnwire.wires.openai.frames import decision_item, input_items, response_id
from turnwire.wires.openai.messages import ResponseBody, invalid, openai_error, parse_response_body
from turnwire.wires.openai.responses_encoder import OpenAIResponses
from turnwire.wires.openai.resume import decisions_before, find_in_response, response_so_far, settled_response
from turnwire.wires.openai.socket import ResponseSocket

_MAX_ITEMS = 100


async def create(request: Request, services: Services) -> Stream | None:
    """Start a turn, or take a decision; stream the response, or answer with it when it is over."""
    request.caller.needs("write")
    body, key = parse_response_body(await request.json_body()), request.idempotency_key
    store = services.store
    if body.stream:
        with services.streams.room(request.caller.principal):
            record, wire, created = await begin_response(services, request.caller, body, key)
            point = START if created else await find_in_response(store, record, wire, 0)
            return _stream(request, services, record, wire, point)
    record, wire, created = await begin_response(services, request.caller, body, key)
    if body.background:
        result = await response_so_far(store, record, wire)
    else:
        waiting = settled_response(store, record.id, wire, created=created)
        result = await while_connected(services, request.receive, record, waiting)
    if result is not None:
        await request.respond_json(200, result, turn_headers(record))
    return None


async def show(request: Request, services: Services) -> Stream | None:
    """Answer with a response so far; or stream it, from the start or after an event."""
    request.caller.needs("read")
    query = request.query
    record, wire = await find_response(services, request.caller, request.params["id"])
    if query.get("stream") == "true":
        count = _starting_after(query) + 1
        with services.streams.room(request.caller.principal):
            point = await find_in_response(services.store, record, wire, count)
            return _stream(request, services, record, wire, point)
    await request.respond_json(200, await response_so_far(services.store, record, wire), turn_headers(record))
    return None


async def cancel(request: Request, services: Services) -> None:
    """Stop the turn, and answer when it has stopped, also if it had before."""
    request.caller.needs("write")
    record, wire = await find_response(services, request.caller, request.params["id"])
    await services.runner.cancel(record.id)
    record = await services.store.find_turn(request.caller.principal, record.id)
    await request.respond_json(200, await response_so_far(services.store, record, wire), turn_headers(record))


async def delete(request: Request, services: Services) -> None:
    """Delete the turn and its log; with the last turn of a conversation, the conversation too."""
    request.caller.needs("write")
    name, store, principal = request.params["id"], services.store, request.caller.principal
    record, _ = await find_response(services, request.caller, name)
    await services.runner.cancel(record.id)
    await store.delete_turn(principal, record.id)
    if not await store.list_turns(principal, session_id=record.session_id, limit=1):
        await store.delete_session(principal, record.session_id)
    await request.respond_json(200, {"id": name, "object": "response", "deleted": True})


async def list_input_items(request: Request, services: Services) -> None:
    """Answer with what the client sent: the message and its history, or the decisions."""
    request.caller.needs("read")
    record, wire = await find_response(services, request.caller, request.params["id"])
    if wire.segment == 1:
        items = input_items(record)
    else:
        decisions = await decisions_before(services.store, record.id, wire.segment)
        items = [decision_item(record.id, decision) for decision in decisions]
    if request.query.get("order", "desc") != "asc":
        items.reverse()
    await request.respond_json(200, _page(items, request.query))


def _stream(
    request: Request, services: Services, record: TurnRecord, wire: OpenAIResponses, point: ResumePoint
) -> Stream:
    path = f"/v1/responses/{response_id(record.id, wire.segment)}?stream=true"
    headers = [*turn_headers(record), location_header(request, path)]
    return stream_turn(request, services, record, wire, point, headers)


def _starting_after(query: dict[str, str]) -> int:
    """Return the number of the last event that the client has; -1 for none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise invalid("starting_after", "not the sequence_number of an event")
    return int(text)


def _page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit) <= _MAX_ITEMS:
        raise invalid("limit", f"a number from 1 to {_MAX_ITEMS}")
    ids = [item["id"] for item in items]
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise invalid("after", "no item has this id")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


_ID = Parameter("id", "path", "`resp_<turn id>`")


def _route(
    method: str,
    path: str,
    endpoint: Endpoint,
    summary: str,
    parameters: Sequence[Parameter] = (),
    body: type[BaseModel] | None = None,
) -> Route:
    responses = {"200": response("As OpenAI's clients expect it")}
    return Route(method, path, endpoint, summary, "openai", parameters, body, responses, openai_error)


def routes() -> list[AnyRoute]:
    return [
        _route(
            "POST",
            "/v1/responses",
            create,
            "Send a message, as with OpenAI's Responses API",
            [Parameter("Idempotency-Key", "header", "The same key again joins the same turn.")],
            ResponseBody,
        ),
        _route(
            "GET",
            "/v1/responses/{id}",
            show,
            "A response so far, or its stream",
            [
                _ID,
                Parameter("stream", "query", "`true` for the stream."),
                Parameter("starting_after", "query", "The `sequence_number` of the last event you have."),
            ],
        ),
        _route("DELETE", "/v1/responses/{id}", delete, "Delete a response, its turn and its log", [_ID]),
        _route("POST", "/v1/responses/{id}/cancel", cancel, "Stop a response; answers when it has stopped", [_ID]),
        _route(
            "GET",
            "/v1/responses/{id}/input_items",
            list_input_items,
            "What the client sent for a response",
            [
                _ID,
                Parameter("order", "query", "`asc`, or `desc`, which is the default."),
                Parameter("after", "query", "The last id of the page before."),
                Parameter("limit", "query", "The largest number of items, 20 by default."),
            ],
        ),
        SocketRoute("/v1/responses", ResponseSocket),
    ]
