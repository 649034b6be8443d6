"""For who operates the server: its numbers, its workers, and the turns that are under way."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.requests import Request
from starlette.responses import Response

from turnwire.core.contracts import Worker
from turnwire.core.turns import TurnRecord
from turnwire.reporting.exposition import MEDIA_TYPE, render
from turnwire.reporting.times import time_text
from turnwire.server.auth import Caller
from turnwire.server.readings import process_readings, server_readings
from turnwire.server.routes.dependencies import Json, Reading, Server

router = APIRouter(tags=["operations"])

_MOST_TURNS = 1_000


@router.get("/metrics", response_class=PlainTextResponse, summary="What this process counts, for Prometheus")
async def metrics(server: Server, request: Request) -> Response:
    caller: Caller | None = request.scope["turnwire.caller"]
    if caller is not None:  # There is none where the settings let everybody read them.
        caller.needs("operate")
    of_process = await asyncio.to_thread(process_readings)
    return Response(render([*await server_readings(server), *of_process]), media_type=MEDIA_TYPE)


@router.get("/v1/workers", summary="The workers, and the turns under way")
async def workers(server: Server, caller: Reading) -> Json:
    if "operate" not in caller.scopes:
        own = await server.store.under_way(caller.principal, _MOST_TURNS)
        return {"workers": [], "turns": [_turn_json(record) for record in own]}
    records = await server.store.under_way(None, _MOST_TURNS)
    found = await server.store.workers()
    return {
        "workers": [_worker_json(worker, server, records) for worker in found],
        "turns": [_turn_json(record) for record in records],
    }


def _worker_json(worker: Worker, server: Server, records: list[TurnRecord]) -> Json:
    is_this = worker.id == server.runner.worker
    return {
        "id": worker.id,
        "address": worker.name,
        "since": time_text(worker.started_at),
        "lease_until": time_text(worker.lease_until),
        "draining": server.is_draining if is_this else worker.draining,
        "running_turns": sum(record.phase == "running" and record.worker == worker.id for record in records),
        # Only the process that is asked knows these of itself.
        "readers": server.streams.open_count if is_this else None,
    }


def _turn_json(record: TurnRecord) -> Json:
    """No words of the conversation: who operates a server need not read it."""
    return {
        "turn_id": record.id,
        "session_id": record.session_id,
        "principal": record.principal,
        "agent": record.agent,
        "channel": record.channel,
        "phase": record.phase,
        "worker": record.worker if record.phase == "running" else None,
        "last_position": record.last_position,
        "created_at": time_text(record.created_at),
        "started_at": time_text(record.started_at),
        "waiting_until": time_text(record.waiting_until) if record.phase == "waiting" else None,
    }
