"""The sandbox: limits of time and memory, and crashes of the parser."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.retrieval.paper import pdf, with_part, word
from tests.serving import PATIENCE, until, within
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents import sandbox
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.documents.sandbox import parse_in_sandbox

pytestmark = pytest.mark.process

# The same parser with lower limits, because the real ones would take long to reach.
BOUND = """
import sys
from turnwire.retrieval.documents import sandbox
sandbox.{name} = {value}
sandbox.main(sys.argv[1], int(sys.argv[2]))
"""


def replace_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace the sandbox program."""
    monkeypatch.setattr(sandbox, "_COMMAND", (sys.executable, "-c", code))


async def failure_reason(name: str, content: bytes, timeout: float = PATIENCE) -> str:
    with pytest.raises(UnreadableDocumentError) as refused:
        await within(parse_in_sandbox(name, content, timeout))
    return str(refused.value)


async def test_sandbox_returns_the_parsed_document() -> None:
    documents = {
        "a.md": b"# Tea\n\nHot.",
        "b.pdf": pdf("Tea", "Hot", title="T"),
        "c.docx": word("# Tea", "Hot"),
        "d.html": b"<h1>Tea</h1><p>Hot.</p>",
        "e.txt": "Tee, heiß".encode("cp1252"),
    }
    read = await within(
        asyncio.gather(*(parse_in_sandbox(name, content, PATIENCE) for name, content in documents.items()))
    )
    assert read == [parse(name, content) for name, content in documents.items()]


async def test_sandbox_returns_the_parser_error() -> None:
    assert await failure_reason("../../etc/tea.pdf", b"no PDF") == "it is not a valid PDF"


async def test_endless_parser_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, "while True: pass")
    assert await failure_reason("tea.md", b"# Tea" * 100_000, timeout=0.2) == "it took longer than 0.2 seconds to read"


async def test_parser_over_the_memory_limit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, BOUND.format(name="_MAX_MEMORY", value=80 * 1024 * 1024))
    assert (await within(parse_in_sandbox("tea.md", b"# Tea", PATIENCE))).title == "Tea"
    assert (
        await failure_reason("tea.txt", b"tea\n\n" * 1_000_000)
        == "it cannot be read: the reader ran out of memory or time"
    )


async def test_bomb_is_refused_or_runs_out_of_memory_in_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, BOUND.format(name="_MAX_MEMORY", value=80 * 1024 * 1024))
    bomb = with_part(word("Tea"), "word/document.xml", b"<a>" * 5_000_000)
    assert len(bomb) < 200_000
    assert await failure_reason("bomb.docx", bomb)


async def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, BOUND.format(name="_MAX_CHARACTERS", value=1_000))
    assert (await within(parse_in_sandbox("tea.txt", b"x" * 1_000, PATIENCE))).text == "x" * 1_000
    assert await failure_reason("tea.txt", b"x" * 1_001) == "it holds more than 1,000 characters of text"


@pytest.mark.parametrize("crash", ["os.abort()", "os._exit(3)", "raise MemoryError", "os.kill(os.getpid(), 9)"])
async def test_parser_crash_is_reported(crash: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, f"import os\n{crash}")
    # The program ends before it has read all of this.
    assert (
        await failure_reason("tea.md", b"# Tea" * 200_000) == "it cannot be read: the reader ran out of memory or time"
    )


async def test_cancelled_call_kills_the_parser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = tmp_path / "pid"
    replace_program(
        monkeypatch, f"import os; open({str(result)!r}, 'w').write(f'{{os.getpid()}}\\n')\nwhile True: pass"
    )
    reading = asyncio.ensure_future(parse_in_sandbox("tea.md", b"# Tea", PATIENCE))
    await until(lambda: result.exists() and result.read_text().endswith("\n"))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(reading)
    with pytest.raises(ProcessLookupError):
        os.kill(int(result.read_text()), 0)


async def test_sandbox_does_not_import_from_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("msgspec", "resource", "markdown_it", "turnwire"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    assert (await within(parse_in_sandbox("tea.md", b"# Tea", PATIENCE))).title == "Tea"


async def test_output_that_no_parser_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, "print('no message', end='')")
    assert await failure_reason("tea.md", b"# Tea") == "it cannot be read: the reader failed"


async def test_output_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_MAX_OUTPUT", 1_000_000)
    replace_program(monkeypatch, "while True: print('x' * 10_000)")
    assert await failure_reason("tea.md", b"# Tea" * 200_000) == "it holds too much text"


# What a hostile file could do that has taken over the parser.

HOSTILE = """
import json
import os
import socket
import signal
import socket
import sys
from turnwire.retrieval.documents import parser, sandbox

def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__

def connect(family, kind, address):
    with socket.socket(family, kind) as client:
        client.connect(address)
        client.send(b"stolen")

def start():
    if not (child := os.fork()):
        try:
            os.execv("/bin/true", ["true"])
        finally:
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def parse(name, content):
    port, datagrams, secret, target, victim = json.loads(content)
    results = {
        "tcp": attempt(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))),
        "udp": attempt(lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", datagrams))),
        "read": attempt(lambda: open(secret).read()),
        "parent": attempt(lambda: open(f"/proc/{os.getppid()}/environ").read(1) and "read"),
        "write": attempt(lambda: open(target, "w").write("x")),
        "run": attempt(start),
        "kill": attempt(lambda: os.kill(victim, signal.SIGTERM)),
        "environment": sorted(os.environ),
    }
    return parser.ParsedDocument(json.dumps(results), [])

parser.parse = parse
{change}
sandbox.main(sys.argv[1], int(sys.argv[2]))
"""
REFUSED = {"tcp", "udp", "read", "parent", "write", "kill"}


@pytest.mark.parametrize("is_confined", [True, False])
async def test_hostile_parser_reaches_no_network_file_program_or_variable(
    is_confined: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the confinement every attempt succeeds, so the confinement is what stops them."""
    change = "" if is_confined else "sandbox.confine = lambda: None"
    replace_program(monkeypatch, HOSTILE.replace("{change}", change))
    monkeypatch.setenv("TURNWIRE_MODEL_KEY", "secret")
    secret, target = tmp_path / "secret", tmp_path / "target"
    secret.write_text("stolen")
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        orders = [listening.getsockname()[1], datagrams.getsockname()[1], str(secret), str(target), victim.pid]
        try:
            parsed = await within(parse_in_sandbox("tea.md", json.dumps(orders).encode(), PATIENCE))
        finally:
            if is_confined:
                assert victim.returncode is None
                victim.kill()
            await within(victim.wait())
        listening.setblocking(False)
        if is_confined:
            with pytest.raises(BlockingIOError):
                listening.accept()
        else:
            listening.accept()[0].close()
    results = json.loads(parsed.text)
    refused = {name for name, result in results.items() if result == "PermissionError"}
    assert refused == (REFUSED if is_confined else set())
    assert (results["run"] == "0") is not is_confined
    assert target.exists() is not is_confined
    # The environment is empty in any case, since the server starts the process without one.
    assert not {name for name in results["environment"] if name.startswith("TURNWIRE")}
    assert set(results["environment"]) <= {*sandbox._VARIABLES, "LC_CTYPE"}
