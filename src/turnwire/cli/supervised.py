"""A server that is one of several: the line to the process that started it.

It is given the listening socket and one end of a socket pair. On that it is told its number and the operator's token,
says when it is ready, and is told when another has taken its place. When the line is cut, its parent is gone, and it
ends as well.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

VARIABLE = "_TURNWIRE_LINE"
"""The environment variable that holds the two file descriptors: the line's and the listening socket's."""

# A connection that was just accepted has this long to say what it wants.
_LAST_REQUESTS_SECONDS = 0.25


class Orders(Struct, frozen=True):
    """What a process is told when it begins."""

    number: int
    control_token: str


class Ready(Struct, frozen=True):
    """What it answers when it can be asked."""

    welcome: list[str]


class Line:
    def __init__(self, line: socket.socket, listening: socket.socket) -> None:
        self.listening = listening
        self._line = line
        told = b""
        while not told.endswith(b"\n"):
            if not (some := line.recv(65_536)):
                raise SystemExit(1)  # The parent is gone already.
            told += some
        self.orders = msgspec.json.decode(told, type=Orders)

    @classmethod
    def inherited(cls) -> "Line | None":
        """The line that this process was started with, if it was. It is not for the programs that agents start."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        line, listening = (socket.socket(fileno=int(number)) for number in given.split(","))
        for inherited in (line, listening):
            inherited.set_inheritable(False)
        return cls(line, listening)

    def say_ready(self, welcome: Sequence[str]) -> None:
        self._line.sendall(msgspec.json.encode(Ready([*welcome])) + b"\n")

    def follow(self, turnwire: Any, refuse_connections: Callable[[], None]) -> None:
        """Ends this process when it was replaced, or the parent is gone."""
        loop = asyncio.get_running_loop()
        self._line.setblocking(False)

        def hear() -> None:
            try:
                told = self._line.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                told = b""
            loop.remove_reader(self._line)
            if told:
                # Others have the address: no balancer need be told, but what came in here is answered here.
                refuse_connections()
                turnwire.settings.drain_delay = _LAST_REQUESTS_SECONDS
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(self._line, hear)
