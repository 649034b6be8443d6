"""The turns of requests: start or join one, wait for it, read it, stop it, and return it as JSON."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar

import msgspec

from turnwire.core.contracts.stores import Accepted, Budget, OnBusy
from turnwire.core.errors import (
    AgentNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    ShuttingDownError,
    TurnNotFoundError,
)
from turnwire.core.ids import is_own_id
from turnwire.core.log.codec import LoggedEvent, ascii_json, begins_wait, time_text
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob, attached_files
from turnwire.core.log.follow import fold_log, follow
from turnwire.core.log.turns import Message, TurnRecord, TurnState
from turnwire.core.run.runner import TurnRequest
from turnwire.server.attachments import Attachment
from turnwire.server.errors import HttpError, body_too_large, invalid_fields
from turnwire.server.guard import Headers
from turnwire.server.messages import MessageBody
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive
from turnwire.server.streams.stored_log import StateReader
from turnwire.settings import Settings

Result = TypeVar("Result")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a turn in its session: `parent` is the turn that it continues, by default the last one.

    With `restart` it continues none. `history` and `history_files` are the client's earlier messages and files of a new
    session.
    """

    parent: TurnRecord | None = None
    restart: bool = False
    history: Sequence[Message] = ()
    history_files: Sequence[Attachment] = ()


LAST_PLACE = Place()


async def start_turn(
    services: Services,
    principal: str,
    body: MessageBody,
    idempotency_key: str | None = None,
    *,
    place: Place = LAST_PLACE,
    channel: str = "http",
) -> Accepted:
    """Start a turn for a message in the session that the body names, or in a new one; or join the one already started.

    The body can name the parent too.
    """
    # Checked first, because the request may create the session: a refused request leaves nothing behind.
    if services.lifecycle.is_draining:
        raise ShuttingDownError
    if body.agent is not None and body.agent not in services.agents:
        raise AgentNotFoundError(body.agent)
    options, parent = body.options, place.parent
    blobs = _check_sizes(services, body, options, place)
    if place.history:
        options = {**options, "history": msgspec.to_builtins(place.history)}
    while True:
        session_id = await _session_id(services, principal, body.session_id)
        if body.parent_turn_id:
            parent = await services.store.find_turn(principal, body.parent_turn_id)
            session_id = parent.session_id if body.session_id is None else session_id
            if parent.session_id != session_id:
                raise TurnNotFoundError(body.parent_turn_id)
        if place.restart or body.parent_turn_id == "":
            parent_turn_id = ""
        else:
            parent_turn_id = parent.id if parent and parent.session_id == session_id else None
        request = TurnRequest(
            principal=principal,
            session_id=session_id,
            session_external_id=body.session_id if session_id is None else None,
            message=body.message,
            agent=body.agent,
            external_id=body.turn_id,
            idempotency_key=idempotency_key,
            # It is compared only for a turn with an idempotency key or an id of the client's.
            fingerprint=body.fingerprint() if idempotency_key or body.turn_id else "",
            on_busy=body.on_busy,
            disconnect_grace=body.disconnect_grace,
            parent_turn_id=parent_turn_id,
            channel=channel,
            attachments=await _attached(services, session_id, body.attachments),
            blobs=blobs,
            options=options,
        )
        try:
            async with services.requests.slot(principal):
                return await services.runner.start(request)
        except SessionExistsError:
            continue  # Another request has created the session meanwhile.


def _check_sizes(services: Services, body: MessageBody, options: dict[str, Any], place: Place) -> list[Blob]:
    """Check the sizes of the texts and files, and return the files, each once. Raises HttpError 413."""
    settings = services.settings
    text = len(body.message) + sum(len(message.content) for message in place.history)
    if text > settings.max_body_bytes or len(ascii_json(options)) > settings.max_body_bytes:
        raise body_too_large(settings.max_body_bytes)
    blobs = [blob for file in (*body.attachments, *place.history_files) if (blob := file.blob) is not None]
    for blob in blobs:
        check_file_size(settings, len(blob.body), blob.name)
    if sum(len(blob.body) for blob in blobs) > settings.max_message_bytes:
        raise body_too_large(settings.max_message_bytes)
    return list({blob.digest: blob for blob in blobs}.values())


def check_file_size(settings: Settings, size: int, name: str | None) -> None:
    """Raise HttpError 413 for a file over the limit."""
    if size > settings.max_file_bytes:
        raise HttpError(413, "file_too_large", f"{name or 'the file'} is over {settings.max_file_bytes:,} bytes")


async def _attached(services: Services, session_id: str | None, files: Sequence[Attachment]) -> list[AttachedFile]:
    """Return the descriptions of a message's files. Raises HttpError 413 or 422."""
    stored: dict[str | None, AttachedFile] = {}
    if session_id is not None and any(file.digest for file in files):
        stored = {file.digest: file for file in await services.store.list_blobs(session_id)}
    for index, file in enumerate(files):
        if file.digest is not None and file.digest not in stored:
            problem = "the session has no such file; upload it first"
            raise invalid_fields([{"loc": ("attachments", index, "digest"), "msg": problem}])
    attached = [file.described(stored.get(file.digest) if file.digest else None) for file in files]
    if sum(file.size or 0 for file in attached) > services.settings.max_message_bytes:
        raise body_too_large(services.settings.max_message_bytes)
    return attached


async def _session_id(services: Services, principal: str, name: str | None) -> str | None:
    """Return the id of an existing session; None for one that the turn is to create."""
    try:
        return None if name is None else (await services.store.find_session(principal, name)).id
    except SessionNotFoundError:
        if is_own_id(name or ""):
            raise
        return None


async def turn_state(store: StateReader, record: TurnRecord) -> TurnState:
    """Return a turn's state, folded from what is committed of its log."""
    if record.phase == "ended":
        state = await store.turn_state(record.id)
        if state is not None:
            return state
    return (await fold_log(store, record.id)).state()


def newest_branch(turns: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Return the newest turn after the turns that it continues, without those that were regenerated or edited."""
    by_id = {turn.id: turn for turn in turns}
    chain: list[TurnRecord] = []
    turn = turns[-1] if turns else None
    while turn is not None:
        chain.append(turn)
        turn = by_id.pop(turn.parent_turn_id, None) if turn.parent_turn_id else None
    return chain[::-1]


async def stop_turns(services: Services, turns: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Cancel the unfinished turns among these, and return them.

    The newest is cancelled first, so that no queued turn starts when the one before it ends.
    """
    unfinished = [turn for turn in turns if turn.phase != "ended"]
    for turn in reversed(unfinished):
        await services.runner.cancel(turn.id)
    return unfinished


async def on_busy_for(services: Services, turns: Sequence[TurnRecord]) -> OnBusy:
    """Return what a message does to the unfinished turns of its session, where clients have no field for it.

    It interrupts a turn that waits, because the user writes instead of deciding; and turns that run if nobody reads any
    of them, because the stop button of such clients only closes the connection.
    """
    running = [turn for turn in turns if turn.phase == "running"]
    is_read = any([await services.runner.presence.is_read(turn.id) for turn in running])
    is_waiting = any(turn.phase == "waiting" for turn in turns)
    return "interrupt" if is_waiting or (running and not is_read) else "enqueue"


async def last_turns(services: Services, principal: str, session_id: str | None, limit: int) -> list[TurnRecord]:
    """Return the last turns of a session, oldest first; none if there is no such session."""
    if session_id is None:
        return []
    try:
        session = await services.store.find_session(principal, session_id)
    except SessionNotFoundError:
        return []
    return await services.store.list_turns(principal, session_id=session.id, limit=limit)


async def remaining_budget(services: Services, principal: str) -> Budget | None:
    """Return the principal's budget of today; None if there is no limit."""
    return await services.runner.budget(principal) if services.settings.max_tokens_per_day else None


async def answer_turn(services: Services, request: Request, body: MessageBody) -> tuple[TurnRecord, TurnState] | None:
    """Start or join a turn and wait until it has ended or waits for a person. None if the client left before."""
    principal = request.caller.principal
    with services.streams.room(principal):
        accepted = await start_turn(services, principal, body, request.idempotency_key)
        return await settled_turn(services, request, accepted.record)


async def settled_turn(services: Services, request: Request, record: TurnRecord) -> tuple[TurnRecord, TurnState] | None:
    """Wait until a turn has ended or waits for a person or its client. None if the client left before."""
    principal = request.caller.principal
    if await while_connected(services, request.receive, record, _settled(services, principal, record.id)) is None:
        return None
    record = await services.store.find_turn(principal, record.id)
    return record, await turn_state(services.store, record)


async def while_connected(
    services: Services, receive: Receive, record: TurnRecord, waiting: Coroutine[Any, Any, Result]
) -> Result | None:
    """Return what `waiting` returns, counting the client as a reader of the turn. None if the client left before."""
    services.runner.presence.join(record)
    result = asyncio.create_task(waiting)
    disconnected = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait([result, disconnected], return_when=asyncio.FIRST_COMPLETED)
    finally:
        services.runner.presence.depart(record.id, by_client=not result.done())
        result.cancel()
        disconnected.cancel()
    return result.result() if result.done() and not result.cancelled() else None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _settled(services: Services, principal: str, turn_id: str) -> Literal[True]:
    async with aclosing(follow(services.store, turn_id)) as batches:
        async for events in batches:
            if not any(map(begins_wait, events)):
                continue
            # A wait in the log may have ended long ago; the record and the state show whether the turn still waits.
            record = await services.store.find_turn(principal, turn_id)
            state = await turn_state(services.store, record)
            if record.phase == "waiting" or any(step.state == "waiting" for step in state.steps):
                break
    return True


# Turns as JSON


def answer_status(state: TurnState) -> int:
    """Return 200 for an ended turn, 202 for one that waits for a person."""
    return 200 if state.outcome is not None else 202


def answer_json(state: TurnState, budget: Budget | None = None) -> dict[str, Any]:
    """Return the answer of an ended turn, or what a turn waits for; with the budget, if limited."""
    payload = {
        "session_id": state.session_id,
        "turn_id": state.turn_id,
        "content": state.text,
        "citations": msgspec.to_builtins(state.citations),
        "mode": state.mode,
        "tools_used": state.tools_used,
        "usage": msgspec.to_builtins(state.usage),
        "timings": state.timings,
        "outcome": state.outcome,
    }
    if state.joined is not None:
        payload["joined"] = msgspec.to_builtins(state.joined)
    if state.outcome is None:
        waiting = [step for step in state.steps if step.state == "waiting"]
        payload["approvals"] = [
            {"call_id": step.id, "tool": step.name, "args": step.args, "reason": step.reason} for step in waiting
        ]
        if questions := [question for question in state.questions if question.state == "open"]:
            payload["questions"] = [
                {"id": each.id, "prompt": each.prompt, "schema": each.schema, "call_id": each.call_id}
                for each in questions
            ]
        if calls := [step for step in state.steps if step.runs_on == "client" and step.state == "running"]:
            payload["tool_calls"] = [{"call_id": step.id, "tool": step.name, "args": step.args} for step in calls]
    if budget is not None:
        payload["budget"] = {"tokens_left": budget.left, "resets_at": time_text(budget.resets_at)}
    return payload


def budget_header(budget: Budget | None) -> Headers:
    """Return the header with the tokens that are left, if there is a limit."""
    return [] if budget is None else [(b"x-tokens-left", str(budget.left).encode("ascii"))]


def turn_error(state: TurnState, code: str | None = None) -> HttpError | None:
    """Return a 500 for a turn that failed or whose process was lost; None for any other turn.

    With a `code`, the turn's own code becomes the `cause`.
    """
    if state.outcome not in ("failed", "interrupted"):
        return None
    error = state.error
    cause = error.code if error else "turn_failed"
    fields: dict[str, Any] = {"turn_id": state.turn_id, "session_id": state.session_id, "outcome": state.outcome}
    if code is not None:
        fields["cause"] = cause
    return HttpError(500, code or cause, error.error if error else "the turn did not complete", **fields)


def chat_error(state: TurnState) -> HttpError | None:
    """Return the error of a failed turn on the routes of text streams."""
    return turn_error(state, "chat_failed")


def turn_json(record: TurnRecord) -> dict[str, Any]:
    files = attached_files(record.options)
    return {
        **({"attachments": msgspec.to_builtins(files)} if files else {}),
        "turn_id": record.id,
        "session_id": record.session_id,
        "external_id": record.external_id,
        "parent_turn_id": record.parent_turn_id or None,
        "agent": record.agent,
        "message": record.message,
        "phase": record.phase,
        "outcome": record.outcome,
        "last_position": record.last_position,
        "created_at": time_text(record.created_at),
        "started_at": time_text(record.started_at),
        "ended_at": time_text(record.ended_at),
    }


def snapshot_json(record: TurnRecord, state: TurnState) -> dict[str, Any]:
    """Return a turn and its state at one position, so that `after=position` misses and repeats nothing."""
    return {**turn_json(record), "position": state.position, "state": msgspec.to_builtins(state)}


def logged_json(logged: LoggedEvent) -> bytes:
    return b'{"position":%d,"epoch":%d,"at":%d,"event":%b}' % (
        logged.position,
        logged.epoch,
        logged.at,
        logged.body,
    )
