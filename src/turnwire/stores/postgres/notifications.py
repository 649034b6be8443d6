"""Notifications of commits to the readers of this process: own commits at once, those of other processes after a hint.

A hint (LISTEN/NOTIFY) says that something has changed. It has the new events with it if they are small: readers that
are just before them need no query. Otherwise the log is read, once for all readers of this process. Hints may be lost,
so everything that is watched is also polled, in one query however much it is.

A payload is a list of hints with spaces between them: `+<turn id>` for a commit, `=<key>` for any other change. After a
commit there may be `*<first position>:<lines>`, the events as they are stored; 0x1f, which no line has, stands for a
space.

A commit is announced only if another process watches the turn. `?<key>` says that a process watches a key; the others
forget that after a minute, unless it is repeated. `!` asks all processes what they watch. The writer of a turn answers
the first `?` with a hint, because it has announced no commit before.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turnwire.core.contracts.stores import RUNNABLE, Wake
from turnwire.core.log.codec import LoggedEvent
from turnwire.stores.lines import from_lines, to_lines
from turnwire.stores.postgres.connections import RETRY, ConnectionPool, DatabaseConnection, is_transient, reason
from turnwire.stores.postgres.rows import events_from
from turnwire.stores.rules import Watchers

logger = logging.getLogger("turnwire.stores.postgres")

CHANNEL = "turnwire"
SAFETY_SECONDS = 1.5
"""The interval of polling beside hints."""
_MAX_PAYLOAD = 7_900
_MAX_EVENTS_SIZE = 2_000
_SPACE = "\x1f"
_PING_SECONDS = 3.0
_POLL_SECONDS = 0.1
_SLOWEST_POLL_SECONDS = 1.0
_MAX_ROWS = 200
# A process repeats what it watches a few times before the others forget it.
_REPEAT_SECONDS = 15.0
_FORGET_SECONDS = 60.0
_MAX_OWN_TURNS = 10_000

# The keys that have changed: a turn's last position, or the number of a session's last turn, is not the one seen.
_CHANGED = """
    SELECT w.key, w.seen AS old, now.newest, now.is_turn
    FROM unnest($1::text[], $2::bigint[]) AS w (key, seen) LEFT JOIN LATERAL (
        SELECT h.last_position AS newest, true AS is_turn FROM turnwire.head h WHERE h.id = w.key
        UNION ALL SELECT t.last_position, true FROM turnwire.turn t WHERE t.id = w.key AND t.ended_at IS NOT NULL
        UNION ALL SELECT (SELECT max(t.number) FROM turnwire.turn t WHERE t.session_id = s.id), false
            FROM turnwire.session s WHERE s.id = w.key
    ) now ON true
    WHERE w.seen IS DISTINCT FROM now.newest
"""
_NOTIFY = "SELECT pg_notify($1, line) FROM unnest($2::text[]) AS line"
READ = f"""
    SELECT w.id, e.first_position, e.last_position, e.body
    FROM unnest($1::text[], $2::bigint[]) AS w (id, after) JOIN turnwire.turn t ON t.id = w.id
    CROSS JOIN LATERAL (
        SELECT e.first_position, e.last_position, e.body FROM turnwire.event e
        WHERE e.day = t.day AND e.turn = t.number AND NOT t.sealed AND e.last_position > w.after
        ORDER BY e.last_position LIMIT {_MAX_ROWS}
    ) e
    ORDER BY w.id, e.last_position
"""
_WORK = """
    SELECT EXISTS (
        SELECT 1 FROM turnwire.head ready WHERE ready.phase = 'queued' AND NOT EXISTS (
            SELECT 1 FROM turnwire.head earlier
            WHERE earlier.session_id = ready.session_id AND earlier.number < ready.number
        )
    ), EXISTS (
        SELECT 1 FROM turnwire.command c JOIN turnwire.head h ON h.id = c.turn_id
        WHERE h.worker IS NULL OR h.worker = ANY($1)
    )
"""


class NotificationListener:
    """The exchange of hints with other processes, over one connection.

    `received` is called with their hints, `missed` when hints may have been lost.
    """

    def __init__(
        self, connections: ConnectionPool, received: Callable[[Sequence[str]], None], missed: Callable[[], None]
    ) -> None:
        self._connections = connections
        self._received = received
        self._missed = missed
        # The hints that are to be sent, each with its events or nothing.
        self._outgoing: dict[str, str] = {}
        self._has_outgoing = asyncio.Event()
        self.is_listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_listening(), name="turnwire-hints")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, hint: str, events: str = "") -> None:
        if hint in self._outgoing:
            events = ""  # One hint for both, and a read.
        self._outgoing[hint] = events
        self._has_outgoing.set()

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            connection: DatabaseConnection | None = None
            try:
                # A hint need not survive a crash of the server.
                connection = await self._connections.connect(synchronous_commit="off")
                await connection.add_listener(CHANNEL, self._on_notification)
                self.is_listening.set()
                self._missed()
                failures = 0
                await self._send_all(connection)
            except Exception as error:
                if not is_transient(error):
                    logger.exception("hints cannot be exchanged; trying again")
                elif failures == 0:
                    logger.warning("the connection for hints was lost (%s); trying again", reason(error))
                self._outgoing.clear()
            finally:
                self.is_listening.clear()
                if connection is not None:
                    connection.terminate()
            failures += 1
            await RETRY.wait(failures)

    async def _send_all(self, connection: DatabaseConnection) -> None:
        while True:
            try:
                async with asyncio.timeout(_PING_SECONDS):
                    await self._has_outgoing.wait()
            except TimeoutError:
                # A connection may be dead without an error.
                await connection.execute("SELECT 1", timeout=_PING_SECONDS)
                continue
            self._has_outgoing.clear()
            hints, self._outgoing = self._outgoing, {}
            lines = payloads(f"{hint} {events}" if events else hint for hint, events in hints.items())
            await connection.execute(_NOTIFY, CHANNEL, lines, timeout=_PING_SECONDS)

    def _on_notification(self, connection: Any, sender: int, channel: str, payload: object) -> None:
        if sender != connection.get_server_pid():
            self._received(str(payload).split(" "))


def _hint_of(events: Sequence[LoggedEvent]) -> str:
    """Return the events as part of a hint, or nothing if they are too large for it."""
    if sum([len(event.body) for event in events]) > _MAX_EVENTS_SIZE:
        return ""
    return f"*{events[0].position}:{to_lines(events).decode('ascii').replace(' ', _SPACE)}"


def payloads(hints: Iterable[str]) -> list[str]:
    """Join hints into as few payloads as PostgreSQL's limit allows."""
    full: list[str] = []
    line = ""
    for hint in hints:
        if len(line) + 1 + len(hint) > _MAX_PAYLOAD:
            full.append(line)
            line = ""
        line = f"{line} {hint}" if line else hint
    return [*full, line] if line else full


class WatchedKey:
    """A key with watchers. `seen` is the last position, or the last turn of a session, that all watchers know of.

    It is None before any of them has read. `is_own` is True if this process wrote the last commit that it knows of.
    """

    __slots__ = ("count", "is_own", "seen")

    def __init__(self) -> None:
        self.count = 0
        self.is_own = False
        self.seen: int | None = None

    def publish(self, events: Sequence[LoggedEvent]) -> None:
        """Note that the watchers are notified of these events."""
        self.seen = events[-1].position


class CommitNotifier:
    """The watchers of this process, and how far each key has been published to them."""

    def __init__(self, connections: ConnectionPool, *, with_hints: bool) -> None:
        self._connections = connections
        self._watchers = Watchers()
        self._watched: dict[str, WatchedKey] = {}
        self._workers: set[str] = set()
        # The keys that other processes watch, with the time to forget them; the turns that this process has written to.
        self._elsewhere: dict[str, float] = {}
        self._own_turns: dict[str, None] = {}
        self._repeat_at = 0.0
        self._dirty: set[str] = set()
        self._must_poll = False
        self._wakeup = asyncio.Event()
        self._interval = _POLL_SECONDS
        self._hints = NotificationListener(connections, self._on_hints, self._on_listening) if with_hints else None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="turnwire-hub")
        if self._hints is not None:
            self._hints.start()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._hints is not None:
            await self._hints.close()

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        watched = self._watched.setdefault(key, WatchedKey())
        if not watched.count:
            self._send(f"?{key}")
        watched.count += 1
        self._interval = _POLL_SECONDS
        remove = self._watchers.add(key, wake)
        is_removed = False

        def unwatch() -> None:
            nonlocal is_removed
            if is_removed:
                return
            is_removed = True
            remove()
            watched.count -= 1
            if watched.count == 0:
                del self._watched[key]

        return unwatch

    def waits_at(self, turn_id: str, position: int) -> None:
        """Note that a reader has read up to this position, where the log ended, and may wait now."""
        if (watched := self._watched.get(turn_id)) is not None:
            watched.seen = position if watched.seen is None else min(watched.seen, position)

    def add_worker(self, worker: str) -> None:
        """Note that this key is a worker of this process: it is polled for commands."""
        self._workers.add(worker)

    # Changes by this process

    def committed(self, turn_id: str, events: Sequence[LoggedEvent]) -> None:
        """Notify of events that this process has committed."""
        if (watched := self._watched.get(turn_id)) is not None:
            watched.publish(events)
            watched.is_own = True
            self._watchers.notify(turn_id, events)
        self._own_turns[turn_id] = None
        if len(self._own_turns) > _MAX_OWN_TURNS:
            del self._own_turns[next(iter(self._own_turns))]
        if turn_id in self._elsewhere:
            self._send(f"+{turn_id}", _hint_of(events))

    def accepted(self, session_id: str, number: int) -> None:
        """Notify of a turn that this process has accepted."""
        if (watched := self._watched.get(session_id)) is not None:
            watched.seen = number
        self.changed(session_id)

    def changed(self, key: str) -> None:
        """Notify of any other change."""
        self._watchers.notify(key, ())
        self._send(f"={key}")

    def _send(self, hint: str, events: str = "") -> None:
        if self._hints is not None:
            self._hints.send(hint, events)

    # Changes by other processes

    def _on_hints(self, hints: Sequence[str]) -> None:
        for hint, following in zip(hints, (*hints[1:], ""), strict=True):
            kind, key = hint[:1], hint[1:]
            watched = self._watched.get(key)
            if kind == "?":
                self._on_watch(key)
                continue
            if kind == "!":
                self._send_watched()
                continue
            if watched is None:
                continue
            if kind != "+":
                self._watchers.notify(key, ())
            elif not following.startswith("*") or not self._take_events(key, watched, following):
                self._dirty.add(key)
        if self._dirty:
            self._wakeup.set()

    def _take_events(self, key: str, watched: WatchedKey, text: str) -> bool:
        """Publish the events of a hint. Return False if they do not follow what is published, and must be read."""
        first, _, lines = text[1:].partition(":")
        if watched.seen is None or int(first) != watched.seen + 1:
            return False
        events = from_lines(lines.replace(_SPACE, " ").encode("ascii").split(b"\n"), int(first))
        watched.publish(events)
        self._watchers.notify(key, events)
        return True

    def _on_watch(self, key: str) -> None:
        """Note that another process watches a key."""
        is_new = key not in self._elsewhere
        self._elsewhere[key] = time.monotonic() + _FORGET_SECONDS
        if is_new and key in self._own_turns:
            self._send(f"+{key}")

    def _send_watched(self) -> None:
        """Tell the other processes what is watched here and not written here."""
        self._repeat_at = time.monotonic() + _REPEAT_SECONDS
        for key, watched in self._watched.items():
            if not watched.is_own:
                self._send(f"?{key}")

    def _on_listening(self) -> None:
        """Make up for the hints that were lost before."""
        self._send("!")
        self._send_watched()
        self._must_poll = True
        self._wakeup.set()

    def _tend_watches(self) -> None:
        """Forget what other processes have not repeated, and repeat what this one watches."""
        now = time.monotonic()
        self._elsewhere = {key: until for key, until in self._elsewhere.items() if until > now}
        if now > self._repeat_at:
            self._send_watched()

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SAFETY_SECONDS if self._hints is not None else self._interval):
                    await self._wakeup.wait()
            except TimeoutError:
                self._must_poll = True
            self._wakeup.clear()
            try:
                if self._must_poll:
                    self._must_poll = False
                    self._interval = min(self._interval * 1.5, _SLOWEST_POLL_SECONDS)
                    await self._poll()
                while self._dirty:
                    await self._read_dirty()
            except Exception:
                # Readers have missed nothing for good: the next poll finds what this one did not.
                logger.warning("polling the logs failed; trying again", exc_info=True)

    async def _poll(self) -> None:
        """Find what has changed of everything that is watched."""
        self._tend_watches()
        workers = [key for key in self._watched if key in self._workers]
        if workers or RUNNABLE in self._watched:
            await self._poll_work(workers)
        keys = [key for key in self._watched if key != RUNNABLE and key not in self._workers]
        if not keys:
            return
        seen = [self._watched[key].seen for key in keys]
        for key, old, newest, is_turn in await self._connections.fetch(_CHANGED, keys, seen):
            watched = self._watched.get(key)
            if watched is None or watched.seen != old:
                continue  # A notification has come meanwhile, and is newer than this result.
            self._interval = _POLL_SECONDS
            if is_turn and watched.is_own:
                watched.is_own = False  # Another process writes it now.
                self._send(f"?{key}")
            if is_turn and newest is not None and old is not None and newest > old:
                self._dirty.add(key)
            else:
                # Not read yet, deleted, or shorter than before: the reader finds out by reading.
                watched.seen = newest
                self._watchers.notify(key, ())

    async def _poll_work(self, workers: list[str]) -> None:
        ((is_ready, is_commanded),) = await self._connections.fetch(_WORK, workers)
        if is_ready or is_commanded:
            self._watchers.notify(RUNNABLE, ())
        if is_commanded:
            for worker in workers:
                self._watchers.notify(worker, ())

    async def _read_dirty(self) -> None:
        """Read the new events of all dirty turns in one query, and hand them to the watchers."""
        dirty, self._dirty = [key for key in self._dirty if key in self._watched], set()
        after = {key: seen for key in dirty if (seen := self._watched[key].seen) is not None}
        for key in dirty:
            if key not in after:
                self._watchers.notify(key, ())
        if not after:
            return
        rows_by_key: dict[str, list[tuple[int, bytes]]] = {}
        for key, first, _, body in await self._connections.fetch(READ, list(after), list(after.values())):
            rows_by_key.setdefault(key, []).append((first, body))
        for key, position in after.items():
            watched = self._watched.get(key)
            if watched is None or watched.seen != position:
                continue
            rows = rows_by_key.get(key)
            if rows is None:
                # Nothing new, or sealed already, or deleted.
                self._watchers.notify(key, ())
                continue
            events = events_from(rows, position)
            watched.publish(events)
            self._watchers.notify(key, events)
            if len(rows) == _MAX_ROWS:
                self._dirty.add(key)
