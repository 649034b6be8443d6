"""Queue between the tasks of an SDK's run and the generator that yields the turn's events."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from turnwire.agents.agent_paths import Path, enter_agent
from turnwire.agents.context_changes import ContextChanges
from turnwire.core.errors import TurnwireError
from turnwire.core.journal.turn_journal import TurnJournal, current_journal
from turnwire.core.log.emit import emit, wait_for_room
from turnwire.core.log.events import Event, EventBase, UsageEvent

_MAX_QUEUED_EVENTS = 256
_CLEAN_UP_SECONDS = 3.0


class EventQueue:
    """The events of a turn's runs, in the order in which they are written to the log.

    `journal` is the turn's journal, or None if these runs are not recorded. `changes` records what tools change in the
    object that the SDK passes to them.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.journal: TurnJournal | None = current_journal()
        self.changes: ContextChanges | None = None
        self._queue: asyncio.Queue[Event | str | None] = asyncio.Queue()
        self._thread = threading.get_ident()
        self.is_closed = False

    @property
    def is_on_loop(self) -> bool:
        """Return True in the thread of the turn's event loop."""
        return threading.get_ident() == self._thread

    def put(self, event: Event | str | None) -> None:
        """Add an event, from any thread; None ends the queue."""
        if not self.is_on_loop:
            self.loop.call_soon_threadsafe(self.put, event)
        elif not self.is_closed:
            self._queue.put_nowait(event)
        elif isinstance(event, UsageEvent):
            # The run is being stopped and the generator reads no more; its usage must still reach the log.
            with suppress(TurnwireError):
                emit(event)

    def changes_of(self, value: Any) -> ContextChanges | None:
        """Return the recorder of changes if `value` is the object that the turn passes to its tools; otherwise None."""
        return self.changes if self.changes is not None and self.changes.value is value else None

    async def flush(self) -> None:
        """Wait until every queued event is in the log, so that a tool's own `emit()` cannot overtake them."""
        if not self.is_closed:
            await self._queue.join()

    async def wait_for_room(self) -> None:
        """Hold back a model that is faster than the log."""
        if self._queue.qsize() > _MAX_QUEUED_EVENTS:
            await self.flush()

    async def events(self) -> AsyncIterator[Event | str]:
        while (event := await self._queue.get()) is not None:
            yield event
            # After the `yield`: the reader requests the next event only when it has written this one.
            self._queue.task_done()

    def close(self) -> None:
        """Drop further events."""
        self.is_closed = True

    def release(self) -> None:
        """Wake the tasks that wait in `flush`: no event will be taken any more."""
        with suppress(ValueError):
            while True:
                self._queue.task_done()


class EmittedEvents(EventQueue):
    """A queue for runs that no adapter reads, such as a run in a plain function: `put` emits each event at once.

    Such a run is not recorded: the function records its own steps, with `journaled`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.journal = None

    def put(self, event: Event | str | None) -> None:
        if isinstance(event, EventBase):
            emit(event)

    async def flush(self) -> None:
        pass

    async def wait_for_room(self) -> None:
        await wait_for_room()


class Recorder(Protocol):
    """The recorder of a run, as a run that one of its tools starts knows it."""

    @property
    def queue(self) -> EventQueue: ...
    @property
    def path(self) -> Path: ...


def enter_run(outer: Recorder | None, name: str) -> tuple[EventQueue, Path, str]:
    """Return the queue, the agent path and the place in the journal of a run that a tool starts.

    `outer` is the recorder of the run that has called the tool, if there is one. `leave_agent` releases the path.
    """
    # A tool's thread may have its own event loop, from which the turn's queue must not be touched.
    is_same_loop = outer is not None and outer.queue.loop is asyncio.get_running_loop()
    queue = outer.queue if outer is not None and is_same_loop else EmittedEvents()
    place = queue.journal.place("run") if queue.journal else ""
    return queue, enter_agent(outer.path if outer is not None else (), name, place=place), place


@contextmanager
def explaining(explain: Callable[[Exception], Exception]) -> Generator[None]:
    """Replace an exception of the SDK with the error that `explain` returns for it, which may be the same."""
    try:
        yield
    except Exception as error:
        failure = explain(error)
        if failure is error:
            raise
        raise failure from error


async def run_events(
    run: Callable[[EventQueue], Coroutine[Any, Any, None]],
) -> AsyncGenerator[Event | str]:
    """Yield the events that a run puts into its queue. Raises what the run raises."""
    queue = EventQueue()
    running = asyncio.create_task(run(queue))
    running.add_done_callback(lambda _: queue.put(None))
    try:
        async for event in queue.events():
            yield event
        await running
    finally:
        queue.close()
        # Cancellation stops the tools and closes the connection to the model's server.
        running.cancel()
        await asyncio.wait({running}, timeout=_CLEAN_UP_SECONDS)
        if running.done() and not running.cancelled():
            running.exception()  # Nobody waits for it any more; asyncio would log it.
        queue.release()
