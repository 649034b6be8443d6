"""`/v1/responses`: turns as responses of OpenAI's, to be asked for, read again, gone on with, stopped and erased.

Every turn is a response, however it was started: `resp_<turn id>`. One that waited for a person has another one for
each time that it went on: `resp_<turn id>_2` …
"""

import re
from typing import Any

from pydantic import BaseModel

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.exchange import (
    STREAM_HEADERS,
    Request,
    Routes,
    idempotency_key,
    read_json,
    turn_headers,
    while_present,
)
from turnwire.server.guard import Headers
from turnwire.server.messages import path_of, query_of
from turnwire.server.payloads import respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint
from turnwire.server.streams.stream import TextStream
from turnwire.wires.openai.conversation import begin_response, find_response
from turnwire.wires.openai.frames import (
    decision_item,
    input_items,
    response_id,
)
from turnwire.wires.openai.messages import CompletionBody, ResponseBody, invalid, parse_response_body
from turnwire.wires.openai.responses_encoder import (
    OpenAIResponses,
)
from turnwire.wires.openai.resume import decisions_before, place_of_response, response_so_far, settled_response

_MOST_ITEMS = 100


class ResponseRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self.routes: Routes = (
            ("POST", re.compile("/v1/responses"), self.create),
            ("GET", re.compile("/v1/responses/[^/]+"), self.show),
            ("DELETE", re.compile("/v1/responses/[^/]+"), self.delete),
            ("POST", re.compile("/v1/responses/[^/]+/cancel"), self.cancel),
            ("GET", re.compile("/v1/responses/[^/]+/input_items"), self.input_items),
        )

    async def create(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TextStream | None:
        """Starts a turn, or takes a decision, and streams the response, or answers with it when it is over."""
        caller.needs("write")
        body, key = parse_response_body(await read_json(receive, headers)), idempotency_key(headers)
        store = self._turnwire.store
        if body.stream:
            with self._turnwire.streams.room(caller.principal):
                record, wire = await begin_response(self._turnwire, caller, body, key)
                return self._stream(scope, caller, record, await place_of_response(store, record, wire, 0), wire, added)
        record, wire = await begin_response(self._turnwire, caller, body, key)
        if body.background:
            response = await response_so_far(store, record, wire)
        else:
            waiting = settled_response(store, record.id, wire)
            response = await while_present(self._turnwire, receive, record, waiting)
        if response is not None:
            await respond_json(send, 200, ascii_json(response), [*added, *turn_headers(record)])
        return None

    async def show(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TextStream | None:
        """A response so far; or its stream, from the start or after an event."""
        caller.needs("read")
        query = query_of(scope)
        record, wire = await find_response(self._turnwire, caller, path_of(scope).split("/")[3])
        store = self._turnwire.store
        if query.get("stream") == "true":
            count = _starting_after(query) + 1
            with self._turnwire.streams.room(caller.principal):
                place = await place_of_response(store, record, wire, count)
                return self._stream(scope, caller, record, place, wire, added)
        response = await response_so_far(store, record, wire)
        await respond_json(send, 200, ascii_json(response), [*added, *turn_headers(record)])
        return None

    async def cancel(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Stops the turn, and answers when it has stopped, also if it had before."""
        caller.needs("write")
        record, wire = await find_response(self._turnwire, caller, path_of(scope).split("/")[3])
        await self._turnwire.runner.cancel(record.id)
        record = await self._turnwire.store.find_turn(caller.principal, record.id)
        response = await response_so_far(self._turnwire.store, record, wire)
        await respond_json(send, 200, ascii_json(response), [*added, *turn_headers(record)])

    async def delete(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Erases the turn and its log; with the last turn of a conversation, that too."""
        caller.needs("write")
        wanted = path_of(scope).split("/")[3]
        store = self._turnwire.store
        record, _ = await find_response(self._turnwire, caller, wanted)
        await self._turnwire.runner.cancel(record.id)
        await store.delete_turn(caller.principal, record.id)
        if not await store.list_turns(caller.principal, session_id=record.session_id, limit=1):
            await store.delete_session(caller.principal, record.session_id)
        await respond_json(send, 200, ascii_json({"id": wanted, "object": "response", "deleted": True}), added)

    async def input_items(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """What was sent: the message, with what the client told of the conversation before; or the decisions."""
        caller.needs("read")
        query = query_of(scope)
        record, wire = await find_response(self._turnwire, caller, path_of(scope).split("/")[3])
        if wire.segment == 1:
            items = input_items(record)
        else:
            decided = await decisions_before(self._turnwire.store, record.id, wire.segment)
            items = [decision_item(record.id, decision) for decision in decided]
        if query.get("order", "desc") != "asc":
            items.reverse()
        await respond_json(send, 200, ascii_json(_page(items, query)), added)

    def _stream(
        self,
        scope: Request,
        caller: Caller,
        record: TurnRecord,
        place: ResumePoint,
        wire: OpenAIResponses,
        added: Headers,
    ) -> TextStream:
        turnwire = self._turnwire
        location = f"{scope.get('root_path', '')}/v1/responses/{response_id(record.id, wire.segment)}?stream=true"
        headers = [
            *added,
            *STREAM_HEADERS,
            (b"content-type", wire.media_type.encode("ascii")),
            *turn_headers(record),
            (b"location", location.encode("ascii")),
        ]
        return TextStream(
            turnwire.streams, turnwire.runner, turnwire.store, caller, record, place, 0, wire, headers, added
        )


def _starting_after(query: dict[str, str]) -> int:
    """The number of the last event that the client has; -1 for none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise invalid("starting_after", "not the sequence_number of an event")
    return int(text)


def _page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit) <= _MOST_ITEMS:
        raise invalid("limit", f"a number from 1 to {_MOST_ITEMS}")
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


# The routes of OpenAI's clients for the OpenAPI page; they are not FastAPI's, so it does not know them.


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
