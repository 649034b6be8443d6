"""One open response body, written to without waiting.

ASGI's `send` is a coroutine, but a server with room in its buffer finishes it in one step. So a write runs it directly,
and makes a task of it only when the reader is slow. A slow reader then blocks nothing but its own connection.
"""

import asyncio
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import nullcontext
from functools import cache
from typing import Any

from turnwire.core.contracts.wires import Control, Wire
from turnwire.server.auth import Caller

Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


_NO_SCOPE = nullcontext[asyncio.Timeout | None](None)


class StreamConnection:
    """The body of one response.

    `on_writable` is called when a blocked write has finished; `takes_heartbeat` tells whether the wire allows a
    heartbeat at the reader's position; `route` labels metrics; the hub counts time in the `..._ticks`.
    """

    __slots__ = (
        "_cycle",
        "_direct",
        "_has_left",
        "_is_broken",
        "_scope",
        "_send",
        "_task",
        "_writes_chunks",
        "age_ticks",
        "blocked_ticks",
        "caller",
        "has_begun",
        "is_blocked",
        "is_finished",
        "on_writable",
        "quiet_ticks",
        "route",
        "takes_heartbeat",
        "wire",
    )

    def __init__(self, send: Send, wire: Wire, caller: Caller, route: str = "") -> None:
        self.wire = wire
        self.caller = caller
        self.route = route
        self.has_begun = True
        """False while the response has no status yet, and so cannot be written to."""
        self.is_blocked = False
        self.is_finished = False
        self.quiet_ticks = 0
        self.blocked_ticks = 0
        self.age_ticks = 0
        self.on_writable: Callable[[], None] | None = None
        # On a wire that keeps state, some positions allow no heartbeat: its reader knows which.
        self.takes_heartbeat: Callable[[], bool] = _never if wire.keeps_state else _always
        self._send = send
        self._cycle: Any = getattr(send, "__self__", None)
        # Middleware of a host application may wrap `send` in ways that need a task.
        owner: type = self._cycle.__class__
        self._direct = owner.__module__.startswith("uvicorn.protocols.http")
        self._writes_chunks = takes_chunks(owner) and self._cycle.scope["method"] != "HEAD"
        self._task: asyncio.Task[None] | None = None
        self._scope: asyncio.Timeout | None = None
        self._is_broken = False
        self._has_left = False

    def write(self, body: bytes, *, last: bool = False) -> None:
        """Send a piece of the body; nothing once the stream has ended. Must not be called while `is_blocked`."""
        if self.is_finished or not (body or last):
            return
        self.quiet_ticks = 0
        if self._writes_chunks and not last and write_chunk(self._cycle, body):
            return
        sending = self._send({"type": "http.response.body", "body": body, "more_body": not last})
        if last:
            self.is_finished = True
        if self._direct:
            try:
                awaited = sending.send(None)
            except StopIteration:
                return
            sending = _resume(sending, awaited)
        self.is_blocked = True
        self.blocked_ticks = 0
        self._task = asyncio.create_task(sending)
        self._task.add_done_callback(self._written)

    async def written(self, body: bytes, *, last: bool = False) -> None:
        """Send a piece of the body, and wait until there is room for another."""
        if self.is_blocked and self._task is not None:
            await asyncio.wait([self._task])  # A heartbeat is being written.
        self.write(body, last=last)
        if self.is_blocked and self._task is not None:
            await asyncio.wait([self._task])

    def send_control(self, control: Control) -> None:
        """Send a control frame; break the connection if the wire has none for it."""
        frame = self.wire.control(control)
        if frame is None:
            self.abort()
        else:
            self.write(frame)

    def finish(self, control: Control) -> None:
        """End the stream with a control frame; break the connection where that cannot be written."""
        if self.is_finished:
            return
        frame = self.wire.control(control)
        if frame is None or self.is_blocked or not self.has_begun:
            self.abort()
        else:
            self.write(frame, last=True)

    def detach(self) -> None:
        """Drop the references to the reader, so that both are freed without the garbage collector."""
        self.on_writable, self.takes_heartbeat = None, _never

    def abort(self) -> None:
        """Break the connection, so that the client cannot mistake a part of the stream for all of it."""
        self.is_finished = True
        if self._task is not None:
            self._task.cancel()
        # ASGI cannot do this; uvicorn's request cycle holds the transport.
        transport = getattr(self._cycle, "transport", None)
        if transport is not None:
            transport.abort()
        else:
            self._is_broken = True
            self._stop_waiting()

    async def closed(self, receive: Receive) -> bool:
        """Wait until the response has ended. Returns True if the client disconnected."""
        if self._is_broken:
            raise BrokenStreamError
        try:
            async with _NO_SCOPE if self._direct else asyncio.timeout(None) as self._scope:
                while (await receive())["type"] != "http.disconnect":
                    pass
                return self._has_left or not self.is_finished
        except TimeoutError:
            if self._is_broken:
                raise BrokenStreamError from None
            return False
        finally:
            self._scope = None
            self.is_finished = True
            if self._task is not None:
                self._task.cancel()

    def _written(self, task: asyncio.Task[None]) -> None:
        self.is_blocked = False
        self._task = None
        if task.cancelled():
            self.is_finished = True
        elif task.exception() is not None:
            # Some servers report a disconnect as an error of `send`.
            self._has_left, self.is_finished = not self.is_finished, True
        elif self.is_finished:
            self._stop_waiting()
        elif self.on_writable is not None:
            self.on_writable()

    def _stop_waiting(self) -> None:
        # Not every server reports the end of a response as a disconnect, as uvicorn does.
        scope, self._scope = self._scope, None
        if scope is not None:  # Only once: a scope that expires cannot be rescheduled.
            scope.reschedule(asyncio.get_running_loop().time())


@cache
def takes_chunks(cycle: type) -> bool:
    """Return True for uvicorn's response cycle, if it has everything that `write_chunk` reads."""
    if cycle.__module__ != "uvicorn.protocols.http.httptools_impl":
        return False
    return {"scope", "transport", "flow"} <= inspect.signature(cycle).parameters.keys()


def write_chunk(cycle: Any, body: bytes) -> bool:
    """Write a chunk of the body to the transport, as uvicorn's `send` would. Return False if `send` has to do it.

    Most of the cost of a token is the way through `send`: a coroutine, a message and its checks.
    """
    try:
        needs_send = (
            cycle.disconnected or cycle.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete
        )
        write = cycle.transport.write
    except AttributeError:
        return False  # Another version of uvicorn.
    if needs_send:
        return False
    write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


class BrokenStreamError(Exception):
    """Raised out of the app to make a server break the connection where there is no transport to abort."""


def _always() -> bool:
    return True


def _never() -> bool:
    return False


async def _resume(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    """Finish a coroutine that was stepped by hand and waits for `awaited`."""
    await _drive(coroutine, awaited)


@types.coroutine
def _drive(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
        except StopIteration:
            return
