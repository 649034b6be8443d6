"""`emit()`: events from inside a tool, wherever it runs.

The running turn is found through a context variable, which asyncio tasks and `asyncio.to_thread`
inherit. Outside a turn `emit()` does nothing, so that a tool can be used and tested on its own.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from msgspec import Struct

from turnwire.core.errors import EventRefusedError, TurnEndedError
from turnwire.core.events import RESERVED, ApprovalRequestEvent, ApprovalResponseEvent, Event, ResponseEvent
from turnwire.core.log import TurnLog

_THREAD_PATIENCE_SECONDS = 30


class _Running(Struct, frozen=True):
    log: TurnLog
    loop: asyncio.AbstractEventLoop
    note: Callable[[Event], None] | None

    def write(self, event: Event) -> None:
        if self.note is not None:
            self.note(event)
        self.log.append(event)


_running: ContextVar[_Running | None] = ContextVar("turnwire_running_turn", default=None)


def emit(event: Event) -> None:
    """Writes an event to the running turn's log; safe from any thread.

    Raises EventRefusedError, and TurnEndedError once the turn is over, which also stops a tool that
    nobody can cancel.
    """
    running = _running.get()
    if running is None:
        return
    if isinstance(event, (*RESERVED, ResponseEvent, ApprovalRequestEvent, ApprovalResponseEvent)):
        raise EventRefusedError(f"a tool must not emit {type(event).__name__}; Turnwire writes it")
    try:
        on_loop = asyncio.get_running_loop() is running.loop
    except RuntimeError:
        on_loop = False
    if on_loop:
        running.write(event)
    else:
        _emit_from_thread(running, event)


def _emit_from_thread(running: _Running, event: Event) -> None:
    # The thread waits for the loop: this keeps its events in order, holds it back, and hands it the error.
    written: concurrent.futures.Future[None] = concurrent.futures.Future()

    def write() -> None:
        try:
            running.write(event)
        except Exception as error:
            written.set_exception(error)
        else:
            written.set_result(None)

    try:
        running.loop.call_soon_threadsafe(write)
    except RuntimeError:
        # The loop is closed, so the process is going down.
        raise TurnEndedError(running.log.turn_id) from None
    written.result(_THREAD_PATIENCE_SECONDS)


def set_running_turn(log: TurnLog, note: Callable[[Event], None] | None = None) -> None:
    """Makes `emit()` write to this log in the current task and in everything that is started from it.

    `note` is told of each event before it is written, and may raise to refuse it.
    """
    _running.set(_Running(log, asyncio.get_running_loop(), note))


# Which turn the code that runs now belongs to, for those who write about it: the server's log, say.


class TurnContext(NamedTuple):
    turn_id: str
    session_id: str


_place: ContextVar[TurnContext | None] = ContextVar("turnwire_place", default=None)


def enter_turn(turn_id: str, session_id: str) -> None:
    """From here on, in this task and all that it starts."""
    _place.set(TurnContext(turn_id, session_id))


def current_turn() -> TurnContext | None:
    return _place.get()
