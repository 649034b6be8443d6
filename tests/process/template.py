"""`turnwire` commands in processes of their own, forked from a template that has imported the package already.

To import what a server needs takes a second of computing, which is most of what many tests would do. The template has
run nothing: it imports, and waits. A forked process gets arguments, environment, folder and pipes as if it was started.
It has a process id of its own, can be killed, and ends as the interpreter ends.
"""

import asyncio
import atexit
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from functools import cache
from pathlib import Path

_CLOSING_SECONDS = 5


# In the test


class _Pipe(asyncio.StreamReaderProtocol):
    """The reading end of a pipe."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(2**24)
        self.is_closed = asyncio.Event()
        super().__init__(self.reader)

    def eof_received(self) -> bool:
        super().eof_received()
        return False  # uvloop would keep the pipe open otherwise.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_closed.set()


class CommandProcess:
    """A forked process, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, out: _Pipe, err: _Pipe, status: _Pipe) -> None:
        self.pid = pid
        self.stdout = out.reader
        self.stderr = err.reader
        self.returncode: int | None = None
        self._ended = asyncio.create_task(self._wait(out, err, status))

    async def _wait(self, out: _Pipe, err: _Pipe, status: _Pipe) -> int:
        code = self.returncode = int(await status.reader.readline())
        await status.is_closed.wait()
        # Processes that it has started may keep its output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await out.is_closed.wait()
                await err.is_closed.wait()
        return code

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # It has just ended.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def fork_command(arguments: list[str], folder: Path, environment: dict[str, str]) -> CommandProcess:
    """Start `turnwire` with these arguments, with no input, and its output in pipes."""
    pipes = [os.pipe() for _ in range(3)]
    _send_request(arguments, folder, environment, [end for _, end in pipes])
    loop = asyncio.get_running_loop()
    out, err, status = [(await loop.connect_read_pipe(_Pipe, os.fdopen(begin, "rb", 0)))[1] for begin, _ in pipes]
    return CommandProcess(int(await status.reader.readline()), out, err, status)


class BlockingProcess:
    """A forked process for a test without an event loop. `output` is a pipe, or a terminal of this size."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        *,
        terminal_size: tuple[int, int] | None = None,
    ) -> None:
        if terminal_size is None:
            self.output, output = os.pipe()
            errors = os.open(os.devnull, os.O_WRONLY)
        else:
            self.output, output = os.openpty()
            errors = os.dup(output)
            width, height = terminal_size
            termios.tcsetwinsize(self.output, (height, width))
        reading, status = os.pipe()
        self._status = os.fdopen(reading, "rb", 0)
        _send_request(arguments, folder, environment, [output, errors, status], at_terminal=terminal_size is not None)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def wait(self, seconds: float = 0) -> int | None:
        """Return the exit status; None if the process still runs after so many seconds."""
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.wait() is None:
            with suppress(ProcessLookupError):  # It has just ended.
                os.kill(self.pid, number)

    def close(self) -> None:
        """Kill the process, and close its output."""
        if self._status.closed:
            return
        self.send_signal(signal.SIGKILL)
        self.wait(_CLOSING_SECONDS)
        os.close(self.output)
        self._status.close()


def _send_request(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    descriptors: list[int],
    *,
    at_terminal: bool = False,
) -> None:
    """Request a process. The descriptors are for its output, its error output and its status."""
    with tempfile.TemporaryFile() as request:
        values = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": environment,
            "at_terminal": at_terminal,
        }
        request.write(json.dumps(values).encode())
        request.flush()
        socket.send_fds(template()[0], [b"."], [request.fileno(), *descriptors])
    for descriptor in descriptors:
        os.close(descriptor)


@cache
def template() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the template; return it and the socket for requests. It ends when all processes have closed the socket.

    Workers that are forked afterwards share it: a request is one byte with its descriptors, so requests do not mix.
    """
    ours, theirs = socket.socketpair()
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.process.template", str(theirs.fileno())],
        cwd=root,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        # Pipes, as the output of the forked processes: the interpreter looks at it when it starts.
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    theirs.close()
    atexit.register(process.communicate)
    atexit.register(ours.close)
    return ours, process


# In the template


def serve_forks(control: socket.socket) -> list[str] | None:
    """Fork for each request until the socket is closed. In a forked process, return its arguments."""
    ended, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    ended.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of a terminal: the test run ends, and the template with it.
    signal.set_wakeup_fd(wakeup.fileno())
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ended:
                    ended.recv(4_096)
                    _report_ended(running)
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, 1, 4)
                if not data:
                    return None
                if not (pid := os.fork()):
                    return _become(*descriptors)
                running[pid] = descriptors.pop()
                os.write(running[pid], b"%d\n" % pid)
                for descriptor in descriptors:
                    os.close(descriptor)


def _report_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        descriptor = running.pop(pid)
        with suppress(BrokenPipeError):  # The test may have ended.
            os.write(descriptor, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(descriptor)


def _become(request: int, out: int, err: int, status: int) -> list[str]:
    """Make the process look as if it had been started with the arguments in the file `request`."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    values = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    if values["at_terminal"]:
        os.login_tty(out)
        sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
    else:
        os.dup2(out, 1)
        os.dup2(err, 2)
    os.closerange(3, 1_024)
    os.chdir(values["folder"])
    sys.path[0] = os.getcwd()
    os.environ.clear()
    os.environ.update(values["environment"])
    return values["arguments"]


def import_server() -> None:
    """Import what `turnwire serve` imports, and most of what the other commands do."""
    import h11  # noqa: F401
    import httpx  # noqa: F401
    import prompt_toolkit.shortcuts  # noqa: F401
    import rich.markdown  # noqa: F401
    import uvloop  # noqa: F401

    import turnwire.app
    import turnwire.channels.console.channel
    import turnwire.channels.console.chat
    import turnwire.channels.console.host
    import turnwire.cli.serve
    import turnwire.cli.web_server
    import turnwire.extensions.host
    import turnwire.server.app  # noqa: F401
    from turnwire.assembly import build_routes

    build_routes()


if __name__ == "__main__":
    import runpy

    import_server()
    gc.freeze()
    arguments = serve_forks(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv[1:] = arguments
        sys.orig_argv[1:] = ["-m", "turnwire", *arguments]
        runpy.run_module("turnwire", run_name="__main__", alter_sys=True)
