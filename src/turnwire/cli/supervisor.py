"""`turnwire serve --workers N`: a supervisor that starts server processes, watches them and replaces them one by one.

With `--isolate` some of them only serve, and the others only run turns. The supervisor holds the listening socket,
which the processes inherit, and serves nothing itself, so that it has no reason to fail. A process that dies is started
again; while one is replaced, the others take all requests. Each process has a control channel to the supervisor, a
socket pair.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Literal

import msgspec
from msgspec import Struct

from turnwire.core.backoff import Backoff

logger = logging.getLogger("turnwire.workers")

VARIABLE = "_TURNWIRE_LINE"
"""The environment variable with two file descriptors: the control channel's and the listening socket's."""

# The time that a connection accepted just before a replacement has to send its request.
_LAST_REQUESTS_SECONDS = 0.25
_BACKOFF = Backoff(first=0.2, longest=30.0)
# A process that ran this long did not fail because of how it was started, so its restart needs no pause.
_STABLE_SECONDS = 30.0
_START_SECONDS = 120.0
_HURRIED_SECONDS = 2.0


Role = Literal["serve", "run", "both"]
"""What a process does: serve requests and streams, run turns, or both."""


class WorkerOrders(Struct, frozen=True):
    """The first message on the control channel, from the supervisor."""

    number: int
    control_token: str
    role: Role = "both"


class WorkerReady(Struct, frozen=True):
    """The reply of a process that accepts requests or runs turns."""

    welcome: list[str]


class SupervisorChannel:
    """A child process's end of the control channel."""

    def __init__(self, channel: socket.socket, listening: socket.socket) -> None:
        self.listening = listening
        self._channel = channel
        message = b""
        while not message.endswith(b"\n"):
            if not (chunk := channel.recv(65_536)):
                raise SystemExit(1)  # The supervisor is gone already.
            message += chunk
        self.orders = msgspec.json.decode(message, type=WorkerOrders)

    @classmethod
    def inherited(cls) -> "SupervisorChannel | None":
        """Return the channel this process was started with, if any. Programs that agents start do not inherit it."""
        descriptors = os.environ.pop(VARIABLE, None)
        if descriptors is None:
            return None
        channel, listening = (socket.socket(fileno=int(number)) for number in descriptors.split(","))
        for inherited in (channel, listening):
            inherited.set_inheritable(False)
        return cls(channel, listening)

    def send_ready(self, welcome: Sequence[str]) -> None:
        self._channel.sendall(msgspec.json.encode(WorkerReady([*welcome])) + b"\n")

    def follow(self, turnwire: Any, refuse_connections: Callable[[], None]) -> None:
        """End this process when it is replaced or the supervisor is gone."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)

        def on_readable() -> None:
            try:
                message = self._channel.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            loop.remove_reader(self._channel)
            if message:
                # Other processes serve the address, so no load balancer needs time; accepted requests do.
                refuse_connections()
                turnwire.settings.drain_delay = _LAST_REQUESTS_SECONDS
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(self._channel, on_readable)


class Child:
    """A server process and the supervisor's end of its control channel."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.began = monotonic()
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, listening: socket.socket, orders: WorkerOrders) -> "Child":
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *sys.orig_argv[1:]),
                pass_fds=(theirs.fileno(), listening.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, VARIABLE: f"{theirs.fileno()},{listening.fileno()}"},
                # Ctrl+C goes to the supervisor alone, which ends the others in order.
                process_group=0,
            )
        child = cls(process, *await asyncio.open_connection(sock=ours))
        child._write(msgspec.json.encode(orders) + b"\n")
        return child

    async def ready(self) -> list[str] | None:
        """Wait until the process accepts requests and return its welcome; None if it failed to start."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await self._reader.readline()
        except (OSError, TimeoutError):
            message = b""
        return msgspec.json.decode(message, type=WorkerReady).welcome if message else None

    def send_replaced(self) -> None:
        self._write(b"replaced\n")

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def wait(self) -> int:
        """Wait for the process to end, close its control channel and return its exit code."""
        code = await self.process.wait()
        self._writer.close()
        return code

    async def wait_ended(self, timeout: float) -> None:
        """Wait for the process to end; kill it after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self.wait()
        except TimeoutError:
            logger.error("worker %d did not end in %.0f s and is killed", self.process.pid, timeout)
            self.signal(signal.SIGKILL)
            await self.wait()

    def _write(self, line: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(line)


class WorkerSlot:
    """A worker number, counted from 1, and its process, which is replaced only under the lock `changing`."""

    def __init__(self, number: int, child: Child) -> None:
        self.number = number
        self.child = child
        self.changing = asyncio.Lock()


class Supervisor:
    """`roles` has one for each process; the first must serve.

    `end_timeout` is how long a process may take to end. `announce` is called once, when all are ready.
    """

    def __init__(
        self,
        listening: socket.socket,
        roles: Sequence[Role],
        control_token: str,
        end_timeout: float,
        announce: Callable[[Sequence[str]], None],
    ) -> None:
        self._listening = listening
        self._roles = roles
        self._control_token = control_token
        self._end_timeout = end_timeout
        self._announce = announce
        self._children: set[Child] = set()
        self._slots: list[WorkerSlot] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._replacement: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._hurry_requested = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal stops it. Return the process's exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        has_terminal = os.isatty(0)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._on_hangup(has_terminal))
        self._spawn(self._start_all())
        await self._stop_requested.wait()
        for task in self._tasks:
            task.cancel()
        await self._end_all()
        return 0 if self._slots else 1

    async def _start_all(self) -> None:
        # The first starts alone: an error that stops it would stop all of them, and is printed once.
        children = [await self._start(1)]
        welcome = await children[0].ready()
        if welcome is None:
            self._stop()
            return
        children += await asyncio.gather(*(self._start(number) for number in range(2, len(self._roles) + 1)))
        if None in await asyncio.gather(*(child.ready() for child in children[1:])):
            self._stop()
            return
        self._slots = [WorkerSlot(number, child) for number, child in enumerate(children, 1)]
        for slot in self._slots:
            self._spawn(self._keep_alive(slot))
        self._announce(welcome)

    async def _start(self, number: int) -> Child:
        orders = WorkerOrders(number, self._control_token, self._roles[number - 1])
        child = await Child.start(self._listening, orders)
        self._children.add(child)
        return child

    async def _keep_alive(self, slot: WorkerSlot) -> None:
        """Restart the slot's process whenever it dies."""
        while True:
            child = slot.child
            code = await child.wait()
            async with slot.changing:
                if slot.child is not child:
                    continue  # The process was replaced, and has ended as it should.
                self._children.discard(child)
                logger.error("worker %d ended with code %d and is restarted", child.process.pid, code)
                lived = monotonic() - child.began
                slot.child = await self._restart(slot.number, 0 if lived > _STABLE_SECONDS else 1)

    async def _restart(self, number: int, failures: int = 0) -> Child:
        while True:
            if failures:
                await _BACKOFF.wait(failures)
            child = await self._start(number)
            if await child.ready() is not None:
                return child
            await self._discard(child)
            failures += 1
            logger.error("worker %d failed to start; next attempt in %.1f s", number, _BACKOFF.delay(failures))

    async def _discard(self, child: Child) -> None:
        child.signal(signal.SIGKILL)
        await child.wait()
        self._children.discard(child)

    # Rolling replacement

    def _on_hangup(self, had_terminal: bool) -> None:
        if had_terminal and not os.isatty(0):
            self._stop()  # The terminal was closed; SIGHUP did not ask for a replacement.
        elif self._slots and (self._replacement is None or self._replacement.done()):
            self._replacement = self._spawn(self._replace_all())
        else:
            logger.warning("SIGHUP is ignored: the workers are being started already")

    async def _replace_all(self) -> None:
        for slot in self._slots:
            async with slot.changing:
                child = await self._start(slot.number)
                if await child.ready() is None:
                    await self._discard(child)
                    logger.error("a new worker failed to start; the old ones stay")
                    return
                old, slot.child = slot.child, child
                await self._retire(old)
        logger.warning("all workers were replaced")

    async def _retire(self, child: Child) -> None:
        child.send_replaced()
        await child.wait_ended(self._end_timeout)
        self._children.discard(child)

    # Shutdown

    def _stop(self) -> None:
        """Request the end; a second request hurries it."""
        if self._stop_requested.is_set():
            self._hurry_requested.set()
        self._stop_requested.set()

    async def _end_all(self) -> None:
        # The children hold the socket too; open here, it would accept connections that nobody serves.
        self._listening.close()
        for child in self._children:
            child.signal(signal.SIGTERM)
        ending = asyncio.gather(*(child.wait_ended(self._end_timeout) for child in self._children))
        hurrying = asyncio.create_task(self._hurry_requested.wait())
        await asyncio.wait([ending, hurrying], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            for child in self._children:
                child.signal(signal.SIGINT)
            await asyncio.gather(*(child.wait_ended(_HURRIED_SECONDS) for child in self._children))
        hurrying.cancel()
        await ending

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the supervisor failed and ends its workers", exc_info=error)
            self._stop()
