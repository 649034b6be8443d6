"""`turnwire ask`: one question, an exit code that tells the outcome, and output that other programs can read."""

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from tests.channels.console.typist import REFERENCES, serving_agents, typing, write_agents
from tests.process.running import COMMAND, Finished, environment, run
from tests.serving import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_agents(tmp_path)
    return tmp_path


async def ask(folder: Path, *arguments: str | Path, agent: str = "echo", **settings: str) -> Finished:
    """In this process's own folder, without a server."""
    return await run(
        "ask", *arguments, "--data", folder / "data", *REFERENCES, "--agent", agent, cwd=folder, **settings
    )


async def test_the_answer_is_on_stdout_and_the_rest_on_stderr_without_an_escape_code(folder: Path) -> None:
    told = await ask(folder, "Tell me", agent="story")
    assert told.code == 0
    assert told.out.startswith("# A story\n\nOnce upon a **time** there was 世界.\n\n- line 0\n- line 1\n")
    assert told.out.endswith("- line 39\n\nThe end.\n")
    assert told.err.splitlines() == [
        "· answered by this process (echo, story, digging, waiting, failing, lengthy)",
        "✓ remember 0.4s",
    ]
    assert "\x1b" not in told.out + told.err


async def test_json_is_the_log_as_it_is(folder: Path) -> None:
    told = await ask(folder, "Hello", "--json")
    tailed = await run("tail", "--data", folder / "data")
    assert (told.code, told.err) == (0, "")
    assert told.out == tailed.out
    assert [json.loads(line)["type"] for line in told.out.splitlines()] == [
        "session", "message", "token", "response", "done",
    ]  # fmt: skip


async def test_a_failure_is_told_by_the_exit_code(folder: Path) -> None:
    failed = await ask(folder, "Fail", agent="failing")
    assert (failed.code, failed.out) == (1, "Hm. \n")
    assert "✗" in failed.err
    assert "ValueError" in failed.err
    nobody = await ask(folder, "Hello", agent="nobody")
    assert nobody.code == 1
    assert nobody.err.endswith("turnwire: no agent is called 'nobody'\n") or "nobody" in nobody.err
    assert "Traceback" not in nobody.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((" ",), "there is no question"),
        (("-",), "there is no question"),
        (("Hello", "--url", "http://127.0.0.1:1", "--embedded"), "--url asks a server"),
        (("Hello", "--docs", "nowhere"), "nowhere"),
        ((), "Missing argument"),
    ],
)
async def test_a_wrong_call_is_2(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    refused = await run("ask", *arguments, "--data", folder / "data")
    assert refused.code == 2
    assert message in refused.err


async def test_a_server_that_is_not_there_is_1(folder: Path) -> None:
    refused = await run("ask", "Hello", "--url", "http://127.0.0.1:1", "--data", folder / "data")
    assert refused.code == 1
    assert "does not answer" in refused.err
    assert "Traceback" not in refused.err


async def test_the_question_may_come_from_a_pipe(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "ask", "-", "--data", folder / "data", *REFERENCES,
        cwd=folder, env=environment(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate("Wörter\nund Zeilen".encode()), PATIENCE)
    assert (process.returncode, out.decode()) == (0, "You said: Wörter\nund Zeilen\n")


async def test_ctrl_c_stops_the_turn_and_is_130(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "ask", "Wait", "--data", folder / "data", *REFERENCES, "--agent", "waiting",
        cwd=folder, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readexactly(6), PATIENCE) == b"Well, "
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 130
    assert "■ stopped" in err.decode()
    tailed = await run("tail", "--data", folder / "data")
    assert json.loads(tailed.out.splitlines()[-1])["outcome"] == "cancelled"


async def test_a_reader_that_leaves_is_no_reason_to_complain(folder: Path) -> None:
    options = f"--data {folder / 'data'} {' '.join(REFERENCES)} --agent lengthy"
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"set -o pipefail; {' '.join(COMMAND)} ask Go {options} | head -n 2",
        cwd=folder, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert out.decode().splitlines() == ["line 0", "line 1"]
    assert "Traceback" not in err.decode()
    assert "BrokenPipe" not in err.decode()
    assert process.returncode == 141


def test_a_running_server_is_asked_and_its_loss_is_3(folder: Path) -> None:
    data = folder / "data"
    with serving_agents(data, folder) as server:
        told = asyncio.run(run("ask", "Hello", "--data", data, "--session", "mine"))
        assert (told.code, told.out) == (0, "You said: Hello\n")
        assert told.err == f"· answered by the server at {server.url}\n"
        by_url = asyncio.run(run("ask", "Again", "--url", server.url, "--session", "mine", "--json"))
        first = json.loads(by_url.out.splitlines()[0])
        listed = asyncio.run(run("turns", "--data", data))
        assert len(listed.out.splitlines()) == 2
        assert first["turn_id"] in listed.out
        with typing("ask", "Wait", "--data", data, "--agent", "waiting", cwd=folder) as typist:
            typist.see("Well,")
            server.kill()
            typist.see("connection lost")
            server.start()
            typist.see("the server stopped before the answer was complete")
            assert typist.leaves() == 3


def test_at_a_terminal_the_answer_is_formatted(folder: Path) -> None:
    arguments = ("ask", "Tell me", "--data", folder / "data", *REFERENCES, "--agent", "story")
    with typing(*arguments, cwd=folder) as typist:
        typist.see("A story", "• line 39", "The end.")
        assert typist.leaves() == 0
        assert "**" not in typist.text
        assert all(sum(line.strip() == f"• line {number}" for line in typist.lines) == 1 for number in range(40))
    with typing(*arguments, "--plain", cwd=folder) as typist:
        typist.see("**time**", "The end.")
        assert typist.leaves() == 0
        assert "\x1b" not in typist.emulator.written
    with typing(*arguments, cwd=folder, NO_COLOR="1") as typist:
        typist.see("The end.")
        assert typist.leaves() == 0
        assert not re.search(r"\x1b\[(\d+;)*[39][0-7](;\d+)*m", typist.emulator.written)


async def test_chat_needs_a_terminal(folder: Path) -> None:
    refused = await run("chat", "--data", folder / "data")
    assert refused.code == 2
    assert "turnwire ask" in refused.err
