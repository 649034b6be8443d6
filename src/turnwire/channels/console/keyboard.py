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
    def __init__(self, source: TextIO | None = None) -> None:
        self.typed = ""
        self.on_change: Callable[[str], None] | None = None
        """Is given what stands there, after every key."""
        self.on_line: Callable[[str], None] | None = None
        """Is given each line that is completed with Enter."""
        self.on_key: Callable[[str], None] | None = None
        """Is given every key, in place of all else, while a question waits for one."""
        self._source = source or sys.stdin
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

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
        descriptor = self._source.fileno()
        before = termios.tcgetattr(descriptor)
        quiet = termios.tcgetattr(descriptor)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        # Drained, not flushed: what was typed before is kept.
        termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
        self._rest = ""
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._read, descriptor)
        try:
            yield
        finally:
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
            if self.on_key is not None:
                self.on_key(key)
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
