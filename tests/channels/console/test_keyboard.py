"""Tests of Keyboard: collection of keys without echo, lines, pastes and questions."""

import asyncio
import os
import pty
import termios
from collections.abc import Iterator

import pytest

from tests.serving import until
from turnwire.channels.console.keyboard import Keyboard


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def flags(descriptor: int) -> int:
    return termios.tcgetattr(descriptor)[3]


async def test_keys_are_collected_without_echo_and_modes_are_restored(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = flags(theirs)
    with os.fdopen(os.dup(theirs), "r") as source:
        keyboard = Keyboard(source)
        with keyboard.listening():
            assert not flags(theirs) & termios.ECHO
            assert flags(theirs) & termios.ISIG, "Ctrl-C stays a signal"
            for part in (b"h\xc3", b"\xa9llo", b"\x7f\x7f", b"\x1b[A", b"\x1bOB", b"\x1b", b"[12", b";1R", b"p"):
                os.write(ours, part)
                await asyncio.sleep(0)
            await until(lambda: keyboard.typed == "hélp")
        assert flags(theirs) == before
        assert keyboard.take() == "hélp"
        assert keyboard.typed == ""


async def test_ctrl_d_between_two_readers_reaches_the_second(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = flags(theirs)
    with os.fdopen(os.dup(theirs), "r") as source:
        keyboard = Keyboard(source)
        with keyboard.unedited():
            with keyboard.listening():
                pass
            os.write(ours, b"\x04")
            with keyboard.listening():
                await until(lambda: keyboard.end_pressed)
        assert flags(theirs) == before


async def test_keyboard_that_does_not_collect_leaves_input_for_the_shell(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    keys: list[str] = []
    with os.fdopen(os.dup(theirs), "r") as source:
        keyboard = Keyboard(source, collects=False)
        with keyboard.listening():
            assert not flags(theirs) & termios.ECHO
            assert flags(theirs) & termios.ICANON
            keyboard.on_key = keys.append
            os.write(ours, b"y")
            await until(lambda: keys == ["y"])
            keyboard.on_key = None
            os.write(ours, b"ls\n")
        assert os.read(theirs, 10) == b"ls\n"
        assert keyboard.typed == ""


async def test_input_that_is_no_terminal_is_left_unread() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "r") as source:
        keyboard = Keyboard(source)
        with keyboard.listening():
            os.write(write, b"text")
        assert source.read(4) == "text"
    os.close(write)


def test_enter_completes_a_line_and_a_paste_is_one_message() -> None:
    keyboard, lines, shown = Keyboard(), list[str](), list[str]()
    keyboard.on_line, keyboard.on_change = lines.append, shown.append
    for key in "first":
        keyboard.press(key)
    keyboard.press("\r")
    keyboard.press("one\ntwo\nthree")
    assert lines == ["first"]
    keyboard.press("\n")
    assert lines == ["first", "one\ntwo\nthree"]
    keyboard.press("\r")
    assert len(lines) == 2, "an empty line is not sent"
    keyboard.press("more\\")
    keyboard.press("\r")
    keyboard.press("to come")
    assert keyboard.typed == "more\nto come"
    keyboard.press("\x15")
    assert keyboard.typed == ""
    assert shown[0] == "f"
    assert shown[-1] == ""


def test_question_receives_the_keys() -> None:
    keyboard, keys = Keyboard(), list[str]()
    keyboard.on_key = keys.append
    keyboard.press("y\r")
    assert (keys, keyboard.typed) == (["y", "\r"], "")
