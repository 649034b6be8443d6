"""`/v1/responses`: turns as responses of OpenAI's, to be asked for, read again, gone on with, stopped and erased.

Every turn is a response, however it was started: `resp_<turn id>`. One that waited for a person has another one for
each time that it went on: `resp_<turn id>_2` …
"""

import re
from typing import Any

from turnwire.core.encoding import ascii_json
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.guard import Headers
from turnwire.server.openai_errors import invalid
from turnwire.server.openai_requests import parse_response_body
from turnwire.server.openai_responses import (
    decisions_before,
    place_of_response,
    response_so_far,
    settled_response,
)
from turnwire.server.openai_turns import begin_response, find_response
from turnwire.server.requests import path_of, query_of
from turnwire.server.responses import respond_json
from turnwire.server.routes.exchange import (
    STREAM_HEADERS,
    Request,
    Routes,
    idempotency_key,
    read_json,
    turn_headers,
    while_present,
)
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.lookahead import Place
from turnwire.server.streams.text import TextStream
from turnwire.server.turnwire import Turnwire
from turnwire.wires.openai_responses import OpenAIResponses, response_id
from turnwire.wires.openai_responses.items import decision_item, input_items

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
        place: Place,
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
