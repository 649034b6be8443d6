"""`emit()`, which writes events from inside a tool, from any thread.

Outside a turn it does nothing, so that a tool can be used and tested on its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from turnwire.core.errors import EventRefusedError, TurnEndedError
from turnwire.core.log.event_kinds import NOT_EMITTED
from turnwire.core.log.events import Event
from turnwire.core.log.scope import TurnScope, current_turn
from turnwire.core.log.shared_state import state_event

_THREAD_PATIENCE_SECONDS = 30


def emit(event: Event) -> None:
    """Write an event to the running turn's log, from any thread.

    Raises EventRefusedError, and TurnEndedError once the turn is over, which also stops a tool in a thread that cannot
    be cancelled.
    """
    scope = current_turn()
    if scope is None or scope.log is None:
        return
    if isinstance(event, NOT_EMITTED):
        raise EventRefusedError(f"a tool must not emit {type(event).__name__}; Turnwire writes it")
    _on_loop(scope, lambda: _write(scope, event))


def emit_state(state: Any) -> None:
    """Share a state with the clients of the running turn: a JSON value, from any thread.

    The first call of a turn writes the whole state, a later one what has changed since. AG-UI clients get
    `STATE_SNAPSHOT` and `STATE_DELTA`, others a `custom` event named `turnwire.state`; `TurnState.shared_state` has the
    whole state. Raises TypeError for a value that is not JSON, and what `emit` raises. Does nothing outside a turn.
    """
    scope = current_turn()
    if scope is not None and scope.log is not None:
        _on_loop(scope, lambda: _write_state(scope, state))


def _write(scope: TurnScope, event: Event) -> None:
    assert scope.log is not None
    if scope.check is not None:
        scope.check(event)
    scope.log.append(event)


def _write_state(scope: TurnScope, state: Any) -> None:
    assert scope.log is not None
    if (event := state_event(scope.log.fold.known_state, state)) is not None:
        _write(scope, event)


def _on_loop(scope: TurnScope, write: Callable[[], None]) -> None:
    if scope.is_on_its_loop:
        return write()

    async def write_on_loop() -> None:
        write()

    # The thread waits for the event loop, so that its events stay in order, it cannot run ahead, and it gets the error.
    assert scope.loop is not None
    writing = write_on_loop()
    try:
        written = asyncio.run_coroutine_threadsafe(writing, scope.loop)
    except RuntimeError:
        # The loop is closed, so the process shuts down.
        writing.close()
        raise TurnEndedError(scope.turn_id) from None
    written.result(_THREAD_PATIENCE_SECONDS)


def is_in_turn() -> bool:
    """Return True if `emit()` writes to a turn here."""
    scope = current_turn()
    return scope is not None and scope.log is not None


async def wait_for_room() -> None:
    """Hold back code that emits faster than the store commits. Do nothing outside a turn and in a thread."""
    scope = current_turn()
    if scope is not None and scope.log is not None and scope.log.is_behind and scope.is_on_its_loop:
        await scope.log.wait_for_room()
