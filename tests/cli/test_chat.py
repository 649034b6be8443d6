"""Tests of `turnwire chat` in a pseudo-terminal, with a real server."""

import signal
import stat
import termios
from pathlib import Path

import pytest

from tests.channels.console.typist import REFERENCES, Typist, serving_agents, typing, write_agents
from tests.extensions.harness import write_extension
from tests.process.test_imports import loaded

pytestmark = pytest.mark.process

CTRL_C, CTRL_D, ENTER, ALT_ENTER = "\x03", "\x04", "\r", "\x1b\r"
PROMPT = "/help for commands"


def ask(typist: Typist, message: str) -> None:
    typist.type(message + ENTER)


@pytest.mark.rotated("size")
@pytest.mark.parametrize("size", [(80, 24), (40, 15), (200, 50)], ids=str)
def test_answer_is_shown_once_in_terminals_of_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    data = tmp_path / "data"
    # Variables exported by a shell must not override the terminal's real size.
    stale = {"size": size, "COLUMNS": "80", "LINES": "24"}
    with serving_agents(data, tmp_path) as server, typing("chat", "--data", data, cwd=tmp_path, **stale) as typist:
        typist.see("the server", server.url, PROMPT)
        ask(typist, "/agents story")
        typist.see("story answers")
        ask(typist, "Tell me")
        typist.see("✓ remember 0.4s", "A story", "The end.")
        for number in range(40):
            assert sum(line.strip() == f"• line {number}" for line in typist.lines) == 1, typist.text
        assert "**" not in typist.text
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_chat_without_a_server_answers_in_this_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_agents(tmp_path)
    with typing("chat", "--data", data, *REFERENCES, cwd=tmp_path) as typist:
        typist.see("this process (echo, story", PROMPT)
        ask(typist, "Hello")
        typist.see("You said: Hello")
        # The folder is in use by a process that is no server.
        with typing("chat", "--data", data, cwd=tmp_path) as second:
            second.see("is using it")
            assert second.exit_code() == 1
        ask(typist, "/quit")
        assert typist.exit_code() == 0


def test_ctrl_c_cancels_the_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_agents(data, tmp_path), typing("chat", "--data", data, "--agent", "digging", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Dig")
        typist.see("Let me dig.", "dig(deep=True)")
        typist.type(CTRL_C)
        typist.see("not finished", "■ stopped")
        ask(typist, "/agents echo")
        typist.see("echo answers")
        ask(typist, "Are you there")
        typist.see("You said: Are you there")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_ctrl_c_cancels_an_embedded_turn(tmp_path: Path) -> None:
    write_agents(tmp_path)
    references = ("--agent", "agents_at_the_terminal:digging", "--agent", "agents_at_the_terminal:echo")
    with typing("chat", "--data", tmp_path / "data", *references, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Dig")
        typist.see("dig(deep=True)")
        typist.type(CTRL_C)
        typist.see("■ stopped")
        ask(typist, "/agents echo")
        ask(typist, "Are you there")
        typist.see("You said: Are you there")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_ctrl_c_twice_leaves(tmp_path: Path) -> None:
    write_agents(tmp_path)
    # An agent that ignores cancellation.
    (tmp_path / "stubborn.py").write_text(
        "import asyncio\n"
        "async def stubborn(turn):\n"
        "    yield 'No.'\n"
        "    while True:\n"
        "        try:\n"
        "            await asyncio.Event().wait()\n"
        "        except asyncio.CancelledError:\n"
        "            pass\n"
    )
    with typing("chat", "--data", tmp_path / "data", "--agent", "stubborn:stubborn", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Stop")
        typist.see("No.")
        typist.type(CTRL_C)
        typist.see("Ctrl-C again to leave")
        # Both, because on a slow machine the first one may be too long ago.
        typist.type(CTRL_C + CTRL_C)
        assert typist.exit_code() == 130


def test_ctrl_c_at_the_prompt_clears_the_line_and_shows_a_hint(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        typist.type("half a mess")
        typist.see("half a mess")
        typist.type(CTRL_C)
        typist.see("Ctrl-D or /quit leaves")
        ask(typist, "whole")
        typist.see("You said: whole")
        assert "You said: half" not in typist.text
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_message_with_several_lines_is_sent_whole(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--plain", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        typist.type("one\\" + ENTER)
        typist.type("two" + ALT_ENTER)
        typist.type("three" + ENTER)
        typist.see("You said: one\ntwo\nthree")
        typist.type("\x1b[200~four\nfive\x1b[201~")
        typist.see("four", "five")
        typist.type(ENTER)
        typist.see("You said: four\nfive")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_text_typed_during_an_answer_is_shown_and_queued(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "waiting", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Wait")
        typist.see("Well,")
        typist.type("queued message" + ENTER)
        typist.see("sent: queued message")
        typist.type("half")
        typist.see("› half")
        typist.type("\x15/stop" + ENTER)
        typist.see("■ stopped")
        # The queued message is sent next, to the same agent.
        typist.see("› queued message")
        typist.type("rest")
        typist.see("› rest")
        typist.type(CTRL_C)
        typist.until(lambda: typist.text.count("■ stopped") == 2, "the end of the second turn")
        typist.until(lambda: typist.lines[-1] == "› rest", "the typed text at the prompt")
        typist.type(CTRL_C + CTRL_D)
        assert typist.exit_code() == 0


def test_ctrl_d_pressed_during_an_answer_leaves_after_it(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "waiting", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Wait")
        typist.see("Well,")
        typist.type(CTRL_D)
        typist.see("leaves after this answer")
        ask(typist, "/stop")
        assert typist.exit_code() == 0
        assert "■ stopped" in typist.text


def test_line_sent_during_an_answer_enters_it_and_a_queued_one_is_asked_next(tmp_path: Path) -> None:
    data = tmp_path / "data"
    agent = ("--agent", "listening")
    with serving_agents(data, tmp_path), typing("chat", "--data", data, *agent, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "One")
        typist.see("To One.")
        ask(typist, "/queue Three")
        typist.see("next: Three")
        ask(typist, "Two")
        typist.see("Heard Two.", "To Three.")
        ask(typist, "Four")
        typist.see("Heard Four.")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0
        assert "To Two." not in typist.text


def test_sessions_are_started_listed_and_continued(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_agents(data, tmp_path), typing("chat", "--data", data, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "First talk")
        typist.see("You said: First talk")
        ask(typist, "/new")
        typist.see("This is a new conversation.")
        ask(typist, "Second talk")
        typist.see("You said: Second talk")
        ask(typist, "/sessions")
        typist.see("1  Second talk  1 turn", "2  First talk  1 turn", "Number (Enter")
        ask(typist, "2")
        typist.see("Continuing “First talk”.", "› First talk")
        ask(typist, "More of it")
        typist.see("You said: More of it")
        ask(typist, "/sessions")
        typist.see("1  First talk  2 turns")
        ask(typist, "")
        typist.see("The conversation stays the same.")
        ask(typist, "/nonsense")
        typist.see("There is no /nonsense")
        ask(typist, "/help")
        typist.see("list the conversations", "Alt-Enter")
        ask(typist, "/stop")
        typist.see("No answer is running.")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0
    history = data / "chat_history"
    assert "+First talk" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_history_is_kept_across_programs(tmp_path: Path) -> None:
    write_agents(tmp_path)
    for number in (1, 2):
        with typing("chat", "--data", tmp_path / "data", *REFERENCES, cwd=tmp_path) as typist:
            typist.see(PROMPT)
            if number == 2:
                typist.type("\x1b[A")
                typist.see("› remember me")
            typist.type("remember me" + ENTER if number == 1 else ENTER)
            typist.see("You said: remember me")
            typist.type(CTRL_D)
            assert typist.exit_code() == 0


def test_killed_server_is_awaited_and_the_turn_ends_as_interrupted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    waiting = ("chat", "--data", data, "--agent", "waiting")
    with serving_agents(data, tmp_path) as server, typing(*waiting, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Wait")
        typist.see("Well,")
        server.kill()
        typist.see("connection lost")
        server.start()
        typist.see("reconnected, nothing was missed", "the server stopped before the answer was complete")
        assert typist.text.count("Well,") == 1
        ask(typist, "/agents echo")
        ask(typist, "Are you back")
        typist.see("You said: Are you back")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_lost_server_is_reported_with_a_hint(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_agents(data, tmp_path) as server, typing("chat", "--data", data, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        server.kill()
        ask(typist, "Hello")
        typist.see("does not answer", "turnwire serve")
        server.start()
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_terminal_resized_during_an_answer_keeps_the_text(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "waiting", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Wait")
        typist.see("Well,")
        typist.resize(120, 40)
        typist.type("still here")
        typist.see("› still here")
        typist.type(CTRL_C)
        typist.see("■ stopped")
        assert typist.text.count("Well,") == 1
        typist.type(CTRL_C + CTRL_D)
        assert typist.exit_code() == 0


def test_failed_turn_is_shown_and_the_chat_goes_on(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "failing", cwd=tmp_path) as typist:
        typist.see(PROMPT)
        ask(typist, "Fail")
        typist.see("Hm.", "✗", "ValueError")
        ask(typist, "/agents nobody")
        ask(typist, "Hello")
        typist.see("✗", "no agent")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


def test_plain_answer_has_no_escape_codes(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with typing(
        "chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "story", "--plain", cwd=tmp_path
    ) as typist:
        typist.see(PROMPT)
        before = len(typist.emulator.written)
        ask(typist, "Tell me")
        typist.see("The end.", "**time**", "- line 39")
        answer = typist.emulator.written[before:].partition("✓ remember")[2].partition("The end.")[0]
        assert "\x1b" not in answer
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


@pytest.mark.parametrize("message", [None, "Wait"])
def test_terminated_chat_restores_the_terminal_modes(tmp_path: Path, message: str | None) -> None:
    write_agents(tmp_path)
    with typing("chat", "--data", tmp_path / "data", *REFERENCES, "--agent", "waiting", cwd=tmp_path) as typist:
        before = termios.tcgetattr(typist.terminal)[3]
        typist.see(PROMPT, "›")
        if message is not None:
            ask(typist, message)
            typist.see("Well,")
        assert termios.tcgetattr(typist.terminal)[3] != before
        typist.process.send_signal(signal.SIGTERM)
        typist.until(lambda: termios.tcgetattr(typist.terminal)[3] == before, "the restored terminal modes")
        assert typist.exit_code() == 143


EXTENSION = """
from turnwire.extensions.contract import Health

class Remarker:
    async def initialize(self, context):
        self.context = context

    async def start(self): ...
    async def stop(self): ...
    async def destroy(self): ...

    async def health_check(self):
        return Health("running")

    async def run_background(self):
        import asyncio, pathlib
        while not pathlib.Path("now").exists():
            await asyncio.sleep(0.05)
        await self.context.send_message("console", "**By the way:** it is late.")
        await asyncio.Event().wait()
"""


def test_message_of_an_extension_is_printed_above_the_prompt(tmp_path: Path) -> None:
    write_agents(tmp_path)
    folder = tmp_path / "extensions" / "remarker"
    folder.mkdir(parents=True)
    (folder / "manifest.yaml").write_text(
        "id: remarker\nname: Remarker\nversion: 0.1.0\napi: '1'\nentrypoint: main:Remarker\n"
    )
    (folder / "main.py").write_text(EXTENSION)
    options = (*REFERENCES, "--extensions", tmp_path / "extensions")
    with typing("chat", "--data", tmp_path / "data", *options, cwd=tmp_path) as typist:
        typist.see(PROMPT)
        typist.type("half a mess")
        typist.see("› half a mess")
        (tmp_path / "now").touch()
        typist.see("By the way: it is late.")
        typist.until(lambda: typist.lines[-1] == "› half a mess", "the prompt below the message")
        typist.type("age" + ENTER)
        typist.see("You said: half a message")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0


@pytest.mark.parametrize("command", ["chat", "ask"])
def test_help_imports_no_terminal_library(command: str) -> None:
    modules = loaded("-m", "turnwire", command, "--help")
    assert "typer" in modules
    assert not modules & {"fastapi", "httpx", "msgspec", "prompt_toolkit", "pydantic_settings", "starlette", "uvicorn"}


def test_chat_on_the_channel_answers_with_its_extensions(tmp_path: Path) -> None:
    folder = tmp_path / "extensions"
    code = """
class Main:
    async def initialize(self, context): ...
    async def start(self): ...
    async def stop(self): ...
    async def destroy(self): ...
    async def health_check(self):
        from turnwire.extensions.contract import Health
        return Health("running")
    async def get_context(self, prompt, agent_id):
        return "It is Monday."
"""
    write_extension(folder, "calendar", code)
    write_agents(tmp_path)
    options = ("--channel", "--extensions", folder, *REFERENCES)
    with typing("chat", "--data", tmp_path / "data", *options, cwd=tmp_path) as typist:
        typist.see("the channel console", "this process (echo", "Ctrl-D leaves")
        ask(typist, "Hello")
        typist.see("You said: It is Monday.", "Hello")
        typist.type(CTRL_D)
        assert typist.exit_code() == 0
