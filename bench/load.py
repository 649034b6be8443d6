"""The load client: it opens streams and reports their results.

It runs in its own process, on its own core, and reports its states to the bench: `ready`, then (for a job that holds)
`open` once every stream is open, and waits for an answer after each; last comes `done`, with the result.
"""

import asyncio
import gc
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from bench import measure
from bench.job import Job
from bench.results import quantiles
from bench.scan import AgeScan, Scan, Tally, shared_buffer

# Not more, because the backlog of a listening socket is no larger on many machines.
OPENING_AT_ONCE = 128


class Client:
    def __init__(self, job: Job, bench: "Connection[Any, Any]") -> None:
        self.job = job
        self.bench = bench
        self.tally = Tally()
        self.shared = shared_buffer(job)
        self.opening = asyncio.Semaphore(OPENING_AT_ONCE)

    async def open(self, number: int = 0) -> Scan:
        kind = AgeScan if self.job.stamped else Scan
        job = replace(self.job, path=self.job.paths[number]) if self.job.paths else self.job
        async with self.opening:
            _, scan = await asyncio.get_running_loop().create_connection(
                lambda: kind(job, self.tally, self.shared), "127.0.0.1", self.job.port
            )
            if self.job.hold:
                await scan.opened
        return scan

    async def repeat(self, until: float) -> None:
        while True:
            await (await self.open()).closed
            if time.monotonic() >= until or self.tally.bad:
                return

    async def hold(self) -> float:
        """Open all streams, wait for the bench, and return when they were released."""
        scans = await asyncio.gather(*(self.open(n) for n in range(self.job.streams)))
        await self.report_state("open", received_bytes=sum(scan.received for scan in scans))
        started = time.monotonic()
        if self.job.leave:
            self.tally.received_bytes = sum(scan.received for scan in scans)
            for scan in scans:
                scan.transport.close()  # type: ignore[attr-defined]
            return started
        if self.job.go:
            await post(self.job.port, self.job.go)
        await asyncio.gather(*(scan.closed for scan in scans))
        return started

    async def run(self) -> None:
        await self.report_state("ready")
        started = time.monotonic()
        cpu = time.process_time()
        if self.job.hold:
            started = await self.hold()
        else:
            until = started + self.job.seconds
            await asyncio.gather(*(self.repeat(until) for _ in range(self.job.streams)))
        result = asdict(self.tally) | {
            "seconds": time.monotonic() - started,
            "client_cpu": time.process_time() - cpu,
            "first_ms": quantiles(self.tally.first_ms),
            "age_ms": quantiles(self.tally.age_ms),
            "oldest_ms": max(self.tally.age_ms, default=0.0),
            "bad": self.tally.bad[:3],
        }
        self.bench.send({"state": "done"} | result)

    async def report_state(self, state: str, **facts: int) -> None:
        """Report a state to the bench and wait for its answer."""
        self.bench.send({"state": state} | facts)
        await asyncio.to_thread(self.bench.recv)


async def post(port: int, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode())
    await reader.read()
    writer.close()


def run_client(job: Job, bench: "Connection[Any, Any]") -> None:
    if job.core is not None:
        measure.pin(job.core)
    measure.raise_open_files()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Client(job, bench).run())
