"""For who operates the server: its numbers, its workers, and the turns that are under way."""

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.requests import Request
from starlette.responses import Response

import turnwire as package
from turnwire.app import Turnwire
from turnwire.core.codec import time_text
from turnwire.core.contracts import Worker
from turnwire.core.turns import TurnRecord
from turnwire.reporting.exposition import MEDIA_TYPE, MetricReading, render
from turnwire.server.api.dependencies import Json, Operator, PathId, Reading, Server
from turnwire.server.auth import Caller
from turnwire.server.messages import KeyBody
from turnwire.server.payloads import key_json

# What can be told of a server at this moment, for `/metrics`: what it has under way, and what it is.


_STARTED = time.time()
_MAX_COUNTED_TURNS = 100_000


async def server_readings(turnwire: Turnwire) -> list[MetricReading]:
    about = {"version": package.__version__, "worker": turnwire.runner.worker}
    runner = turnwire.runner
    phases = Counter(record.phase for record in await turnwire.store.under_way(None, _MAX_COUNTED_TURNS))
    return [
        MetricReading(
            "turnwire_worker_info", "This process: its version and the id that its turns name it by.", 1, about
        ),
        MetricReading("turnwire_turns_running", "Turns that this process runs.", runner.running_count),
        MetricReading("turnwire_turns_queued", "Turns that wait to be run, by any process.", phases["queued"]),
        MetricReading("turnwire_turns_waiting", "Turns that wait for a person's decision.", phases["waiting"]),
        MetricReading("turnwire_readers_open", "Streams and sockets that are open.", turnwire.streams.open_count),
        MetricReading("turnwire_draining", "1 while the server shuts down and takes no turns.", turnwire.is_draining),
    ]


def process_readings() -> list[MetricReading]:
    """Under the names that dashboards know. Reads files, so not for the event loop."""
    spent = MetricReading(
        "process_cpu_seconds_total", "CPU time that the process has used.", time.process_time(), kind="counter"
    )
    started = MetricReading("process_start_time_seconds", "When the process was started, in Unix time.", _STARTED)
    return [spent, started, *_from_proc()]


def _from_proc() -> list[MetricReading]:
    if not sys.platform.startswith("linux"):
        return []
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return [
        MetricReading("process_resident_memory_bytes", "Memory that the process has in RAM.", resident),
        MetricReading(
            "process_open_fds", "Files and sockets that the process has open.", len(os.listdir("/proc/self/fd"))
        ),
    ]


operations_router = APIRouter(tags=["operations"])

_MOST_TURNS = 1_000


@operations_router.get("/metrics", response_class=PlainTextResponse, summary="What this process counts, for Prometheus")
async def metrics(server: Server, request: Request) -> Response:
    caller: Caller | None = request.scope["turnwire.caller"]
    if caller is not None:  # There is none where the settings let everybody read them.
        caller.needs("operate")
    of_process = await asyncio.to_thread(process_readings)
    return Response(render([*await server_readings(server), *of_process]), media_type=MEDIA_TYPE)


@operations_router.get("/v1/workers", summary="The workers, and the turns under way")
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


# API keys, for the operator alone: `turnwire keys` calls these while the server runs.


keys_router = APIRouter(prefix="/v1/keys", tags=["keys"], include_in_schema=False)


@keys_router.get("")
async def index(server: Server, caller: Operator) -> Json:
    return {"keys": [key_json(key) for key in server.keys.all()]}


@keys_router.post("", status_code=201)
async def create(server: Server, caller: Operator, body: KeyBody) -> Json:
    key, text = await server.keys.create(body.principal, body.scopes, body.expires_at)
    return {**key_json(key), "key": text}


@keys_router.delete("/{id}")
async def revoke(server: Server, caller: Operator, id: PathId) -> Json:
    """The key's open streams are broken off at once."""
    key = await server.keys.revoke(id)
    server.streams.close_key(key.id)
    return key_json(key)


# Is it alive, is it ready, and what is this.


probes_router = APIRouter(tags=["probes"])

_WELCOME = """Turnwire is running. Open {base}/ in a browser, or try:

  curl -N {base}/chat/stream -H 'Content-Type: application/json' -d '{{"message": "Hello"}}'

Every frame has an id. Break the stream off, and go on after the last id you saw:

  curl -N '{base}/v1/turns/TURN_ID/events?after=12'

All routes: {base}/docs
"""


@probes_router.get("/", response_class=PlainTextResponse, summary="The web page for browsers; for others, what to try")
async def welcome(server: Server) -> str:
    return _WELCOME.format(base=f"http://{server.settings.host}:{server.settings.port}")


@probes_router.get("/healthz", summary="Whether the process is alive")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@probes_router.get("/readyz", summary="Whether it takes new turns")
async def readyz(server: Server) -> Response:
    if server.leaving.is_set():
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ready", "running_turns": server.runner.running_count})
