"""Hints between processes, by LISTEN and NOTIFY: which turns, sessions and workers have something new.

A hint is sent after the commit it is about, in a statement of its own, so that no commit waits for it; it may be
lost. One connection listens and sends for the whole process.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from turnwire.stores.postgres.connections import Connection, Connections, pause
from turnwire.stores.postgres.failures import is_passing, reason

logger = logging.getLogger("turnwire.stores.postgres")

CHANNEL = "turnwire"
_MOST_BYTES = 7_900
_PING_SECONDS = 3.0


class Hints:
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
            connection: Connection | None = None
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

    async def _send_all(self, connection: Connection) -> None:
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
