"""What readers in this process are told: their own process's commits at once, everybody else's after a hint.

A hint (`hints`) only says that something has changed; the log is then read, once for all readers of this process. A
hint may be lost, so all that is watched is looked at now and then as well, in one query however much it is.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import RUNNABLE, Wake
from turnwire.stores.postgres.connections import Connections, DatabaseConnection, Row, is_passing, pause, reason
from turnwire.stores.postgres.rows import events_from
from turnwire.stores.rules import Watchers

# Hints between processes, by LISTEN and NOTIFY: which turns, sessions and workers have something new.


logger = logging.getLogger("turnwire.stores.postgres")

CHANNEL = "turnwire"
_MOST_BYTES = 7_900
_PING_SECONDS = 3.0


class NotificationListener:
    def __init__(
        self, connections: Connections, hinted: Callable[[Sequence[str]], None], missed: Callable[[], None]
    ) -> None:
        self._connections = connections
        self._hinted = hinted
        self._missed = missed
        # A dict is a set that keeps its order.
        self._words: dict[str, None] = {}
        self._wanted = asyncio.Event()
        self.is_listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_listening(), name="turnwire-hints")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, word: str) -> None:
        self._words[word] = None
        self._wanted.set()

    async def _keep_listening(self) -> None:
        tries = 0
        while True:
            connection: DatabaseConnection | None = None
            try:
                # Nobody waits for a hint to be on a disk.
                connection = await self._connections.connect(synchronous_commit="off")
                await connection.add_listener(CHANNEL, self._on_notification)
                self.is_listening.set()
                self._missed()
                tries = 0
                await self._send_all(connection)
            except Exception as error:
                if not is_passing(error):
                    logger.exception("hints cannot be exchanged; it is tried again")
                elif tries == 0:
                    logger.warning("the connection for hints was lost (%s)", reason(error))
                self._words.clear()
            finally:
                self.is_listening.clear()
                if connection is not None:
                    connection.terminate()
            await pause(tries)
            tries += 1

    async def _send_all(self, connection: DatabaseConnection) -> None:
        while True:
            try:
                async with asyncio.timeout(_PING_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                # A connection may be dead without anyone having said so.
                await connection.execute("SELECT 1", timeout=_PING_SECONDS)
                continue
            self._wanted.clear()
            words, self._words = self._words, {}
            for payload in payloads(words):
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload, timeout=_PING_SECONDS)

    def _on_notification(self, connection: Any, sender: int, channel: str, payload: object) -> None:
        if sender != connection.get_server_pid():
            self._hinted(str(payload).split(" "))


def payloads(words: Sequence[str] | dict[str, None]) -> list[str]:
    """The words in as few messages as PostgreSQL takes."""
    made: list[str] = []
    line = ""
    for word in words:
        if len(line) + 1 + len(word) > _MOST_BYTES:
            made.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return [*made, line] if line else made


SAFETY_SECONDS = 1.5
_POLL_SECONDS = 0.1
_SLOWEST_POLL_SECONDS = 1.0
_MOST_ROWS = 200

# What is new at each key: a turn's last position, or the number of a session's last turn.
_LOOK = """
    SELECT w.key, w.mark AS told, now.mark, now.is_turn
    FROM unnest($1::text[], $2::bigint[]) AS w (key, mark) LEFT JOIN LATERAL (
        SELECT h.last_position AS mark, true AS is_turn FROM turnwire.head h WHERE h.id = w.key
        UNION ALL SELECT t.last_position, true FROM turnwire.turn t WHERE t.id = w.key AND t.ended_at IS NOT NULL
        UNION ALL SELECT (SELECT max(t.number) FROM turnwire.turn t WHERE t.session_id = s.id), false
            FROM turnwire.session s WHERE s.id = w.key
    ) now ON true
    WHERE w.mark IS DISTINCT FROM now.mark
"""
READ = f"""
    SELECT w.id, e.first_position, e.last_position, e.body
    FROM unnest($1::text[], $2::bigint[]) AS w (id, after) JOIN turnwire.turn t ON t.id = w.id
    CROSS JOIN LATERAL (
        SELECT e.first_position, e.last_position, e.body FROM turnwire.event e
        WHERE e.day = t.day AND e.turn = t.number AND NOT t.sealed AND e.last_position > w.after
        ORDER BY e.last_position LIMIT {_MOST_ROWS}
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


class WatchedTurn:
    """A key that somebody watches. `mark` is what all of its watchers know of, or None before any of them said."""

    __slots__ = ("count", "mark")

    def __init__(self) -> None:
        self.count = 0
        self.mark: int | None = None


class CommitNotifier:
    def __init__(self, connections: Connections, *, with_hints: bool) -> None:
        self._connections = connections
        self._watchers = Watchers()
        self._watched: dict[str, WatchedTurn] = {}
        self._workers: set[str] = set()
        self._dirty: set[str] = set()
        self._must_look = False
        self._stirred = asyncio.Event()
        self._pause = _POLL_SECONDS
        self._hints = NotificationListener(connections, self._hinted, self._look_soon) if with_hints else None
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

    # Watching

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        watched = self._watched.setdefault(key, WatchedTurn())
        watched.count += 1
        self._pause = _POLL_SECONDS
        remove = self._watchers.add(key, wake)
        is_gone = False

        def unwatch() -> None:
            nonlocal is_gone
            if is_gone:
                return
            is_gone = True
            remove()
            watched.count -= 1
            if watched.count == 0:
                del self._watched[key]

        return unwatch

    def waits_at(self, turn_id: str, position: int) -> None:
        """A reader has found nothing after this position, and may wait now."""
        if (watched := self._watched.get(turn_id)) is not None:
            watched.mark = position if watched.mark is None else min(watched.mark, position)

    def know_worker(self, worker: str) -> None:
        self._workers.add(worker)

    # What has happened here

    def committed(self, turn_id: str, events: Sequence[LoggedEvent]) -> None:
        if (watched := self._watched.get(turn_id)) is not None:
            watched.mark = events[-1].position
            self._watchers.notify(turn_id, events)
        if self._hints is not None:
            self._hints.send(f"+{turn_id}")

    def accepted(self, session_id: str, number: int) -> None:
        if (watched := self._watched.get(session_id)) is not None:
            watched.mark = number
        self.happened(session_id)

    def happened(self, key: str) -> None:
        self._watchers.notify(key, ())
        if self._hints is not None:
            self._hints.send(f"={key}")

    # What has happened elsewhere

    def _hinted(self, words: Sequence[str]) -> None:
        for word in words:
            kind, key = word[:1], word[1:]
            if key not in self._watched:
                continue
            if kind == "+":
                self._dirty.add(key)
            else:
                self._watchers.notify(key, ())
        if self._dirty:
            self._stirred.set()

    def _look_soon(self) -> None:
        """NotificationListener may have been lost."""
        self._must_look = True
        self._stirred.set()

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SAFETY_SECONDS if self._hints is not None else self._pause):
                    await self._stirred.wait()
            except TimeoutError:
                self._must_look = True
            self._stirred.clear()
            try:
                if self._must_look:
                    self._must_look = False
                    self._pause = min(self._pause * 1.5, _SLOWEST_POLL_SECONDS)
                    await self._look()
                while self._dirty:
                    await self._read_dirty()
            except Exception:
                # Nobody is told anything wrong; the next look finds what this one did not.
                logger.warning("the logs could not be looked at", exc_info=True)

    async def _look(self) -> None:
        """Finds out what has changed of all that is watched, hint or not."""
        workers = [key for key in self._watched if key in self._workers]
        if workers or RUNNABLE in self._watched:
            await self._look_for_work(workers)
        keys = [key for key in self._watched if key != RUNNABLE and key not in self._workers]
        if not keys:
            return
        marks = [self._watched[key].mark for key in keys]
        for key, told, mark, is_turn in await self._ask(_LOOK, keys, marks):
            watched = self._watched.get(key)
            if watched is None or watched.mark != told:
                continue  # Somebody was told something meanwhile, which this does not know of.
            self._pause = _POLL_SECONDS
            if is_turn and mark is not None and told is not None and mark > told:
                self._dirty.add(key)
            else:
                # Not known yet, gone, or shorter than it was: the reader is to look for itself.
                watched.mark = mark
                self._watchers.notify(key, ())

    async def _look_for_work(self, workers: list[str]) -> None:
        ((is_ready, is_commanded),) = await self._ask(_WORK, workers)
        if is_ready or is_commanded:
            self._watchers.notify(RUNNABLE, ())
        if is_commanded:
            for worker in workers:
                self._watchers.notify(worker, ())

    async def _read_dirty(self) -> None:
        """Reads what is new of some turns, in one query, and hands it to all who follow them."""
        dirty, self._dirty = [key for key in self._dirty if key in self._watched], set()
        marks = {key: mark for key in dirty if (mark := self._watched[key].mark) is not None}
        for key in dirty:
            if key not in marks:
                self._watchers.notify(key, ())
        if not marks:
            return
        found: dict[str, list[tuple[int, bytes]]] = {}
        for key, first, _, body in await self._ask(READ, list(marks), list(marks.values())):
            found.setdefault(key, []).append((first, body))
        for key, after in marks.items():
            watched = self._watched.get(key)
            if watched is None or watched.mark != after:
                continue
            rows = found.get(key)
            if rows is None:
                # Nothing new, or sealed already, or deleted.
                self._watchers.notify(key, ())
                continue
            events = events_from(rows, after)
            watched.mark = events[-1].position
            self._watchers.notify(key, events)
            if len(rows) == _MOST_ROWS:
                self._dirty.add(key)

    async def _ask(self, query: str, *values: object) -> list[Row]:
        return await self._connections.run(lambda connection, _: connection.fetch(query, *values))
