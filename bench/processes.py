"""The processes of a measurement: servers on one core, a client on another."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench import measure
from bench.job import Job
from bench.servers import VARIANTS, Variant
from tests.postgres_server import PostgresServer

START_SECONDS = 120
SERVER_CORE, CLIENT_CORE = measure.cores()


class BenchError(Exception):
    """A run that must not be reported: a server did not start, or a stream was incomplete."""


@dataclass(frozen=True)
class Server:
    """A running server under test."""

    variant: Variant
    port: int
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        return measure.cpu_seconds(self.process.pid)

    def resident_bytes(self) -> int:
        return measure.resident_bytes(self.process.pid)

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
        while self.process.poll() is None and time.monotonic() < until:
            try:
                self.post("/bench/ready")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise BenchError(f"the server {self.variant.name!r} did not start; see its output above")

    def stop(self) -> None:
        # Killed, because a terminated server would wait for open streams.
        self.process.kill()
        self.process.wait()


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
    command = [sys.executable, "-m", "bench.servers", variant.name]
    options = ["--port", str(port), "--data", str(data)]
    if core is not None:
        options += ["--core", str(core)]
    return Server(variant, port, subprocess.Popen(command + options, env=os.environ | environment))


class Load:
    """A client process that runs one job."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._job = job

    def __enter__(self) -> "Load":
        self.reach("ready")
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()

    def proceed(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def reach(self, state: str) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        report: dict[str, Any] = json.loads(line) if line else {}
        if report.get("state") != state:
            raise BenchError(f"the client was to be {state!r} but sent {line!r} for {self._job}")
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
