"""A noisy neighbour: the times of one principal, while another one searches, downloads, uploads and deletes.

Quiet and noisy phases alternate, so that whatever else the machine does touches both. The noise is made by a process of
its own. The agent of the measured turns yields the time at which it makes each token.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from tests.faults.checks import percentile
from tests.faults.cluster import ROOT, ServerProcess, StoreName, make_keys
from tests.postgres_server import PostgresServer
from tests.retrieval.paper import with_part, word
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore

MOST = 3.0
"""The largest allowed ratio of a noisy 95th percentile to the quiet one."""
NOISE = {"search": 20, "download": 100, "upload": 6, "delete": 1}
"""How many of each kind there are at once."""
_SEARCHED_TURNS, _MESSAGE_BYTES = 400, 50_000
_LOG_EVENTS, _EVENT_BYTES = 200, 100_000
_DELETED_SESSIONS = 80
_USERS = 4
_TOKENS, _PAUSE = 20, 0.02
_PATIENCE = 120.0
_SETTINGS = {"lease": 10, "max_open_streams": 64, "max_running_turns": 1_000, "write_timeout": 5}


@dataclass
class Times:
    """The seconds that requests, first events and tokens of one phase or of all phases of a kind took."""

    post: list[float] = field(default_factory=list[float])
    first_event: list[float] = field(default_factory=list[float])
    token_age: list[float] = field(default_factory=list[float])

    def add(self, other: "Times") -> None:
        self.post += other.post
        self.first_event += other.first_event
        self.token_age += other.token_age


@dataclass
class NeighbourVerdict:
    store: StoreName
    quiet: Times = field(default_factory=Times)
    noisy: Times = field(default_factory=Times)
    noise: Counter[str] = field(default_factory=Counter[str])
    """What the noise was answered, by kind and status."""

    def ratios(self) -> dict[str, tuple[float, float, float]]:
        """Return for each measure the 95th percentiles of quiet and noisy phases, and their ratio."""
        quiet, noisy = asdict(self.quiet), asdict(self.noisy)
        percentiles = {name: (percentile(quiet[name]), percentile(noisy[name])) for name in quiet}
        return {name: (before, after, after / before) for name, (before, after) in percentiles.items()}

    @property
    def broken(self) -> list[str]:
        return [
            f"{name}: {after * 1000:.1f} ms with a noisy neighbour, {before * 1000:.1f} ms without"
            for name, (before, after, ratio) in self.ratios().items()
            if ratio > MOST
        ]


class MeasuredServer(ServerProcess):
    """One server with the limits of an ordinary one."""

    def __init__(self, folder: Path, url: str | None) -> None:
        super().__init__(0, folder)
        self._url = url
        self._documents = folder / "documents"
        self._documents.mkdir()
        (self._documents / "tea.md").write_text("# Tea\n\nTea is hot.")

    def settings(self) -> dict[str, object]:
        database = {"database_url": self._url} if self._url else {}
        return {**super().settings(), **_SETTINGS, **database}

    def variables(self) -> dict[str, str]:
        return {"TURNWIRE_DOCUMENTS_PATHS": json.dumps([str(self._documents)])}


async def run_neighbour_campaign(
    store: StoreName,
    *,
    folder: Path,
    phases: int,
    seconds: float,
    report: Callable[[str], None],
    kinds: Sequence[str] = (*NOISE,),
) -> NeighbourVerdict:
    """Measure `phases` quiet and as many noisy phases, with these kinds of noise."""
    verdict = NeighbourVerdict(store)
    async with _measured_server(store, folder) as (server, keys):
        report(f"{store}: {_SEARCHED_TURNS * _MESSAGE_BYTES // 10**6} MB of messages to search through")
        neighbour = Neighbour(server.url, keys["bob"])
        await neighbour.prepare()
        ann = Asker(server.url, keys["ann"])
        await ann.measure(2)  # Connections, caches and compiled statements are there.
        for number in range(phases):
            verdict.quiet.add(await ann.measure(seconds))
            async with neighbour.noise(await neighbour.fill_sessions(), kinds) as counts:
                noisy = await ann.measure(seconds)
            verdict.noisy.add(noisy)
            verdict.noise.update(counts)
            report(f"phase {number + 1} of {phases}: {len(noisy.post)} noisy turns, {dict(counts)}")
            await ann.measure(1)  # What the noise has left is worked off.
        await ann.close()
    return verdict


@asynccontextmanager
async def _measured_server(store: StoreName, folder: Path) -> AsyncIterator[tuple[MeasuredServer, dict[str, str]]]:
    engine = await asyncio.to_thread(PostgresServer) if store == "postgres" else None
    try:
        url = engine.url(await asyncio.to_thread(engine.new_database)) if engine else None
        server = MeasuredServer(folder, url)
        keys = await make_keys(PostgresStore(url) if url else SqliteStore(folder / "node0"))
        await server.start()
        assert server.is_ready, f"the server did not start; see {folder}"
        try:
            yield server, keys
        finally:
            await server.close()
    finally:
        if engine is not None:
            await asyncio.to_thread(engine.remove)


def _client(url: str, key: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_PATIENCE, limits=limits, trust_env=False)


class Asker:
    """The measured principal: a few users who ask one question after another."""

    def __init__(self, url: str, key: str) -> None:
        self._http = _client(url, key)

    async def measure(self, seconds: float) -> Times:
        times, end = Times(), time.monotonic() + seconds
        await asyncio.gather(*(self._ask_until(end, times) for _ in range(_USERS)))
        return times

    async def _ask_until(self, end: float, times: Times) -> None:
        while time.monotonic() < end:
            await self._ask(times)

    async def _ask(self, times: Times) -> None:
        body = {"message": f"{_TOKENS} {_PAUSE}", "agent": "aging"}
        since, has_event, is_done, rest = time.monotonic(), False, False, b""
        async with self._http.stream("POST", "/chat/stream", json=body) as response:
            assert response.status_code == 200, response.status_code
            times.post.append(time.monotonic() - since)
            async for chunk in response.aiter_raw():
                now = time.monotonic()
                *blocks, rest = (rest + chunk).split(b"\n\n")
                for event in filter(None, map(_event, blocks)):
                    if not has_event:
                        has_event = True
                        times.first_event.append(now - since)
                    if event["type"] == "token":
                        times.token_age += [now - float(made) for made in event["content"].split()]
                    is_done |= event["type"] == "done"
        assert is_done, "a turn of the measured principal did not end"

    async def close(self) -> None:
        await self._http.aclose()


def _event(block: bytes) -> dict[str, str] | None:
    data = next((line[6:] for line in block.split(b"\n") if line.startswith(b"data: ")), None)
    return None if data is None else json.loads(data)


class Neighbour:
    """The other principal: its data, and the process that makes its noise."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._large = ""

    async def prepare(self) -> None:
        """Write a large log, and turns with large messages to search through."""
        async with _client(self._url, self._key) as http:
            self._large = (await _turn(http, f"{_LOG_EVENTS} {_EVENT_BYTES}"))["turn_id"]
            text = ("Tea and oolong. " * (_MESSAGE_BYTES // 16))[:_MESSAGE_BYTES]
            await _in_groups(_SEARCHED_TURNS, lambda number: _turn(http, f"Ship {number}: {text}"))

    async def fill_sessions(self) -> list[str]:
        """Return new sessions to delete."""
        async with _client(self._url, self._key) as http:
            turns = await _in_groups(_DELETED_SESSIONS, lambda number: _turn(http, "20 10000"))
        return [turn["session_id"] for turn in turns]

    @asynccontextmanager
    async def noise(self, sessions: list[str], kinds: Sequence[str]) -> AsyncIterator[Counter[str]]:
        """Make noise until the block ends; the counts are complete then."""
        counts: Counter[str] = Counter()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__), cwd=ROOT, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        plan = {"url": self._url, "key": self._key, "turn_id": self._large, "sessions": sessions, "kinds": kinds}
        try:
            process.stdin.write(json.dumps(plan).encode() + b"\n")
            assert await asyncio.wait_for(process.stdout.readline(), _PATIENCE) == b"ready\n"
            yield counts
            output, _ = await asyncio.wait_for(process.communicate(b""), _PATIENCE)  # Its input ends, and so does it.
            counts.update(json.loads(output))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _turn(http: httpx.AsyncClient, message: str) -> dict[str, str]:
    """Run a turn in a session of its own. Return the ids of both."""
    answer = await http.post("/chat", json={"message": message, "agent": "filling"})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _in_groups(
    number: int, call: Callable[[int], Awaitable[dict[str, str]]], size: int = 8
) -> list[dict[str, str]]:
    results: list[dict[str, str]] = []
    for start in range(0, number, size):
        results += await asyncio.gather(*(call(at) for at in range(start, min(start + size, number))))
    return results


# The process that makes the noise


class Noise:
    """Searches, stalled downloads, hostile uploads and deletions, without a pause."""

    def __init__(self, url: str, key: str, turn_id: str, sessions: list[str], kinds: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._http = _client(url, key)
        self._host, self._port = url.removeprefix("http://").split(":")
        self._key = key
        self._turn_id = turn_id
        self._sessions = sessions
        self._kinds = kinds
        self._hostile = with_part(word("Tea"), "word/document.xml", b"<a>" * 5_000_000)

    async def run(self, until: asyncio.Event) -> None:
        loops = {"search": self._search, "download": self._download, "upload": self._upload, "delete": self._delete}
        tasks = [asyncio.ensure_future(loops[kind](number)) for kind in self._kinds for number in range(NOISE[kind])]
        await until.wait()
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._http.aclose()
        assert not any(failed), failed

    async def _search(self, number: int) -> None:
        while True:
            answer = await self._http.get("/v1/turns", params={"search": f"junk {number}"})
            await self._note("search", answer)

    async def _note(self, kind: str, answer: httpx.Response) -> None:
        self.counts[f"{kind} {answer.status_code}"] += 1
        if answer.status_code == 429:  # A client that never waits would only measure itself.
            await asyncio.sleep(float(answer.headers["retry-after"]))

    async def _download(self, number: int) -> None:
        """Ask for the log, read nothing, and ask again when the server has closed the connection."""
        loop = asyncio.get_running_loop()
        head = f"GET /v1/turns/{self._turn_id}/log.jsonl HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        request = f"{head}Authorization: Bearer {self._key}\r\n\r\n".encode()
        while True:
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                connection.setblocking(False)
                await loop.sock_connect(connection, (self._host, int(self._port)))
                await loop.sock_sendall(connection, request)
                status = (await loop.sock_recv(connection, 12)).decode()[9:]
                self.counts[f"download {status}"] += 1
                await asyncio.sleep(1 if status == "429" else 8)

    async def _upload(self, number: int) -> None:
        while True:
            files = {"file": (f"{number}.docx", self._hostile)}
            await self._note("upload", await self._http.post("/v1/documents", files=files))

    async def _delete(self, number: int) -> None:
        for session_id in self._sessions:
            await self._note("delete", await self._http.delete(f"/v1/sessions/{session_id}"))


async def make_noise() -> None:
    os.nice(5)  # The clients of a real server are on other machines.
    plan = json.loads(await asyncio.to_thread(sys.stdin.readline))
    noise, until = Noise(**plan), asyncio.Event()
    running = asyncio.create_task(noise.run(until))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    until.set()
    await running
    print(json.dumps(noise.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(make_noise())
