"""Turns: what one has come to, stopping it, and deciding for it. Its events are a stream."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response, StreamingResponse

from turnwire.app import Turnwire
from turnwire.core.codec import LoggedEvent
from turnwire.core.follow import PAGE
from turnwire.server.api.dependencies import Approving, Json, PathId, Reading, Server, Writing
from turnwire.server.messages import ApprovalBody
from turnwire.server.payloads import logged_json, snapshot_json

router = APIRouter(prefix="/v1/turns", tags=["turns"])


@router.get("/{id}", summary="A turn so far, and the position to go on from")
async def show(server: Server, caller: Reading, id: PathId) -> Json:
    return await _snapshot(server, caller.principal, id)


@router.get("/{id}/log.jsonl", summary="All that is committed of a turn's log, a line of JSON for each event")
async def log(server: Server, caller: Reading, id: PathId) -> Response:
    record = await server.store.find_turn(caller.principal, id)
    # Before the answer begins: what cannot be read is an error, and never the end of a shorter log.
    first = await server.store.read(record.id, 0, PAGE)
    name = f'attachment; filename="turn-{record.id}.jsonl"'
    headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
    return StreamingResponse(_lines(server, record.id, first), 200, headers, "application/jsonl")


@router.post("/{id}/cancel", summary="Stop a turn; answers when it has stopped, also if it had before")
async def cancel(server: Server, caller: Writing, id: PathId) -> Json:
    record = await server.store.find_turn(caller.principal, id)
    await server.runner.cancel(record.id)
    return await _snapshot(server, caller.principal, record.id)


@router.post("/{id}/approvals/{call_id}", summary="Allow or deny a tool call that a turn waits for")
async def approve(
    server: Server, caller: Approving, id: PathId, call_id: Annotated[str, Path(max_length=256)], body: ApprovalBody
) -> Json:
    record = await server.store.find_turn(caller.principal, id)
    await server.runner.decide(
        record.id, call_id, approved=body.approved, reason=body.reason, by=caller.principal, args=body.args
    )
    return await _snapshot(server, caller.principal, record.id)


async def _lines(server: Turnwire, turn_id: str, events: list[LoggedEvent]) -> AsyncIterator[bytes]:
    while events:
        yield b"".join(logged_json(logged) + b"\n" for logged in events)
        events = await server.store.read(turn_id, events[-1].position, PAGE)


async def _snapshot(server: Turnwire, principal: str, turn_id: str) -> Json:
    record = await server.store.find_turn(principal, turn_id)
    return snapshot_json(record, await server.state(record))
