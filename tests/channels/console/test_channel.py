"""Tests of the channel `console` under the real kernel: answers, messages of extensions and approvals."""

import asyncio
import io
import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.channels.console.emulator import Terminal
from tests.extensions.harness import running, write_extension
from tests.serving import PATIENCE, Puppet, saying, until, within
from turnwire.channels.console.channel import ConsoleChannel
from turnwire.channels.console.keyboard import Keyboard
from turnwire.channels.console.screen import Screen
from turnwire.core.log.events import HandoffEvent, StatusEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent
from turnwire.extensions.contract import ApprovalAsk, StreamStep
from turnwire.extensions.host import detect
from turnwire.extensions.manifest import read_manifest

FOLDER = Path(__file__).parents[3] / "src" / "turnwire" / "channels" / "console"


@pytest.fixture(autouse=True)
def no_other_extensions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TELEGRAM_BOT_TOKEN", raising=False)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def under_kernel(folder: Path, agent: Any, terminal: Terminal, keyboard: Keyboard | None = None) -> Any:
    write_extension(folder, "quiet")
    return running(folder, agent, attach={"console": ConsoleChannel(terminal.screen, keyboard)})


def test_manifest_lists_the_capabilities_of_the_class() -> None:
    manifest = read_manifest(FOLDER / "manifest.yaml", "console")
    assert set(manifest.provides) == detect(ConsoleChannel)


async def test_answer_is_rendered_as_markdown_with_its_steps(tmp_path: Path, terminal: Terminal) -> None:
    agent = saying(
        StatusEvent("Reading"),
        ToolCallEvent("c1", "search_notes", {"query": "moss"}),
        ToolProgressEvent("c1", "half", 0.5),
        ToolResultEvent("c1", "search_notes", True, "much", 400.0),
        ToolCallEvent("c2", "read", {}),
        ToolResultEvent("c2", "read", False, "no such note", 100.0),
        HandoffEvent("writer"),
        "# Moss\n\nIt is **old",
        "** and green.\n\n",
        "- soft\n- wet\n",
    )
    async with under_kernel(tmp_path / "x", agent, terminal) as kernel:
        answer = await kernel.say("console")
        assert answer.startswith("# Moss")
        assert terminal.transcript == [
            "· Reading",
            "✓ search_notes 0.4s",
            "✗ read: no such note 0.1s",
            "· writer has taken over",
            "",
            "Moss",
            "",
            "It is old and green.",
            "",
            " • soft",
            " • wet",
        ]


async def test_cancelled_turn_is_shown_as_stopped_and_the_next_is_answered(tmp_path: Path, terminal: Terminal) -> None:
    puppet = Puppet()
    async with under_kernel(tmp_path / "x", puppet, terminal) as kernel:
        first = kernel.saying("console")
        part = await puppet.part()
        part.say("Let me dig.", ToolCallEvent("c1", "dig", {}))
        await until(lambda: any("dig" in line and "Let" not in line for line in terminal.shown))
        assert await kernel.extension("console").context.cancel("ann")
        await within(first)
        assert terminal.transcript[0] == "Let me dig."
        assert terminal.transcript[-1] == "■ stopped"
        assert "not finished" in terminal.transcript[-2]
        again = kernel.saying("console", "again")
        part = await puppet.part()
        part.say("Here.")
        part.end()
        await within(again)
        assert terminal.transcript[-1] == "Here."


async def test_messages_of_other_extensions_are_printed(tmp_path: Path, terminal: Terminal) -> None:
    async with under_kernel(tmp_path / "x", saying("unused"), terminal) as kernel:
        context = kernel.extension("quiet").context
        await context.send_message("console", "**Good morning.**")
        await context.send_to_user("console", "anna", "Two\n\nparagraphs\x1b[2J.")
        assert terminal.transcript == ["Good morning.", "", "Two", "", "paragraphs[2J."]
        assert "\x1b[2J" not in terminal.emulator.written


async def test_concurrent_answers_are_not_mixed(tmp_path: Path, terminal: Terminal) -> None:
    puppet = Puppet()
    async with under_kernel(tmp_path / "x", puppet, terminal) as kernel:
        first = kernel.saying("console", "one", "ann")
        first_part = await puppet.part()
        first_part.say("First ")
        await until(lambda: "First" in "".join(terminal.shown))
        second = kernel.saying("console", "two", "ben")
        second_part = await puppet.part()
        second_part.say("Second ", "whole.")
        second_part.end()
        await within(second)
        first_part.say("whole.")
        first_part.end()
        await within(first)
        assert [line for line in terminal.transcript if line] == ["Second whole.", "First whole."]


async def test_answer_during_a_prompt_is_printed_whole(tmp_path: Path, terminal: Terminal) -> None:
    hidden: list[bool] = []

    def hide_prompt(write: Any) -> None:
        hidden.append(True)
        write()

    terminal.screen.while_prompting = hide_prompt
    async with under_kernel(tmp_path / "x", saying("An ", "answer."), terminal) as kernel:
        await kernel.say("console")
        assert terminal.transcript == ["An answer."]
        assert hidden == [True]
        assert "\x1b[?25l" not in terminal.emulator.written


async def test_answer_without_a_terminal_is_plain_text(tmp_path: Path, terminal: Terminal) -> None:
    file = io.StringIO()
    terminal.screen = Screen(Console(file=file, color_system=None))
    async with under_kernel(tmp_path / "x", saying(StatusEvent("Reading"), "**An** answer."), terminal) as kernel:
        await kernel.say("console")
        assert file.getvalue() == "· Reading\n**An** answer.\n"
        assert kernel["console"].state == "running"


async def test_blocked_terminal_does_not_block_the_event_loop(tmp_path: Path) -> None:
    unblocked, writers = threading.Event(), set[threading.Thread]()

    class BlockedFile(io.StringIO):
        def write(self, text: str) -> int:
            writers.add(threading.current_thread())
            unblocked.wait(PATIENCE)
            return super().write(text)

    terminal = Terminal()
    terminal.screen = Screen(Console(file=BlockedFile(), color_system=None))
    async with under_kernel(tmp_path / "x", saying("Hello."), terminal) as kernel:
        context = kernel.extension("quiet").context
        speaking = asyncio.create_task(context.send_message("console", "Hello."))
        answering = [kernel.saying("console", "Hi", user) for user in ("ann", "ben")]
        try:
            await until(lambda: bool(writers))
            assert threading.current_thread() not in writers
            assert not speaking.done()
        finally:
            unblocked.set()
            await within(asyncio.gather(speaking, *answering, return_exceptions=True))
        assert threading.current_thread() not in writers


async def test_stream_end_prints_the_missing_text(terminal: Terminal) -> None:
    channel = ConsoleChannel(terminal.screen)
    await channel.on_stream_start("ann")
    await channel.on_stream_chunk("ann", "One ")
    await channel.on_stream_status("ann", "Using: search")
    step = StreamStep(id="1", kind="search", name="notes", phase="started", summary="moss")
    await channel.on_stream_step("ann", step)
    await channel.on_stream_end("ann", "One two.")
    await channel.on_stream_end("ben", "Whole.")
    assert [line for line in terminal.transcript if line][-1] == "Whole."
    assert "two." in terminal.transcript
    await channel.stop()
    await channel.destroy()


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Keyboard]]:
    """Return the typing end of a pseudo-terminal and a keyboard on the other."""
    ours, theirs = pty.openpty()
    with os.fdopen(os.dup(theirs), "r") as source:
        monkeypatch.setattr("sys.stdin", source)
        yield ours, Keyboard(source)
    os.close(ours)
    os.close(theirs)


class Decisions:
    """The part of ExtensionContext that records decisions."""

    def __init__(self) -> None:
        self.made: asyncio.Queue[tuple[str, str, bool, str]] = asyncio.Queue()

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        self.made.put_nowait((turn_id, call_id, approved, by))


@pytest.mark.parametrize(("keys", "approved"), [(b"y", True), (b"n", False), (b"\r", False), (b"xqY", True)])
async def test_approval_request_is_decided_with_one_key(
    terminal: Terminal, seat: tuple[int, Keyboard], keys: bytes, approved: bool
) -> None:
    ours, keyboard = seat
    decisions = Decisions()
    channel = ConsoleChannel(terminal.screen, keyboard, key_grace=0)
    await channel.initialize(decisions)  # type: ignore[arg-type]
    ask = ApprovalAsk(turn_id="t1", call_id="c1", tool="pay", args={"sum": 3}, reason="It is much")
    await channel.on_approval_request("ann", ask)
    await until(lambda: "Allow pay? [y/N]" in terminal.transcript)
    assert terminal.transcript[:2] == ["■ pay(sum=3) needs your consent", "  It is much"]
    await until(lambda: keyboard.on_key is not None)
    os.write(ours, keys)
    assert await within(decisions.made.get()) == ("t1", "c1", approved, "console")


@pytest.mark.parametrize("ends", ["step", "end", "cancel"])
async def test_approval_request_that_is_over_does_not_block_the_next(
    terminal: Terminal, seat: tuple[int, Keyboard], ends: str
) -> None:
    ours, keyboard = seat
    decisions = Decisions()
    channel = ConsoleChannel(terminal.screen, keyboard, key_grace=0)
    await channel.initialize(decisions)  # type: ignore[arg-type]
    await channel.on_approval_request("ann", ApprovalAsk(turn_id="t1", call_id="c1", tool="pay", args={}))
    await until(lambda: keyboard.on_key is not None)
    await channel.on_approval_request("bob", ApprovalAsk(turn_id="t2", call_id="c2", tool="send", args={}))
    # Decided elsewhere, or its turn has ended.
    match ends:
        case "step":
            await channel.on_stream_step("ann", StreamStep(id="c1", kind="tool", name="pay", phase="finished"))
        case "end":
            await channel.on_stream_end("ann", "Paid.")
        case _:
            await channel.on_stream_cancel("ann", "")
    await until(lambda: "Allow send? [y/N]" in terminal.transcript and keyboard.on_key is not None)
    os.write(ours, b"y")
    assert await within(decisions.made.get()) == ("t2", "c2", True, "console")


async def test_answer_is_streamed_after_one_that_the_kernel_has_given_up(terminal: Terminal) -> None:
    channel = ConsoleChannel(terminal.screen)
    await channel.on_stream_start("ann")
    await channel.on_stream_chunk("ann", "Given up")
    await channel.on_stream_start("ann")
    await channel.on_stream_chunk("ann", "The next answer")
    await until(lambda: "The next answer" in terminal.transcript)
    await channel.on_stream_end("ann", "The next answer.")
    assert terminal.transcript[-1] == "The next answer."
    assert not [task for task in asyncio.all_tasks() if "_paint" in repr(task.get_coro())]


async def test_approval_request_without_terminal_shows_the_route(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    channel = ConsoleChannel(terminal.screen)
    await channel.on_approval_request("ann", ApprovalAsk(turn_id="t1", call_id="c1", tool="pay", args={}))
    assert "POST /v1/turns/t1/approvals/c1" in " ".join(line.strip() for line in terminal.transcript)


async def test_channel_answers_the_messages_that_it_reads(tmp_path: Path, terminal: Terminal) -> None:
    typed = ["hello\n", " \n", "again\n"]

    async def read() -> str:
        if not typed:
            raise EOFError
        return typed.pop(0)

    async def echo(turn: Any) -> Any:
        yield f"You said {turn.message} on {turn.channel}."

    async with under_kernel(tmp_path / "x", echo, terminal) as kernel:
        await within(kernel.extension("console").converse(read))
    assert [line for line in terminal.transcript if line] == [
        "You said hello on console.",
        "You said again on console.",
    ]


async def test_configured_channel_reads_the_standard_input(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    async with under_kernel(tmp_path / "x", saying("Noted."), terminal) as kernel:
        channel = kernel.extension("console")
        assert terminal.transcript == []  # By default, it reads nothing.
        monkeypatch.setitem(kernel["console"].config, "read_messages", True)
        await within(channel.run_background())
    assert [line for line in terminal.transcript if line] == ["Noted.", "Noted."]
