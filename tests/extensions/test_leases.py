"""Leases on extensions: what a process does with a channel or a service that it gains, loses or cannot run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.harness import BASE, LIMITS, PLAIN, GrantedLeases, running, write_extension
from tests.serving import saying, until
from turnwire.core.errors import StoreError
from turnwire.extensions.delivery import Delivery, DeliveryRecords
from turnwire.extensions.tables import TABLES, ExtensionTables
from turnwire.stores.memory import MemoryStore


async def test_message_to_a_channel_that_is_being_left_is_not_accepted(tmp_path: Path) -> None:
    accepting = """
    async def stop(self):
        try:
            await self.context.accept("too late", "ann", message_id="1")
        except Exception as error:
            self.calls.append(("refused", type(error).__name__))
"""
    write_extension(tmp_path / "x", "chat", PLAIN + accepting)
    leases = GrantedLeases("chat")
    async with running(tmp_path / "x", saying("hello"), leases=leases) as kernel:
        assert await kernel.say("chat") == "hello"
        leases.granted.clear()
        await until(lambda: bool(kernel.calls("chat", "refused")))
        # Not an error of the message: whoever sent it tries again, at the process that runs the channel then.
        assert kernel.calls("chat", "refused") == [("refused", "ShuttingDownError")]


HEALTH = """
    async def start(self):
        self.calls.append(("start",))
    async def stop(self):
        self.calls.append(("stop",))
    async def health_check(self):
        self.calls.append(("check",))
        await self.checking.wait()
        return Health(self.health)
    health = "running"
    checking = asyncio.Event()
    checking.set()
"""


@pytest.mark.parametrize("health", ["running", "degraded", "failed"])
async def test_health_check_during_a_move_does_not_keep_the_extension_from_coming_back(
    tmp_path: Path, health: str
) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN + HEALTH)
    leases = GrantedLeases("chat")
    limits = replace(LIMITS, extension_timeout=1000, health_interval=1)
    async with running(tmp_path / "x", saying("hello"), leases=leases, limits=limits) as kernel:
        chat = kernel.extension("chat")
        chat.checking.clear()
        await until(lambda: len(kernel.calls("chat", "check")) == 2)
        leases.granted.clear()
        await until(lambda: bool(kernel.calls("chat", "stop")))
        chat.health = health
        chat.checking.set()
        await until(lambda: kernel["chat"].state == "loaded")
        await asyncio.sleep(1)
        assert kernel["chat"].state == "loaded"
        leases.granted.add("chat")
        chat.health = "running"
        await until(lambda: len(kernel.calls("chat", "start")) == 2)
        assert await kernel.say("chat") == "hello"


async def test_extension_that_is_not_well_comes_back_after_a_move(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN + HEALTH + '    health = "failed"\n')
    leases = GrantedLeases("chat")
    async with running(tmp_path / "x", saying("hello"), leases=leases) as kernel:
        assert kernel["chat"].state == "failed"
        leases.granted.clear()
        await until(lambda: kernel["chat"].state == "loaded")
        leases.granted.add("chat")
        await until(lambda: len(kernel.calls("chat", "start")) == 2)


async def test_service_that_keeps_failing_is_left_to_another_process(tmp_path: Path) -> None:
    failing = """
    async def stop(self):
        self.calls.append(("stop",))
    async def run_background(self):
        raise RuntimeError("a bug")
"""
    write_extension(tmp_path / "x", "chat", PLAIN + failing)
    leases = GrantedLeases("chat")
    async with running(tmp_path / "x", saying("hello"), leases=leases) as kernel:
        await until(lambda: leases.released == ["chat"])
        # It was stopped before another process may start it.
        assert kernel.calls("chat") == [("stop",)]
        assert (kernel["chat"].state, "8th time" in kernel["chat"].message) == ("failed", True)
        assert "chat" not in kernel.router.channels


async def test_undelivered_answers_that_cannot_be_loaded_are_loaded_later(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    store, leases = MemoryStore(), GrantedLeases()
    await store.create_tables(TABLES)
    left = DeliveryRecords(ExtensionTables(store), 1800)
    await left.add(Delivery("chat:ann:1", "chat", "ann", "chat:ann", text="Hello?"))
    async with running(tmp_path / "x", saying("at last"), store=store, leases=leases) as kernel:
        records = kernel.router.records
        works, failures = records.undelivered, [StoreError("one moment"), StoreError("another moment")]

        async def fail_twice() -> Any:
            if failures:
                raise failures.pop()
            return await works()

        records.undelivered = fail_twice  # type: ignore[method-assign]
        leases.granted.add("chat")
        await until(lambda: kernel.calls("chat") == [("send", "ann", "at last")])
        assert failures == []


async def test_extension_that_subscribes_while_it_starts_gets_every_event_once(tmp_path: Path) -> None:
    code = """
class Main(Base):
    async def start(self):
        self.calls.append(("start",))
        self.context.subscribe("user_message", self.receive)
    async def receive(self, payload):
        self.calls.append(("message", payload["text"]))
"""
    write_extension(tmp_path / "x", "chat", PLAIN)
    write_extension(tmp_path / "x", "listener", BASE + code)
    leases = GrantedLeases("chat", "listener")
    async with running(tmp_path / "x", saying("hello"), leases=leases) as kernel:
        await kernel.say("chat", "one")
        await until(lambda: kernel.calls("listener", "message") == [("message", "one")])
        leases.granted.remove("listener")
        await until(lambda: kernel["listener"].state == "loaded")
        leases.granted.add("listener")
        await until(lambda: len(kernel.calls("listener", "start")) == 2)
        await kernel.say("chat", "two")
        await kernel.say("chat", "three")
        await until(lambda: ("message", "three") in kernel.calls("listener"))
        assert [text for _, text in kernel.calls("listener", "message")] == ["one", "two", "three"]
