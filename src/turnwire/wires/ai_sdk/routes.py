"""`POST /api/chat`, its resumption and its stop button."""

import re
from typing import Any

from msgspec.structs import replace

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.errors import SessionNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import STREAM_HEADERS, OpenStream, Request, Routes, idempotency_key, turn_headers
from turnwire.server.guard import Headers
from turnwire.server.messages import check_id, path_of, query_of
from turnwire.server.payloads import respond, respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint, void_of
from turnwire.server.streams.stream import TextStream
from turnwire.wires.ai_sdk.conversation import gone_on, run_of, started, still_waiting, unfinished
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.frames import END
from turnwire.wires.ai_sdk.messages import ChatBody, UIMessage, parse_chat, read_chat
from turnwire.wires.ai_sdk.resume import AnswerStream, RunId, parse_run_id, place_of_chunk


class AiSdkRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self.routes: Routes = (
            ("POST", re.compile("/api/chat"), self.chat),
            ("GET", re.compile("/api/chat/[^/]+/stream"), self.resume),
            ("POST", re.compile("/api/chat/[^/]+/stop"), self.stop),
        )

    async def chat(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> OpenStream | None:
        """Starts a turn, joins the one that answers this message already, or goes on with one that has waited."""
        caller.needs("write")
        query = query_of(scope)
        wire = self._wire(query)
        body = parse_chat(await read_chat(receive, headers, added))
        with self._turnwire.streams.room(caller.principal):
            if (decided := body.decision_message) is not None:
                return await self._go_on(scope, send, caller, body, decided, wire, added)
            record = await started(self._turnwire, caller, body, idempotency_key(headers))
            return await self._stream(scope, query, caller, record, wire, added)

    async def _go_on(
        self, scope: Request, send: Send, caller: Caller, body: ChatBody, said: UIMessage, wire: AiSdk, added: Headers
    ) -> OpenStream | None:
        """Takes the decisions in a message, whose id is the turn's, and goes on where they were waited for."""
        record, place = await gone_on(self._turnwire, caller, body, said, wire)
        if place is None:
            # There is more to decide: the client is told to come back with that.
            told = b"".join(still_waiting(record.id)) + END
            await respond(send, 200, told, _headers(scope, wire, record, RunId(record.id), added))
            return None
        return self._open(scope, caller, record, RunId(record.id, place.position), place, wire, added)

    async def resume(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> OpenStream | None:
        """What is being answered in a chat, from the start; or a run, from a chunk."""
        caller.needs("read")
        query = query_of(scope)
        wire, index = self._wire(query), _start_index(query)
        wanted = check_id(path_of(scope).split("/")[3])
        run = await run_of(self._turnwire, caller, wanted)
        if run is None:
            await respond(send, 204, b"", added)
            return None
        record = await self._turnwire.store.find_turn(caller.principal, run.turn_id)
        with self._turnwire.streams.room(caller.principal):
            if index is None:
                return await self._stream(scope, query, caller, record, wire, added)
            place, tail = await place_of_chunk(self._turnwire.store, RunId(record.id, run.first), wire, index)
            told = [*added, (b"x-workflow-stream-tail-index", b"%d" % tail)]
            return self._open(scope, caller, record, run, place, wire, told)

    async def stop(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Stops a chat, the newest turn first, so that none begins when the one before it ends."""
        caller.needs("write")
        wanted = check_id(path_of(scope).split("/")[3])
        try:
            session = await self._turnwire.store.find_session(caller.principal, wanted)
        except SessionNotFoundError:
            run = parse_run_id(wanted)
            if not is_own_id(run.turn_id):
                raise
            turns = [await self._turnwire.store.find_turn(caller.principal, run.turn_id)]
        else:
            turns = await unfinished(self._turnwire, caller, session.id)
        for turn in reversed(turns):
            await self._turnwire.runner.cancel(turn.id)
        await respond_json(send, 200, ascii_json({"stopped": [turn.id for turn in turns]}), added)

    async def _stream(
        self, scope: Request, query: dict[str, str], caller: Caller, record: TurnRecord, wire: AiSdk, added: Headers
    ) -> OpenStream:
        """A turn from its start."""
        turnwire = self._turnwire
        void = await void_of(turnwire.store, record.id)
        if query.get("stream") == "text":
            start = [*added, *STREAM_HEADERS, *turn_headers(record)]
            return AnswerStream(turnwire.streams, turnwire.runner, turnwire.store, caller, record, void, start)
        return self._open(scope, caller, record, RunId(record.id), ResumePoint(void=void), wire, added)

    def _open(
        self,
        scope: Request,
        caller: Caller,
        record: TurnRecord,
        run: RunId,
        place: ResumePoint,
        wire: AiSdk,
        added: Headers,
    ) -> TextStream:
        turnwire = self._turnwire
        return TextStream(
            turnwire.streams,
            turnwire.runner,
            turnwire.store,
            caller,
            record,
            replace(place, rest=wire.opening + place.rest),
            turnwire.settings.text_start_timeout,
            wire,
            _headers(scope, wire, record, run, added),
            [*added, *turn_headers(record)],
        )

    def _wire(self, query: dict[str, str]) -> AiSdk:
        """Raises HttpError 422."""
        if query.get("stream", "text") != "text":
            raise HttpError(422, "invalid_request", "stream: only `text`, or nothing")
        try:
            return AiSdk.of_query(query, self._turnwire.settings.ai_sdk_version)
        except ValueError as error:
            raise HttpError(422, "invalid_request", str(error)) from None


def _headers(scope: Request, wire: AiSdk, record: TurnRecord, run: RunId, added: Headers) -> Headers:
    """What the SDK's own server sends, and what ours always does."""
    location = f"{scope.get('root_path', '')}/v1/turns/{record.id}/events?wire=ai_sdk&sdk_version={wire.sdk_version}"
    # HTTP/2 forbids it.
    alive = [(b"connection", b"keep-alive")] if scope.get("http_version", "1.1").startswith("1") else []
    return [
        *added,
        *STREAM_HEADERS,
        *alive,
        (b"content-type", wire.media_type.encode("ascii")),
        (b"x-vercel-ai-ui-message-stream", b"v1"),
        (b"x-workflow-run-id", str(run).encode("ascii")),
        *turn_headers(record),
        (b"location", location.encode("ascii")),
    ]


def _start_index(query: dict[str, str]) -> int | None:
    """Raises HttpError 422."""
    text = query.get("startIndex")
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise HttpError(422, "invalid_request", "startIndex: not a number of chunks")
    return int(text)


# These routes for the OpenAPI page.


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
