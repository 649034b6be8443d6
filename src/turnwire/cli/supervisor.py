"""`turnwire serve --workers N`: one process that starts the others, watches them, and replaces them one by one.

It holds the listening socket, which they inherit, and serves nothing itself, so that it has no reason to die. A
process that does is started again; while one is replaced, the others take all that comes.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

# A server that is one of several: the line to the process that started it.


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


logger = logging.getLogger("turnwire.workers")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
# One that lived this long did not die of how it was started.
_STABLE_SECONDS = 30.0
_START_SECONDS = 120.0
_HURRIED_SECONDS = 2.0


class Child:
    """A process that serves, and the line to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.began = monotonic()
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, listening: socket.socket, orders: Orders) -> "Child":
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *sys.orig_argv[1:]),
                pass_fds=(theirs.fileno(), listening.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, VARIABLE: f"{theirs.fileno()},{listening.fileno()}"},
                # Ctrl+C is for the parent alone, which tells them.
                process_group=0,
            )
        child = cls(process, *await asyncio.open_connection(sock=ours))
        child._write(msgspec.json.encode(orders) + b"\n")
        return child

    async def ready(self) -> list[str] | None:
        """What it welcomes its users with, once it can be asked; None if it never can."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                told = await self._reader.readline()
        except (OSError, TimeoutError):
            told = b""
        return msgspec.json.decode(told, type=Ready).welcome if told else None

    def tell_replaced(self) -> None:
        self._write(b"replaced\n")

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def gone(self, patience: float) -> None:
        """Waits for its end, and brings it about if it takes too long."""
        try:
            async with asyncio.timeout(patience):
                await self.process.wait()
        except TimeoutError:
            logger.error("worker %d did not end in %.0f s and is killed", self.process.pid, patience)
            self.signal(signal.SIGKILL)
            await self.process.wait()

    def _write(self, line: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(line)


class WorkerSlot:
    """A number, and the process that has it. Whoever puts another there holds `changing`."""

    def __init__(self, number: int, child: Child) -> None:
        self.number = number
        self.child = child
        self.changing = asyncio.Lock()


class Supervisor:
    """`patience` is how long a process may take to end. `announce` is called once, when all can be asked."""

    def __init__(
        self,
        listening: socket.socket,
        count: int,
        control_token: str,
        patience: float,
        announce: Callable[[Sequence[str]], None],
    ) -> None:
        self._listening = listening
        self._count = count
        self._control_token = control_token
        self._patience = patience
        self._announce = announce
        self._children: set[Child] = set()
        self._places: list[WorkerSlot] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._rolling: asyncio.Task[None] | None = None
        self._told_to_stop = asyncio.Event()
        self._told_to_hurry = asyncio.Event()

    async def run(self) -> int:
        """Until it is told to stop. Returns the process's exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        has_terminal = os.isatty(0)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._hang_up(has_terminal))
        self._spawn(self._begin())
        await self._told_to_stop.wait()
        for task in self._tasks:
            task.cancel()
        await self._end_all()
        return 0 if self._places else 1

    async def _begin(self) -> None:
        # The first alone: what keeps it from starting, which it says itself, would keep all of them.
        began = [await self._start(1)]
        welcome = await began[0].ready()
        if welcome is None:
            self._stop()
            return
        began += await asyncio.gather(*(self._start(number) for number in range(2, self._count + 1)))
        if None in await asyncio.gather(*(child.ready() for child in began[1:])):
            self._stop()
            return
        self._places = [WorkerSlot(number, child) for number, child in enumerate(began, 1)]
        for place in self._places:
            self._spawn(self._keep(place))
        self._announce(welcome)

    async def _start(self, number: int) -> Child:
        child = await Child.start(self._listening, Orders(number, self._control_token))
        self._children.add(child)
        return child

    async def _keep(self, place: WorkerSlot) -> None:
        """Puts another in the place of a process that has died."""
        while True:
            child = place.child
            code = await child.process.wait()
            async with place.changing:
                if place.child is not child:
                    continue  # It was replaced, and this is the other one's end.
                self._children.discard(child)
                logger.error("worker %d ended with code %d; another is started", child.process.pid, code)
                lived = monotonic() - child.began
                place.child = await self._start_again(place.number, 0 if lived > _STABLE_SECONDS else _FIRST_PAUSE)

    async def _start_again(self, number: int, pause: float = 0.0) -> Child:
        while True:
            await asyncio.sleep(pause)
            child = await self._start(number)
            if await child.ready() is not None:
                return child
            await self._discard(child)
            pause = min(_LONGEST_PAUSE, 2 * (pause or _FIRST_PAUSE))
            logger.error("worker %d could not be started; it is tried again in %.1f s", number, pause)

    async def _discard(self, child: Child) -> None:
        child.signal(signal.SIGKILL)
        await child.process.wait()
        self._children.discard(child)

    # Replacing all of them

    def _hang_up(self, had_terminal: bool) -> None:
        if had_terminal and not os.isatty(0):
            self._stop()  # The terminal was closed: nobody asked for a restart.
        elif self._places and (self._rolling is None or self._rolling.done()):
            self._rolling = self._spawn(self._roll())
        else:
            logger.warning("the workers are being started already; SIGHUP is ignored")

    async def _roll(self) -> None:
        for place in self._places[1:]:
            async with place.changing:
                child = await self._start(place.number)
                if await child.ready() is None:
                    await self._discard(child)
                    logger.error("a new worker does not start; the old ones stay")
                    return
                old, place.child = place.child, child
                await self._retire(old)
        # The first runs the extensions. Two at once would answer everything twice, so it goes before the new one comes.
        first = self._places[0]
        async with first.changing:
            await self._retire(first.child)
            first.child = await self._start_again(first.number)
        logger.warning("all workers were replaced")

    async def _retire(self, child: Child) -> None:
        child.tell_replaced()
        await child.gone(self._patience)
        self._children.discard(child)

    # The end

    def _stop(self) -> None:
        if self._told_to_stop.is_set():
            self._told_to_hurry.set()
        self._told_to_stop.set()

    async def _end_all(self) -> None:
        # They have it too; here it would only keep clients waiting for nobody.
        self._listening.close()
        for child in self._children:
            child.signal(signal.SIGTERM)
        ending = asyncio.gather(*(child.gone(self._patience) for child in self._children))
        hurrying = asyncio.create_task(self._told_to_hurry.wait())
        await asyncio.wait([ending, hurrying], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            for child in self._children:
                child.signal(signal.SIGINT)
            await asyncio.gather(*(child.gone(_HURRIED_SECONDS) for child in self._children))
        hurrying.cancel()
        await ending

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the workers cannot be looked after any more", exc_info=error)
            self._stop()
