"""Keyboard input while an answer streams.

The terminal does not echo meanwhile; typed text is collected, shown by the view and handed to the next prompt. Ctrl-C
stays a signal; Ctrl-D on an empty line is kept for the next prompt.
"""

import asyncio
import codecs
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TextIO

# Escape sequences, such as those of arrow keys, are dropped: this is no line editor.
_ESCAPES = re.compile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|O.|[^\\[O])")
_BACKSPACE, _CLEAR, _END = ("\x7f", "\x08"), "\x15", "\x04"


KEY_GRACE_SECONDS = 0.5
"""Keys pressed this soon after a question were meant for something else."""


class Keyboard:
    """Collects typed text. With `collects=False` the input is left unread, for the program that runs next."""

    def __init__(self, source: TextIO | None = None, *, collects: bool = True) -> None:
        self.typed = ""
        self.on_change: Callable[[str], None] | None = None
        """Called after every key, with the text typed so far."""
        self.on_line: Callable[[str], None] | None = None
        """Called with each line that Enter completes."""
        self.on_end: Callable[[], None] | None = None
        """Called when Ctrl-D is pressed on an empty line."""
        self.end_pressed = False
        self._on_key: Callable[[str], None] | None = None
        self._collects = collects
        self._engage: Callable[[bool], None] = lambda on: None
        self._source = source or sys.stdin
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def on_key(self) -> Callable[[str], None] | None:
        """The callback that gets every key while a question waits; keys are not collected then."""
        return self._on_key

    @on_key.setter
    def on_key(self, callback: Callable[[str], None] | None) -> None:
        self._on_key = callback
        self._engage(self._collects or callback is not None)

    def collect(self) -> None:
        """Collect keys from now on, because a question waits for a line."""
        self._collects = True
        self._engage(True)

    @contextmanager
    def unedited(self) -> Generator[None]:
        """Switch off the terminal's line editing and echo inside the block.

        They stay off between two readers, too: a terminal that edits lines would consume a Ctrl-D typed there.
        """
        termios = _termios(self._source)
        if termios is None:
            yield
            return
        descriptor = self._source.fileno()
        before = termios.tcgetattr(descriptor)
        _set_modes(termios, descriptor, off=termios.ECHO | termios.ICANON)
        try:
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    @contextmanager
    def listening(self) -> Generator[None]:
        """Read keys inside the block, if the input is a terminal."""
        termios = _termios(self._source)
        if termios is None:
            yield  # Typed text waits for the next prompt.
            return
        descriptor, loop = self._source.fileno(), asyncio.get_running_loop()
        before = termios.tcgetattr(descriptor)

        def engage(on: bool) -> None:
            if on:
                _set_modes(termios, descriptor, off=termios.ECHO | termios.ICANON)
            else:
                _set_modes(termios, descriptor, off=termios.ECHO, on=before[3] & termios.ICANON)
            if on:
                loop.add_reader(descriptor, self._read, descriptor)
            else:
                loop.remove_reader(descriptor)

        self._rest = ""
        self._engage = engage
        engage(self._collects or self._on_key is not None)
        try:
            yield
        finally:
            self._engage = lambda on: None
            loop.remove_reader(descriptor)
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def take(self) -> str:
        """Return the typed text that was not sent, and clear it."""
        typed, self.typed = self.typed, ""
        return typed

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            chunk = b""
        if not chunk:
            # The terminal was closed; SIGHUP or the next prompt ends the program.
            asyncio.get_running_loop().remove_reader(descriptor)
            return
        keys = _ESCAPES.sub("", self._rest + self._decoder.decode(chunk))
        # An incomplete escape sequence waits for its second half.
        keys, escape, rest = keys.partition("\x1b")
        self._rest = escape + rest
        if keys:
            self.press(keys)

    def press(self, keys: str) -> None:
        """Handle keys read at once: one key, or a paste, whose line ends are part of the text."""
        for index, key in enumerate(keys):
            if self._on_key is not None:
                self._on_key(key)
            elif key in "\r\n":
                if index < len(keys) - 1:
                    self.typed += "\n"
                else:
                    self._complete()
            elif key in _BACKSPACE:
                self.typed = self.typed[:-1]
            elif key == _CLEAR:
                self.typed = ""
            elif key == _END and not self.typed:
                self.end_pressed = True
                if self.on_end is not None:
                    self.on_end()
            elif key.isprintable() or key == "\t":
                self.typed += key
        if self.on_change is not None:
            self.on_change(self.typed)

    def _complete(self) -> None:
        if self.typed.endswith("\\"):
            self.typed = self.typed[:-1] + "\n"
        elif self.typed.strip() and self.on_line is not None:
            self.on_line(self.take())


def _termios(source: TextIO) -> ModuleType | None:
    """Return the module that sets the modes of a terminal, if the source is one. Windows has none."""
    try:
        import termios
    except ImportError:
        return None
    return termios if source.isatty() else None


def _set_modes(termios: ModuleType, descriptor: int, *, off: int, on: int = 0) -> None:
    modes = termios.tcgetattr(descriptor)
    modes[3] = modes[3] & ~off | on
    # Drain instead of flush, which would drop text typed before.
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
