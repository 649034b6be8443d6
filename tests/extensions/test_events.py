"""The event bus: every event at least once and in order, and no subscriber delays another."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.harness import LIMITS
from tests.serving import PATIENCE, until, within
from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import ShuttingDownError, StoreError
from turnwire.extensions.calls import ExtensionLimits
from turnwire.extensions.events import EventBus
from turnwire.extensions.tables import TABLES, ExtensionTables
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite.store import SqliteStore


@asynccontextmanager
async def open_bus(folder: Path | None = None, limits: ExtensionLimits = LIMITS) -> AsyncIterator[EventBus]:
    store = MemoryStore() if folder is None else SqliteStore(folder)
    await store.open()
    await store.create_tables(TABLES)
    tables = ExtensionTables(store)
    bus = EventBus(tables, limits)
    try:
        yield bus
    finally:
        await bus.close()
        await tables.close()
        await store.close()


class RecordingSubscriber:
    def __init__(self, fails: int = 0) -> None:
        self.texts: list[Any] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, payload: dict[str, Any]) -> None:
        if self.fails > 0:
            self.fails -= 1
            raise OSError("not now")
        await self.gate.wait()
        self.texts.append(payload["text"])


async def emit(bus: EventBus, *texts: str) -> None:
    for text in texts:
        await bus.emit("user_message", {"text": text})


async def test_events_reach_all_subscribers_in_order() -> None:
    first, second, other = RecordingSubscriber(), RecordingSubscriber(), RecordingSubscriber()
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", first)
        bus.subscribe("b", "user_message", second)
        bus.subscribe("b", "agent_response", other)
        await emit(bus, "1", "2", "3")
        await until(lambda: first.texts == second.texts == ["1", "2", "3"])
        assert other.texts == []


async def test_each_subscriber_gets_its_own_copy_of_the_payload() -> None:
    seen: list[dict[str, Any]] = []

    async def spoil(payload: dict[str, Any]) -> None:
        seen.append(dict(payload))
        payload.clear()

    async with open_bus() as bus:
        bus.subscribe("a", "user_message", spoil)
        bus.subscribe("b", "user_message", spoil)
        await emit(bus, "1")
        await until(lambda: seen == [{"text": "1"}] * 2)


async def test_slow_subscriber_does_not_delay_others() -> None:
    slow, quick = RecordingSubscriber(), RecordingSubscriber()
    slow.gate.clear()
    async with open_bus() as bus:
        bus.subscribe("slow", "user_message", slow)
        bus.subscribe("quick", "user_message", quick)
        await within(emit(bus, *map(str, range(50))))
        await until(lambda: len(quick.texts) == 50)
        assert slow.texts == []
        slow.gate.set()
        await until(lambda: len(slow.texts) == 50)


async def test_failing_subscriber_is_retried() -> None:
    listener = RecordingSubscriber(fails=2)
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: listener.texts == ["1", "2"])


async def test_subscriber_that_keeps_failing_skips_the_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = RecordingSubscriber(fails=3)
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: listener.texts == ["2"])
    assert "skips an event" in caplog.text


async def test_subscriber_gets_missed_events_after_a_restart(tmp_path: Path) -> None:
    held, other = RecordingSubscriber(), RecordingSubscriber()
    held.gate.clear()
    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", held)
        bus.subscribe("b", "user_message", other)
        await emit(bus, "1", "2")
        await until(lambda: len(other.texts) == 2)
    held, other, newcomer = RecordingSubscriber(), RecordingSubscriber(), RecordingSubscriber()
    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", held)
        bus.subscribe("b", "user_message", other)
        bus.subscribe("c", "user_message", newcomer)
        await emit(bus, "3")
        await until(lambda: held.texts == ["1", "2", "3"])
        await until(lambda: other.texts == newcomer.texts == ["3"])


async def test_events_that_all_subscribers_have_got_are_deleted(tmp_path: Path) -> None:
    listener = RecordingSubscriber()
    async with open_bus(tmp_path) as bus:
        await emit(bus, "before anybody listened")
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: len(listener.texts) == 2)
        count = "SELECT count(*) FROM turnwire.extension_event"
        async with asyncio.timeout(PATIENCE):
            while await bus.tables.transaction(lambda connection: connection.fetchval(count)):
                pass


async def test_subscribe_to_an_unknown_topic_is_refused() -> None:
    async with open_bus() as bus:
        with pytest.raises(ValueError, match="user_message and agent_response"):
            bus.subscribe("a", "agent_response_chunk", RecordingSubscriber())  # type: ignore[arg-type]


async def test_event_after_all_were_read_and_deleted_is_not_lost(tmp_path: Path) -> None:
    listener, count = RecordingSubscriber(), "SELECT count(*) FROM turnwire.extension_event"
    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", listener)
        for text in ("1", "2", "3"):
            await emit(bus, text)
            await until(lambda text=text: listener.texts[-1:] == [text])
            async with asyncio.timeout(PATIENCE):
                while await bus.tables.transaction(lambda connection: connection.fetchval(count)):
                    pass


async def test_transaction_that_fails_is_rolled_back_alone(tmp_path: Path) -> None:
    insert = "INSERT INTO turnwire.extension_subscription VALUES ($1, 'b', 1)"

    async def half(connection: SqlConnection) -> None:
        await connection.execute(insert, "half")
        await connection.execute("INSERT INTO turnwire.nowhere VALUES (1)")

    async with open_bus(tmp_path) as bus:
        tables = bus.tables
        failing = tables.transaction(half)
        await tables.transaction(lambda connection: connection.execute(insert, "whole"))
        with pytest.raises(StoreError, match="no such table: nowhere"):
            await failing
        query = "SELECT name FROM turnwire.extension_subscription"
        assert await tables.transaction(lambda connection: connection.fetch(query)) == [("whole",)]
    with pytest.raises(ShuttingDownError):
        await tables.transaction(half)


CHILD = """
import asyncio, json, os, sys
from pathlib import Path
from turnwire.extensions.calls import ExtensionLimits
from turnwire.extensions.events import EventBus
from turnwire.extensions.tables import TABLES, ExtensionTables
from turnwire.stores.sqlite.store import SqliteStore

folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

async def receive(payload):
    with open(folder / "received", "a") as file:
        file.write(payload["text"] + "\\n")

async def main():
    store = SqliteStore(folder)
    await store.open()
    await store.create_tables(TABLES)
    bus = EventBus(ExtensionTables(store), ExtensionLimits())
    bus.subscribe("a", "user_message", receive)
    for number in range(first, first + count):
        await bus.emit("user_message", {"text": str(number)})
        print(number, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
async def test_kill_between_emit_and_delivery_loses_no_event(tmp_path: Path) -> None:
    chance = random.Random(5)
    promised: set[int] = set()
    for number in range(5):
        arguments = ("-c", CHILD, str(tmp_path), str(number * 1000), "1000")
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        async with asyncio.timeout(PATIENCE * 3):
            for _ in range(chance.randrange(1, 60)):
                promised.add(int(await child.stdout.readline()))
            child.send_signal(signal.SIGKILL)
            promised.update(map(int, (await child.communicate())[0].split()))
    received: list[str] = []

    async def receive(payload: dict[str, Any]) -> None:
        received.append(payload["text"])

    async with open_bus(tmp_path, ExtensionLimits()) as bus:
        bus.subscribe("a", "user_message", receive)
        await emit(bus, "last")
        await until(lambda: received[-1:] == ["last"])
    numbers = [*(tmp_path / "received").read_text().split(), *received[:-1]]
    assert promised <= set(map(int, numbers))
    # In order, and an event is received again only where a kill came in between.
    assert list(map(int, numbers)) == sorted(map(int, numbers))
    assert len(numbers) - len(set(numbers)) <= 5
