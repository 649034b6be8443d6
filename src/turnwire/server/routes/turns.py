"""Turns: what one has come to, and stopping it. Its events are a stream."""

from fastapi import APIRouter

from turnwire.server.answers import snapshot_json
from turnwire.server.routes.dependencies import Json, PathId, Reading, Server, Writing

router = APIRouter(prefix="/v1/turns", tags=["turns"])


@router.get("/{id}", summary="A turn so far, and the position to go on from")
async def show(server: Server, caller: Reading, id: PathId) -> Json:
    record = await server.store.find_turn(caller.principal, id)
    return snapshot_json(record, await server.state(record))


@router.post("/{id}/cancel", summary="Stop a turn; answers when it has stopped, also if it had before")
async def cancel(server: Server, caller: Writing, id: PathId) -> Json:
    record = await server.store.find_turn(caller.principal, id)
    await server.runner.cancel(record.id)
    record = await server.store.find_turn(caller.principal, record.id)
    return snapshot_json(record, await server.state(record))
