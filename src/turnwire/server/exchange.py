"""What the routes that take a message, or stream, have in common: reading it, waiting for its turn, the headers."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from turnwire.app import Turnwire
from turnwire.assembly import SSE_CHAT
from turnwire.core.contracts import LogReader, Wire
from turnwire.core.errors import EventsGoneError
from turnwire.core.follow import follow
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.messages import Cursor, MessageBody
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint
from turnwire.server.streams.stream import SessionStream, TextStream, TurnStream
from turnwire.wires.ai_sdk.resume import AnswerStream

Answer = TypeVar("Answer")
Request = dict[str, Any]
OpenStream = TurnStream | SessionStream | TextStream | AnswerStream
Endpoint = Callable[[Request, Receive, Send, Caller, dict[bytes, bytes], Headers], Awaitable[OpenStream | None]]
Routes = Sequence[tuple[str, re.Pattern[str], Endpoint]]
"""Method, path, and who answers."""

STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]


def session_header(session_id: str) -> tuple[bytes, bytes]:
    return b"x-session-id", session_id.encode("ascii")


def turn_headers(record: TurnRecord) -> Headers:
    return [(b"x-turn-id", record.id.encode("ascii")), session_header(record.session_id)]


async def budget_header(turnwire: Turnwire, caller: Caller) -> Headers:
    """How many tokens were left when the stream began, if there is a limit."""
    budget = await turnwire.budget(caller.principal)
    return [] if budget is None else [(b"x-tokens-left", str(budget.left).encode("ascii"))]


def stream_headers(scope: Request, wire: Wire, record: TurnRecord, added: Headers) -> Headers:
    location = f"{scope.get('root_path', '')}/v1/turns/{record.id}/events"
    if wire is not SSE_CHAT:
        location += f"?wire={wire.name}"
    return [
        *added,
        *STREAM_HEADERS,
        (b"content-type", wire.media_type.encode("ascii")),
        *turn_headers(record),
        (b"location", location.encode("ascii")),
    ]


def text_stream(
    turnwire: Turnwire,
    scope: Request,
    caller: Caller,
    record: TurnRecord,
    place: ResumePoint | None,
    wire: Wire,
    added: Headers,
) -> TextStream:
    """A text stream from a place, or, with none, from the start as soon as there is something to say."""
    return TextStream(
        turnwire.streams,
        turnwire.runner,
        turnwire.store,
        caller,
        record,
        place,
        turnwire.settings.text_start_timeout,
        wire,
        stream_headers(scope, wire, record, added),
        [*added, *turn_headers(record)],
    )


async def answered(
    turnwire: Turnwire, receive: Receive, caller: Caller, body: MessageBody, key: str | None
) -> tuple[TurnRecord, TurnState] | None:
    """Starts a turn, or joins the one the key names, and waits until it has ended, or waits for a person itself.

    None if the client has left before.
    """
    accepted = await turnwire.start(caller.principal, body, key)
    turn_id = accepted.record.id
    if await while_present(turnwire, receive, accepted.record, rested(turnwire, caller, turn_id)) is None:
        return None
    record = await turnwire.store.find_turn(caller.principal, turn_id)
    return record, await turnwire.state(record)


async def while_present(
    turnwire: Turnwire, receive: Receive, record: TurnRecord, waiting: Coroutine[Any, Any, Answer]
) -> Answer | None:
    """What comes of waiting for something of a turn, as a reader of it. None if the client has left before."""
    turnwire.runner.reader_joined(record)
    waited = asyncio.create_task(waiting)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait([waited, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        turnwire.runner.reader_left(record.id, by_client=not waited.done())
        waited.cancel()
        gone.cancel()
    return waited.result() if waited.done() and not waited.cancelled() else None


async def rested(turnwire: Turnwire, caller: Caller, turn_id: str) -> Literal[True]:
    """Waits until a turn has ended, or waits for a person itself."""
    async with aclosing(follow(turnwire.store, turn_id)) as batches:
        async for events in batches:
            if any(logged.type == "approval_request" for logged in events):
                # It stands in the log since the turn waits; one that was decided long ago is only passed by.
                record = await turnwire.store.find_turn(caller.principal, turn_id)
                if any(step.state == "waiting" for step in (await turnwire.state(record)).steps):
                    break
    return True


async def is_ours(store: LogReader, record: TurnRecord, cursor: Cursor) -> bool:
    """Whether the position is one that this log has given out, so that it can be gone on from."""
    if cursor.position > record.last_position:
        return False
    if cursor.epoch is None or cursor.position == 0:
        return True
    try:
        events = await store.read(record.id, cursor.position - 1, 1)
    except EventsGoneError:
        return True
    return bool(events) and events[0].epoch == cursor.epoch


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def idempotency_key(headers: dict[bytes, bytes]) -> str | None:
    text = headers.get(b"idempotency-key", b"").decode("latin-1").strip()
    if len(text) > 255:
        raise HttpError(422, "invalid_request", "Idempotency-Key: longer than 255 characters")
    return text or None


async def read_json(receive: Receive, headers: dict[bytes, bytes]) -> bytes:
    """A body that says it is JSON; anything else a web page could send without asking."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise HttpError(415, "unsupported_media_type", "send the body as `Content-Type: application/json`")
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "disconnected", "the request was not complete")
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body
