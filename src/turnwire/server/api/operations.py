"""Operations: metrics, workers and unfinished turns, API keys, and probes."""

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path

from turnwire.core.contracts.stores import UnfinishedFilter, Worker
from turnwire.core.log.codec import time_text
from turnwire.core.log.turns import TurnRecord
from turnwire.reporting.exposition import MEDIA_TYPE, MetricReading, render
from turnwire.server.auth import key_json
from turnwire.server.messages import KeyBody
from turnwire.server.request import Request
from turnwire.server.router import Json, Route, RouteGroup, response
from turnwire.server.services import Services

_OPERATIONS = RouteGroup("operations")
_KEYS = RouteGroup("")
_PROBES = RouteGroup("probes")
_TEXT = {"200": response("Text", "text/plain")}
_STARTED = time.time()
_MAX_TURNS = 1_000
_MAX_COUNTED_TURNS = 100_000


async def server_readings(services: Services) -> list[MetricReading]:
    about = {"version": services.version, "worker": services.runner.worker.id}
    runner, is_draining = services.runner, services.lifecycle.is_draining
    phases = Counter(record.phase for record in await services.store.unfinished(limit=_MAX_COUNTED_TURNS))
    block = services.lifecycle.last_block
    return [
        MetricReading(
            "turnwire_worker_info", "This process: its version and the id that its turns name it by.", 1, about
        ),
        MetricReading("turnwire_turns_running", "Turns that this process runs.", len(runner.worker.running)),
        MetricReading("turnwire_turns_queued", "Turns that wait to be run, by any process.", phases["queued"]),
        MetricReading("turnwire_turns_waiting", "Turns that wait for a person's decision.", phases["waiting"]),
        MetricReading("turnwire_readers_open", "Streams and sockets that are open.", services.streams.open_count),
        MetricReading("turnwire_draining", "1 while the server shuts down and takes no turns.", is_draining),
        MetricReading(
            "turnwire_loop_last_block_seconds",
            "How long the event loop was blocked the last time, by which turn and at which line; 0 before the first.",
            block.seconds,
            {"turn": block.turn_id, "at": block.location},
        ),
    ]


def process_readings() -> list[MetricReading]:
    """Return the process metrics under their usual names. Reads files, so call it in a thread."""
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


@_OPERATIONS.route(
    "GET",
    "/metrics",
    "Metrics of this process, for Prometheus",
    access=lambda settings: "public" if settings.open_metrics else "operate",
    responses=_TEXT,
)
async def show_metrics(request: Request, services: Services) -> None:
    of_process = await asyncio.to_thread(process_readings)
    await request.respond_text(render([*await server_readings(services), *of_process]), MEDIA_TYPE)


@_OPERATIONS.route("GET", "/v1/workers", "The workers, and the unfinished turns")
async def list_workers(request: Request, services: Services) -> Json:
    if "operate" not in request.caller.scopes:
        where = UnfinishedFilter(principal=request.caller.principal)
        own = await services.store.unfinished(where=where, limit=_MAX_TURNS)
        return {"workers": [], "turns": [_turn_json(record) for record in own]}
    records = await services.store.unfinished(limit=_MAX_TURNS)
    workers = await services.store.workers()
    return {
        "workers": [_worker_json(worker, services, records) for worker in workers],
        "turns": [_turn_json(record) for record in records],
    }


def _worker_json(worker: Worker, services: Services, records: list[TurnRecord]) -> Json:
    is_this = worker.id == services.runner.worker.id
    return {
        "id": worker.id,
        "address": worker.name,
        "since": time_text(worker.started_at),
        "lease_until": time_text(worker.lease_until),
        "draining": services.lifecycle.is_draining if is_this else worker.draining,
        "running_turns": sum(record.phase == "running" and record.worker == worker.id for record in records),
        # A process knows only its own readers.
        "readers": services.streams.open_count if is_this else None,
    }


def _turn_json(record: TurnRecord) -> Json:
    """Return a turn without its text, which an operator need not read."""
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


# API keys: `turnwire keys` calls these routes while the server runs.


@_KEYS.route("GET", "/v1/keys", "The API keys", access="operator")
async def list_keys(request: Request, services: Services) -> Json:
    return {"keys": [key_json(key) for key in services.keys.all()]}


@_KEYS.route("POST", "/v1/keys", "Make an API key", access="operator", body=KeyBody, status=201)
async def create_key(request: Request, services: Services) -> Json:
    body = await request.parse_body(KeyBody)
    key, text = await services.keys.create(body.principal, body.scopes, body.expires_at)
    return {**key_json(key), "key": text}


@_KEYS.route("DELETE", "/v1/keys/{id}", "Revoke a key, and break its open streams", access="operator")
async def revoke_key(request: Request, services: Services) -> Json:
    key = await services.keys.revoke(request.id_param())
    services.streams.close_key(key.id)
    return key_json(key)


# Probes

_WELCOME = """Turnwire is running. Open {base}/ in a browser, or try:

  curl -N {base}/chat/stream -H 'Content-Type: application/json' -d '{{"message": "Hello"}}'

Every frame has an id. Break the stream off, and go on after the last id you saw:

  curl -N '{base}/v1/turns/TURN_ID/events?after=12'

All routes: {base}/docs
"""


@_PROBES.route(
    "GET",
    "/",
    "The web page; commands to try for a client that is not a browser",
    access="public",
    takes_slot=False,
    responses=_TEXT,
)
async def welcome(request: Request, services: Services) -> None:
    base = f"http://{services.settings.host}:{services.settings.port}"
    await request.respond_text(_WELCOME.format(base=base), "text/plain; charset=utf-8")


@_PROBES.route("GET", "/healthz", "Whether the process is alive", access="public", takes_slot=False)
async def healthz(request: Request, services: Services) -> Json:
    return {"status": "ok"}


@_PROBES.route("GET", "/readyz", "Whether the process accepts new turns", access="public", takes_slot=False)
async def readyz(request: Request, services: Services) -> None:
    if services.lifecycle.leaving.is_set():
        await request.respond_json(503, {"status": "draining"})
    else:
        await request.respond_json(200, {"status": "ready", "running_turns": len(services.runner.worker.running)})


def routes() -> list[Route]:
    return [*_PROBES.routes, *_OPERATIONS.routes, *_KEYS.routes]
