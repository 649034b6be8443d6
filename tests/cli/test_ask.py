"""Tests of `turnwire ask`: its output in pipes and terminals, and its exit codes."""

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from tests.channels.console.typist import REFERENCES, serving_agents, typing, write_agents
from tests.process.server_process import COMMAND, CommandResult, environment, run
from tests.serving import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_agents(tmp_path)
    return tmp_path


async def ask(folder: Path, *arguments: str | Path, agent: str = "echo", **settings: str) -> CommandResult:
    """Run `turnwire ask` without a server."""
    return await run(
        "ask", *arguments, "--data", folder / "data", *REFERENCES, "--agent", agent, cwd=folder, **settings
    )


async def test_answer_is_on_stdout_and_the_rest_on_stderr_without_escape_codes(folder: Path) -> None:
    answered = await ask(folder, "Tell me", agent="story")
    assert answered.code == 0
    assert answered.out.startswith("# A story\n\nOnce upon a **time** there was 世界.\n\n- line 0\n- line 1\n")
    assert answered.out.endswith("- line 39\n\nThe end.\n")
    assert answered.err.splitlines() == [
        "· answered by this process (echo, story, digging, waiting, listening, failing, lengthy)",
        "✓ remember 0.4s",
    ]
    assert "\x1b" not in answered.out + answered.err


async def test_json_prints_the_log(folder: Path) -> None:
    answered = await ask(folder, "Hello", "--json")
    tailed = await run("tail", "--data", folder / "data")
    assert (answered.code, answered.err) == (0, "")
    assert answered.out == tailed.out
    assert [json.loads(line)["type"] for line in answered.out.splitlines()] == [
        "session", "message", "token", "response", "done",
    ]  # fmt: skip


async def test_beginning_of_a_session_id_continues_it_and_a_new_name_creates_one(folder: Path) -> None:
    async def session_of(*arguments: str) -> str:
        answered = await ask(folder, "Hello", "--json", *arguments)
        return json.loads(answered.out.splitlines()[0])["session_id"]

    first = await session_of()
    assert await session_of("--session", first[:8]) == first
    assert await session_of("--session", "cafe") != first
    second = await session_of()
    several = await ask(folder, "Hello", "--session", second[:8])
    if second[:8] == first[:8]:  # The same 65 seconds.
        assert (several.code, several.out) == (1, "")
        assert "ids begin with" in several.err


async def test_server_that_is_away_answers_nothing(folder: Path) -> None:
    refused = await run("ask", "Hello", "--url", "http://127.0.0.1:9", cwd=folder)
    assert (refused.code, refused.out) == (1, "")
    assert "answered by" not in refused.err
    assert "does not answer" in refused.err


async def test_failed_turn_exits_with_1(folder: Path) -> None:
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
        ((" ",), "the question is empty"),
        (("-",), "the question is empty"),
        (("Hello", "--url", "http://127.0.0.1:1", "--embedded"), "--url asks a server"),
        (("Hello", "--url", "localhost:8420"), "http://"),
        (("Hello", "--docs", "nowhere"), "nowhere"),
        ((), "Missing argument"),
    ],
)
async def test_wrong_usage_exits_with_2(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    refused = await run("ask", *arguments, "--data", folder / "data")
    assert refused.code == 2
    assert message in refused.err


async def test_unreachable_server_exits_with_1(folder: Path) -> None:
    refused = await run("ask", "Hello", "--url", "http://127.0.0.1:1", "--data", folder / "data")
    assert refused.code == 1
    assert "does not answer" in refused.err
    assert "Traceback" not in refused.err


async def test_question_is_read_from_a_pipe(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "ask", "-", "--data", folder / "data", *REFERENCES,
        cwd=folder, env=environment(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate("Wörter\nund Zeilen".encode()), PATIENCE)
    assert (process.returncode, out.decode()) == (0, "You said: Wörter\nund Zeilen\n")


async def test_ctrl_c_cancels_the_turn_and_exits_with_130(folder: Path) -> None:
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


async def test_closed_pipe_exits_with_141_and_no_traceback(folder: Path) -> None:
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


def test_running_server_answers_and_its_loss_exits_with_3(folder: Path) -> None:
    data = folder / "data"
    with serving_agents(data, folder) as server:
        answered = asyncio.run(run("ask", "Hello", "--data", data, "--session", "mine"))
        assert (answered.code, answered.out) == (0, "You said: Hello\n")
        assert answered.err == f"· answered by the server at {server.url}\n"
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
            assert typist.exit_code() == 3


def test_answer_in_a_terminal_is_formatted(folder: Path) -> None:
    arguments = ("ask", "Tell me", "--data", folder / "data", *REFERENCES, "--agent", "story")
    with typing(*arguments, cwd=folder) as typist:
        typist.see("A story", "• line 39", "The end.")
        assert typist.exit_code() == 0
        assert "**" not in typist.text
        assert all(sum(line.strip() == f"• line {number}" for line in typist.lines) == 1 for number in range(40))
    with typing(*arguments, "--plain", cwd=folder) as typist:
        typist.see("**time**", "The end.")
        assert typist.exit_code() == 0
        assert "\x1b" not in typist.emulator.written
    with typing(*arguments, cwd=folder, NO_COLOR="1") as typist:
        typist.see("The end.")
        assert typist.exit_code() == 0
        assert not re.search(r"\x1b\[(\d+;)*[39][0-7](;\d+)*m", typist.emulator.written)


async def test_chat_without_a_terminal_is_refused(folder: Path) -> None:
    refused = await run("chat", "--data", folder / "data")
    assert refused.code == 2
    assert "turnwire ask" in refused.err


async def test_files_are_sent_with_the_question(folder: Path) -> None:
    (folder / "seeing.py").write_text(
        "from turnwire import read_file\n"
        "async def look(turn):\n"
        "    for file in turn.attachments:\n"
        "        yield f'{file.name} {file.media_type} {len(await read_file(file))} '\n"
        "look.takes_attachments = ['image/*']\n"
    )
    (folder / "cat.png").write_bytes(b"\x89PNG")
    (folder / "notes.txt").write_text("notes")
    arguments = ("ask", "", "--data", folder / "data", "--agent", "seeing:look", "--file")
    answered = await run(*arguments, folder / "cat.png", cwd=folder)
    assert (answered.code, answered.out) == (0, "cat.png image/png 4 \n")
    refused = await run(*arguments, folder / "notes.txt", cwd=folder)
    assert (refused.code, refused.out) == (1, "")
    assert "takes image/*, and not text/plain" in refused.err
