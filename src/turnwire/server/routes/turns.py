"""Turns: what one has come to, stopping it, and deciding for it. Its events are a stream."""

from typing import Annotated

from fastapi import APIRouter, Path

from turnwire.server.answers import snapshot_json
from turnwire.server.requests import ApprovalBody
from turnwire.server.routes.dependencies import Approving, Json, PathId, Reading, Server, Writing
from turnwire.server.turnwire import Turnwire

router = APIRouter(prefix="/v1/turns", tags=["turns"])


@router.get("/{id}", summary="A turn so far, and the position to go on from")
async def show(server: Server, caller: Reading, id: PathId) -> Json:
    return await _snapshot(server, caller.principal, id)


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


async def _snapshot(server: Turnwire, principal: str, turn_id: str) -> Json:
    record = await server.store.find_turn(principal, turn_id)
    return snapshot_json(record, await server.state(record))
