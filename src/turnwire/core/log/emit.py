"""`emit()`, which writes events from inside a tool, and the context variables that it reads.

Asyncio tasks and `asyncio.to_thread` inherit the running turn as a context variable. Outside a turn `emit()` does
nothing, so that a tool can be used and tested on its own.
"""

import asyncio
import concurrent.futures
import gc
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, NamedTuple

from msgspec import Struct

from turnwire.core.errors import EventRefusedError, TurnEndedError
from turnwire.core.log.events import RESERVED, ApprovalRequestEvent, ApprovalResponseEvent, Event, ResponseEvent
from turnwire.core.log.shared_state import state_event
from turnwire.core.log.turn_log import TurnLog

_THREAD_PATIENCE_SECONDS = 30


class _RunningTurn(Struct, frozen=True):
    log: TurnLog
    loop: asyncio.AbstractEventLoop
    check: Callable[[Event], None] | None

    def write(self, event: Event) -> None:
        if self.check is not None:
            self.check(event)
        self.log.append(event)


_running: ContextVar[_RunningTurn | None] = ContextVar("turnwire_running_turn", default=None)


def emit(event: Event) -> None:
    """Write an event to the running turn's log, from any thread.

    Raises EventRefusedError, and TurnEndedError once the turn is over, which also stops a tool in a thread that cannot
    be cancelled.
    """
    running = _running.get()
    if running is None:
        return
    if isinstance(event, (*RESERVED, ResponseEvent, ApprovalRequestEvent, ApprovalResponseEvent)):
        raise EventRefusedError(f"a tool must not emit {type(event).__name__}; Turnwire writes it")
    _on_loop(running, lambda: running.write(event))


def emit_state(state: Any) -> None:
    """Share a state with the clients of the running turn: a JSON value, from any thread.

    The first call of a turn writes the whole state, a later one what has changed since. AG-UI clients get
    `STATE_SNAPSHOT` and `STATE_DELTA`, others a `custom` event named `turnwire.state`; `TurnState.shared_state` has the
    whole state. Raises TypeError for a value that is not JSON, and what `emit` raises. Does nothing outside a turn.
    """
    if (running := _running.get()) is not None:
        _on_loop(running, lambda: _write_state(running, state))


def _write_state(running: _RunningTurn, state: Any) -> None:
    if (event := state_event(running.log.fold.known_state, state)) is not None:
        running.write(event)


def _on_loop(running: _RunningTurn, write: Callable[[], None]) -> None:
    try:
        on_loop = asyncio.get_running_loop() is running.loop
    except RuntimeError:
        on_loop = False
    if on_loop:
        write()
    else:
        _write_from_thread(running, write)


def is_in_turn() -> bool:
    """Return True if `emit()` writes to a turn here."""
    return _running.get() is not None


async def wait_for_room() -> None:
    """Hold back code that emits faster than the store commits. Do nothing outside a turn and in a thread."""
    running = _running.get()
    if running is not None and running.log.is_behind and asyncio.get_running_loop() is running.loop:
        await running.log.wait_for_room()


def _write_from_thread(running: _RunningTurn, write: Callable[[], None]) -> None:
    # The thread waits for the event loop, so that its events stay in order, it cannot run ahead, and it gets the error.
    written: concurrent.futures.Future[None] = concurrent.futures.Future()

    def write_on_loop() -> None:
        try:
            write()
        except Exception as error:
            written.set_exception(error)
        else:
            written.set_result(None)

    try:
        running.loop.call_soon_threadsafe(write_on_loop)
    except RuntimeError:
        # The loop is closed, so the process shuts down.
        raise TurnEndedError(running.log.turn_id) from None
    written.result(_THREAD_PATIENCE_SECONDS)


def set_running_turn(log: TurnLog, check: Callable[[Event], None] | None = None) -> None:
    """Make `emit()` write to this log, in the current task and in everything that is started from it.

    `check` is called with each event before it is written, and may raise to refuse it.
    """
    _running.set(_RunningTurn(log, asyncio.get_running_loop(), check))


class TurnContext(NamedTuple):
    """The turn that the current code belongs to, for log lines, spans and limits."""

    turn_id: str
    session_id: str
    principal: str


_context: ContextVar[TurnContext | None] = ContextVar("turnwire_turn_context", default=None)


def enter_turn(turn_id: str, session_id: str, principal: str) -> None:
    """Set the turn of the current task and of everything that is started from it."""
    _context.set(TurnContext(turn_id, session_id, principal))


def current_turn() -> TurnContext | None:
    return _context.get()


def turn_of_task(task: "asyncio.Task[Any]") -> TurnContext | None:
    """Return the turn of a task, from any thread."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(_context)
    # Python 3.11 has no other way to get at the context of a task that runs.
    context = next((item for item in gc.get_referents(task) if isinstance(item, Context)), None)
    return None if context is None else context.get(_context)
