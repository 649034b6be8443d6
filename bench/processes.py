"""The processes of a measurement: servers on one core, a client on another.

They are forks of one process that has imported everything, because half of a run would be imports otherwise.
"""

import http.client
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench import measure
from bench.job import Job
from bench.load import run_client
from bench.servers import VARIANTS, Variant
from bench.servers.process import serve
from tests.postgres_server import PostgresServer

START_SECONDS = 120
SERVER_CORE, CLIENT_CORE = measure.cores()
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["bench.load", "bench.servers.process", "turnwire.app", "turnwire.server.app", "turnwire.stores.postgres"]
)


class BenchError(Exception):
    """A run that must not be reported: a server did not start, or a stream was incomplete."""


@dataclass(frozen=True)
class Server:
    """A running server under test."""

    variant: Variant
    port: int
    process: BaseProcess
    pid: int

    def cpu_seconds(self) -> float:
        return measure.cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        return measure.resident_bytes(self.pid)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", path, json.dumps(body or {}), headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise BenchError(f"POST {path} to {self.variant.name!r} answered {answer[:400]!r}")
        return json.loads(answer) if answer else None

    def job(self, path: str, *, tokens: int, streams: int, **rest: Any) -> Job:
        return Job(
            self.port,
            path,
            self.variant.marker,
            streams=streams,
            tokens=tokens,
            core=CLIENT_CORE,
            **rest,
        )

    def wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while self.process.is_alive() and time.monotonic() < until:
            try:
                self.post("/bench/ready")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise BenchError(f"the server {self.variant.name!r} did not start; see its output above")

    def stop(self) -> None:
        # Killed, because a terminated server would wait for open streams.
        self.process.kill()
        self.process.join()


@cache
def shared_database() -> PostgresServer:
    """Return a PostgreSQL server for all cases, which ends with the bench."""
    return PostgresServer()


@contextmanager
def serving(names: Iterable[str], **variables: str) -> Iterator[dict[str, Server]]:
    """Run all these servers at once, each new, with its own port and folder, and these environment variables."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in names:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            environment = dict(variables)
            if name == "postgres":
                database = shared_database()
                environment["TURNWIRE_DATABASE_URL"] = database.url(database.new_database())
            servers[name] = start(VARIANTS[name], data, SERVER_CORE, **environment)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_ready()
        yield servers


def start(variant: Variant, data: Path, core: int | None = SERVER_CORE, **environment: str) -> Server:
    port = measure.free_port()
    process = _FORKS.Process(target=serve, args=(variant.name, port, core, data, environment), daemon=True)
    process.start()
    assert process.pid is not None
    return Server(variant, port, process, process.pid)


class Load:
    """A client process that runs one job."""

    def __init__(self, job: Job) -> None:
        self._reports, remote = _FORKS.Pipe()
        self._process = _FORKS.Process(target=run_client, args=(job, remote), daemon=True)
        self._process.start()
        remote.close()
        self._job = job

    def __enter__(self) -> "Load":
        self.reach("ready")
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.join()
        self._reports.close()

    def proceed(self) -> None:
        self._reports.send(None)

    def reach(self, state: str) -> dict[str, Any]:
        try:
            report: dict[str, Any] = self._reports.recv()
        except EOFError:
            raise BenchError(f"the client ended before it was {state!r}, for {self._job}") from None
        if report["state"] != state:
            raise BenchError(f"the client was to be {state!r} but sent {report!r} for {self._job}")
        if report.get("bad"):
            raise BenchError(f"{self._job.path} on port {self._job.port}: {report['bad']}")
        return report


def measured(server: Server, job: Job) -> dict[str, float]:
    """Run a job and return its cost from the first request (or its gate) to the last byte."""
    yardstick = measure.Yardstick(SERVER_CORE)
    with Load(job) as load:
        before = server.cpu_seconds()
        load.proceed()
        if job.hold:
            load.reach("open")
            before = server.cpu_seconds()
            load.proceed()
        report = load.reach("done")
        used = server.cpu_seconds() - before
    sample: dict[str, float] = {
        "us_per_event": used * 1e6 / report["events"],
        "events_per_second": report["events"] / report["seconds"],
        "server_busy": used / report["seconds"],
        "client_busy": report["client_cpu"] / report["seconds"],
        "events": report["events"],
        **yardstick.result(),
    }
    for name, quantiles in (("first", report["first_ms"]), ("latency", report["age_ms"])):
        sample |= {f"{name}_{q}_ms": value for q, value in quantiles.items()}
    return sample


def warm(server: Server, job: Job) -> None:
    """Let a server do its one-time imports and allocations."""
    measured(server, replace(job, seconds=0, streams=min(job.streams, 8)))
