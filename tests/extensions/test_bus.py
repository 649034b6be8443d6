"""Listeners are told of everything at least once, in order, and hold up nobody but themselves."""

import asyncio
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.building import QUICK
from tests.serving import PATIENCE, until, within
from turnwire.core.errors import ShuttingDownError, StoreError, StoreUnusableError
from turnwire.extensions.events import EventBus
from turnwire.extensions.journal import Journal


@asynccontextmanager
async def open_bus(folder: Path | None = None) -> AsyncIterator[EventBus]:
    journal = Journal(folder)
    await journal.open()
    bus = EventBus(journal, QUICK)
    try:
        yield bus
    finally:
        await bus.close()
        await journal.close()


class Listener:
    def __init__(self, fails: int = 0) -> None:
        self.heard: list[Any] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, payload: dict[str, Any]) -> None:
        if self.fails > 0:
            self.fails -= 1
            raise OSError("not now")
        await self.gate.wait()
        self.heard.append(payload["text"])


async def emit(bus: EventBus, *texts: str) -> None:
    for text in texts:
        await bus.emit("user_message", {"text": text})


async def test_all_are_told_in_order() -> None:
    one, two, deaf = Listener(), Listener(), Listener()
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", one)
        bus.subscribe("b", "user_message", two)
        bus.subscribe("b", "agent_response", deaf)
        await emit(bus, "1", "2", "3")
        await until(lambda: one.heard == two.heard == ["1", "2", "3"])
        assert deaf.heard == []


async def test_each_gets_a_payload_of_its_own() -> None:
    seen: list[dict[str, Any]] = []

    async def spoil(payload: dict[str, Any]) -> None:
        seen.append(dict(payload))
        payload.clear()

    async with open_bus() as bus:
        bus.subscribe("a", "user_message", spoil)
        bus.subscribe("b", "user_message", spoil)
        await emit(bus, "1")
        await until(lambda: seen == [{"text": "1"}] * 2)


async def test_a_slow_listener_holds_up_nobody() -> None:
    slow, quick = Listener(), Listener()
    slow.gate.clear()
    async with open_bus() as bus:
        bus.subscribe("slow", "user_message", slow)
        bus.subscribe("quick", "user_message", quick)
        await within(emit(bus, *map(str, range(50))))
        await until(lambda: len(quick.heard) == 50)
        assert slow.heard == []
        slow.gate.set()
        await until(lambda: len(slow.heard) == 50)


async def test_a_listener_that_fails_is_told_again() -> None:
    listener = Listener(fails=2)
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: listener.heard == ["1", "2"])


async def test_a_listener_that_always_fails_at_one_event_goes_on_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener(fails=3)
    async with open_bus() as bus:
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: listener.heard == ["2"])
    assert "goes on without an event" in caplog.text


async def test_a_listener_hears_after_a_restart_what_it_missed(tmp_path: Path) -> None:
    held, other = Listener(), Listener()
    held.gate.clear()
    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", held)
        bus.subscribe("b", "user_message", other)
        await emit(bus, "1", "2")
        await until(lambda: len(other.heard) == 2)
    held, other, newcomer = Listener(), Listener(), Listener()
    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", held)
        bus.subscribe("b", "user_message", other)
        bus.subscribe("c", "user_message", newcomer)
        await emit(bus, "3")
        await until(lambda: held.heard == ["1", "2", "3"])
        await until(lambda: other.heard == newcomer.heard == ["3"])


async def test_what_everybody_has_heard_is_not_kept(tmp_path: Path) -> None:
    listener = Listener()
    async with open_bus(tmp_path) as bus:
        await emit(bus, "before anybody listened")
        bus.subscribe("a", "user_message", listener)
        await emit(bus, "1", "2")
        await until(lambda: len(listener.heard) == 2)
        journal = bus._journal

        def kept() -> int:
            return journal._connection.execute("SELECT count(*) FROM told").fetchone()[0]  # type: ignore[union-attr]

        await until(lambda: kept() == 0)


async def test_there_are_two_topics_and_no_more() -> None:
    async with open_bus() as bus:
        with pytest.raises(ValueError, match="user_message and agent_response"):
            bus.subscribe("a", "agent_response_chunk", Listener())  # type: ignore[arg-type]


async def test_what_is_written_in_one_go_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await journal.open()

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO listener VALUES ('a', 'b', 1)")
        connection.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(StoreError, match="no such table: nowhere"):
        await journal.run(half)
    query = "SELECT count(*) FROM listener"
    assert await journal.run(lambda connection: connection.execute(query).fetchone()[0]) == 0
    await journal.close()
    with pytest.raises(ShuttingDownError):
        await journal.run(half)


async def test_a_journal_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "extensions.db").write_text("this is no database" * 100)
    with pytest.raises(StoreUnusableError, match="move the file away"):
        await Journal(tmp_path).open()


CHILD = """
import asyncio, json, os, sys
from pathlib import Path
from turnwire.extensions.events import EventBus
from turnwire.extensions.journal import Journal
from turnwire.extensions.calls import KernelLimits

folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

async def hear(payload):
    with open(folder / "heard", "a") as file:
        file.write(payload["text"] + "\\n")

async def main():
    journal = Journal(folder)
    await journal.open()
    bus = EventBus(journal, KernelLimits())
    bus.subscribe("a", "user_message", hear)
    for number in range(first, first + count):
        await bus.emit("user_message", {"text": str(number)})
        print(number, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
async def test_a_kill_between_telling_and_hearing_loses_nothing(tmp_path: Path) -> None:
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
    heard: list[str] = []

    async def hear(payload: dict[str, Any]) -> None:
        heard.append(payload["text"])

    async with open_bus(tmp_path) as bus:
        bus.subscribe("a", "user_message", hear)
        await emit(bus, "last")
        await until(lambda: heard[-1:] == ["last"])
    told = [*(tmp_path / "heard").read_text().split(), *heard[:-1]]
    assert promised <= set(map(int, told))
    # In order, and an event is heard again only where a kill came in between.
    assert list(map(int, told)) == sorted(map(int, told))
    assert len(told) - len(set(told)) <= 5
