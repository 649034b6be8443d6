"""Figures about the house: `python -m scripts.house` prints lines, classes, settings and the walks of the code.

A walk is what the code passes for one thing that happens: the calls, functions and files of ours. `--walks` leaves the
rest out, `--no-walks` does without them.
"""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC240 - a script with nobody to serve may block and poll

import argparse
import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "turnwire"
KINDS = ("agents", "wires", "channels")
SINGLE_PLUGINS = ("retrieval", "scheduler")
SHOWN_CLASSES = 10


# What can be counted without running the code


def modules(folder: Path = SOURCE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def plugin_of(module: Path) -> str | None:
    """Return the plugin that a module belongs to; None for the kernel."""
    parts = module.relative_to(SOURCE).parts
    if parts[0] in SINGLE_PLUGINS:
        return parts[0]
    return f"{parts[0]}/{parts[1]}" if parts[0] in KINDS and len(parts) > 2 else None


def count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def size_rows() -> Iterator[tuple[str, str]]:
    """Yield lines and modules of everything, of the kernel and of each plugin."""
    by_plugin: dict[str | None, list[Path]] = {}
    for path in modules():
        by_plugin.setdefault(plugin_of(path), []).append(path)
    yield "src", _size(modules())
    yield "kernel", _size(by_plugin.pop(None))
    for name, paths in sorted(by_plugin.items(), key=lambda item: str(item[0])):
        yield f"plugin {name}", _size(paths)
    tests = [path for path in modules(ROOT / "tests") if "node_modules" not in path.parts]
    yield "tests", _size(tests)
    golden = [
        path for path in (ROOT / "tests").rglob("*") if "golden" in path.parts and path.suffix in (".txt", ".json")
    ]
    yield "golden files", f"{count_lines(golden):,} lines"


def _size(paths: list[Path]) -> str:
    return f"{count_lines(paths):,} lines, {len(paths)} modules"


def class_sizes() -> list[tuple[int, int, str]]:
    """Return the attributes and methods of all classes with state, the largest first."""
    found: list[tuple[int, int, str]] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                found.append((len(_attributes(node)), methods, node.name))
    return sorted(found, reverse=True)


def _attributes(kind: ast.ClassDef) -> set[str]:
    """Return the names that the methods of a class assign to `self`."""
    names: set[str] = set()
    for node in ast.walk(kind):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
                    names.add(each.attr)
    return names


def context_variables() -> int:
    return sum(len(re.findall(r"=\s*ContextVar\(", path.read_text())) for path in modules())


def store_methods() -> int:
    """Return the number of methods and properties of the interface of stores."""
    kinds: dict[str, ast.ClassDef] = {}
    for path in modules(SOURCE / "core"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                kinds[node.name] = node
    waiting, names = ["Store"], set[str]()
    while waiting:
        if (kind := kinds.get(waiting.pop())) is None:
            continue
        waiting += [base.id for base in kind.bases if isinstance(base, ast.Name)]
        names |= {each.name for each in kind.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return len(names)


def settings_count() -> int:
    from turnwire import Settings

    return len(Settings.model_fields)


# Walks

_NOISE = re.compile(r"^(_keep_lease|_renew|_recover|_guard_lease|_time_out_turns|_maintain|_watch_loop|_run_chores)$")


class Walk:
    """The calls of our functions, in all threads, while it is `taken`."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and not _NOISE.match(code.co_name):
            self.calls[code] += 1

    @contextmanager
    def taken(self) -> Iterator["Walk"]:
        threading.setprofile_all_threads(self._note) if sys.version_info >= (3, 12) else threading.setprofile(
            self._note
        )
        sys.setprofile(self._note)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def count(self, *names: str) -> int:
        """Return the calls of functions with these qualified names."""
        return sum(count for code, count in self.calls.items() if code.co_qualname in names)

    def row(self, times: int = 1) -> str:
        files = {code.co_filename for code in self.calls}
        return f"{round(self.calls.total() / times):,} calls, {len(self.calls)} functions, {len(files)} files"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def request(app: Any, path: str, body: bytes, on_message: Callable[[Any], None]) -> None:
    """Send a request to an ASGI app, and pass on what it sends until the answer has ended."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        on_message(message)

    await app(scope, receive, send)


class Talker:
    """An agent that says a word for each that it is asked for."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    async def answer(self, turn: Any) -> AsyncIterator[str]:
        while (word := await self.words.get()) is not None:
            yield word


async def walk_message_and_token(folder: str) -> Iterator[tuple[str, str]]:
    """Walk a POST up to its first byte, and a token from the agent to its reader, on SQLite."""
    from turnwire import Settings, Turnwire

    talker, received = Talker(), bytearray()
    server = Turnwire(talker, store="sqlite", settings=Settings(data=Path(folder)))
    app, started, tokens = server.asgi(), asyncio.Event(), 10

    def note(message: Any) -> None:
        received.extend(message.get("body", b""))
        if message["type"] == "http.response.start":
            started.set()

    await server.open()
    try:
        for _ in range(2):  # The first one of a process loads modules.
            received.clear()
            started.clear()
            post, token = Walk(), Walk()
            with post.taken():
                asking = asyncio.create_task(request(app, "/chat/stream", b'{"message": "Hello"}', note))
                await started.wait()
            talker.words.put_nowait("first")
            await until(lambda: b"first" in received)
            with token.taken():
                for number in range(1, tokens + 1):
                    talker.words.put_nowait("word")
                    await until(lambda count=number: received.count(b"word") == count)
            talker.words.put_nowait(None)
            await asking
    finally:
        await server.close()
    return iter([("a POST, SQLite", post.row()), ("a token, SQLite", token.row(tokens))])


def crashing_agent(folder: str, *, waits: bool) -> Any:
    """Return an agent that makes a recorded call, and then waits for its process to be killed, or goes on."""
    from turnwire import journaled

    class Crashing:
        on_crash = "resume"

        async def answer(self, turn: Any) -> AsyncIterator[str]:
            async def work() -> str:
                return "worked"

            yield await journaled("work", work, idempotent=True)
            if waits:
                Path(folder, "midway").touch()
                await asyncio.Event().wait()
            yield " and done"

    return Crashing()


async def serve_and_wait(folder: str) -> None:
    """Begin a turn whose agent waits in its middle, in a process that is then killed."""
    from turnwire import Settings, Turnwire

    server = Turnwire(crashing_agent(folder, waits=True), store="sqlite", settings=Settings(data=Path(folder)))
    await server.open()
    await request(server.asgi(), "/chat/stream", b'{"message": "Hello", "turn_id": "turn"}', lambda message: None)


async def walk_resume(folder: str) -> Iterator[tuple[str, str]]:
    """Walk the start of a server whose predecessor was killed, until the turn has gone on to its end."""
    from turnwire import Settings, Turnwire

    command = [sys.executable, "-m", "scripts.house", "--crash", folder]
    with subprocess.Popen(command, cwd=ROOT) as child:
        await until(lambda: Path(folder, "midway").exists())
        await asyncio.sleep(0.2)  # The word before it is committed.
        child.send_signal(signal.SIGKILL)
    server = Turnwire(crashing_agent(folder, waits=False), store="sqlite", settings=Settings(data=Path(folder)))
    counts, walk = count_calls(server.store, "read", "journal"), Walk()
    with walk.taken():
        await server.open()
        async with asyncio.timeout(60):
            while (turn := await server.store.find_turn("local", "turn")).phase != "ended":
                await asyncio.sleep(0.01)
    await server.close()
    # The epoch grows with each claim, and the killed process has made the first.
    facts = f"{turn.epoch - 1} claims, {walk.count('Execution.__init__')} executions, {counts['read']} reads of the log"
    return iter([("a resume after kill -9, SQLite", f"{walk.row()}; {facts}, {counts['journal']} of the journal")])


def count_calls(store: Any, *names: str) -> Counter[str]:
    """Count the calls of a store's methods from now on that have returned something."""
    counts: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            result = await method(*args, **options)
            counts[name] += bool(result)
            return result

        return call

    for name in names:
        setattr(store, name, counted(name, getattr(store, name)))
    return counts


async def walk_cancel(folder: str) -> Iterator[tuple[str, str]]:
    """Walk a cancel of a turn that another server runs, on PostgreSQL, from the request to the committed end."""
    from pydantic import SecretStr

    from tests.postgres_server import shared_server
    from turnwire import Settings, Turnwire

    url = await asyncio.to_thread(lambda: shared_server().url(shared_server().new_database()))
    servers = [
        Turnwire(Talker(), store="postgres", settings=Settings(data=Path(folder, name), database_url=SecretStr(url)))
        for name in ("one", "other")
    ]
    await servers[0].open()
    begun = asyncio.Event()

    def note(message: Any) -> None:
        if b'"type":"message"' in message.get("body", b""):
            begun.set()

    body = b'{"message": "Hello", "turn_id": "turn"}'
    asking = asyncio.create_task(request(servers[0].asgi(), "/chat/stream", body, note))
    await begun.wait()
    await servers[1].open()
    walk = Walk()
    with walk.taken():
        await request(servers[1].asgi(), "/v1/turns/turn/cancel", b"{}", lambda message: None)
    await asking
    for server in servers:
        await server.close()
    return iter([("a cancel from another process, PostgreSQL", walk.row())])


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    for name, value in rows:
        print(f"| {name} | {value} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", action="store_true", help="only the walks")
    parser.add_argument("--no-walks", action="store_true", help="all but the walks")
    parser.add_argument("--crash", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("TURNWIRE_")]:
        del os.environ[name]
    if options.crash:
        asyncio.run(serve_and_wait(options.crash))
        return
    print("| what | figure |\n| --- | --- |")
    if not options.walks:
        print_rows(size_rows())
        sizes = class_sizes()[:SHOWN_CLASSES]
        print_rows(
            (f"class {name}", f"{attributes} attributes, {methods} methods") for attributes, methods, name in sizes
        )
        print_rows([("context variables", str(context_variables())), ("methods of `Store`", str(store_methods()))])
        print_rows([("settings", str(settings_count()))])
    if not options.no_walks:
        for walk in (walk_message_and_token, walk_resume, walk_cancel):
            with tempfile.TemporaryDirectory() as folder:
                print_rows(asyncio.run(walk(folder)))


if __name__ == "__main__":
    main()
