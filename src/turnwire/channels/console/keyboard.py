"""The keyboard while an answer is being made: nothing that is typed disturbs it, and nothing is lost.

The terminal does not echo meanwhile; what is typed is collected, for the view to show and for the next prompt to
begin with. Ctrl-C stays a signal.
"""

import asyncio
import codecs
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

# Arrow keys and the like: they mean something to an editor, and this is none.
_ESCAPES = re.compile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|O.|[^\\[O])")
_BACKSPACE, _CLEAR = ("\x7f", "\x08"), "\x15"


class Keyboard:
    """With `collects=False` what is typed is left where it is, for whoever reads after this program."""

    def __init__(self, source: TextIO | None = None, *, collects: bool = True) -> None:
        self.typed = ""
        self.on_change: Callable[[str], None] | None = None
        """Is given what stands there, after every key."""
        self.on_line: Callable[[str], None] | None = None
        """Is given each line that is completed with Enter."""
        self._on_key: Callable[[str], None] | None = None
        self._collects = collects
        self._engage: Callable[[bool], None] = lambda on: None
        self._source = source or sys.stdin
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def on_key(self) -> Callable[[str], None] | None:
        """Is given every key, in place of all else, while a question waits for one."""
        return self._on_key

    @on_key.setter
    def on_key(self, take: Callable[[str], None] | None) -> None:
        self._on_key = take
        self._engage(self._collects or take is not None)

    @contextmanager
    def listening(self) -> Generator[None]:
        """Takes the keyboard, if there is one."""
        try:
            import termios
        except ImportError:
            yield  # Windows: what is typed waits for the next prompt.
            return
        if not self._source.isatty():
            yield
            return
        descriptor, loop = self._source.fileno(), asyncio.get_running_loop()
        before = termios.tcgetattr(descriptor)

        def engage(on: bool) -> None:
            modes = termios.tcgetattr(descriptor)
            modes[3] &= ~termios.ECHO
            modes[3] = modes[3] & ~termios.ICANON if on else modes[3] | before[3] & termios.ICANON
            # Drained, not flushed: what was typed before is kept.
            termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
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
        """What was typed and not sent."""
        typed, self.typed = self.typed, ""
        return typed

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            chunk = b""
        if not chunk:
            # The terminal is gone; its signal, or the next prompt, says so.
            asyncio.get_running_loop().remove_reader(descriptor)
            return
        keys = _ESCAPES.sub("", self._rest + self._decoder.decode(chunk))
        # The other half of it may be on its way.
        keys, escape, rest = keys.partition("\x1b")
        self._rest = escape + rest
        if keys:
            self.press(keys)

    def press(self, keys: str) -> None:
        """What came in at once: a key, or a whole paste, whose line ends are part of the text."""
        for place, key in enumerate(keys):
            if self._on_key is not None:
                self._on_key(key)
            elif key in "\r\n":
                if place < len(keys) - 1:
                    self.typed += "\n"
                else:
                    self._complete()
            elif key in _BACKSPACE:
                self.typed = self.typed[:-1]
            elif key == _CLEAR:
                self.typed = ""
            elif key.isprintable() or key == "\t":
                self.typed += key
        if self.on_change is not None:
            self.on_change(self.typed)

    def _complete(self) -> None:
        if self.typed.endswith("\\"):
            self.typed = self.typed[:-1] + "\n"
        elif self.typed.strip() and self.on_line is not None:
            self.on_line(self.take())
