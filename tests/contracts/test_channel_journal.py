"""Contract suite of the records of channels, in SQLite files and in PostgreSQL: deliveries, events, Telegram."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.postgres_server import shared_databases
from tests.serving import within
from turnwire.channels.telegram.records import Answer, MessagePart, Records
from turnwire.core.errors import ShuttingDownError
from turnwire.extensions.calls import KernelLimits
from turnwire.extensions.delivery import Delivery, DeliveryRecords, delivery_key
from turnwire.extensions.journal import EventBus, Journal
from turnwire.extensions.kernel import SharedHome
from turnwire.stores.postgres.leases import PostgresLeases
from turnwire.stores.postgres.shared_database import SharedDatabase

LIMITS = KernelLimits(restart_delay=0.001, closing_patience=1)


class ChannelBackend(Protocol):
    """Where the records of channels are kept; they outlive the journals that are opened on them."""

    def journal(self) -> Journal: ...

    def telegram(self) -> Records: ...

    async def close(self) -> None: ...


class Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def journal(self) -> Journal:
        return Journal(self._folder)

    def telegram(self) -> Records:
        return Records(self._folder / "telegram.db")

    async def close(self) -> None:
        pass


class SharedChannels:
    """Every journal stands for a process."""

    def __init__(self, folder: Path) -> None:
        self._databases = shared_databases()
        self._name = self._databases.take()
        self._opened: list[SharedDatabase] = []

    def home(self, lease: float = 60, password: str = "") -> SharedHome:
        # The server trusts everybody, whatever the password.
        url = self._databases.server.url(self._name).replace("postgres@", f"postgres:{password}@")
        database = SharedDatabase(url, connections=2)
        database.open()
        self._opened.append(database)
        return SharedHome(database, PostgresLeases(database, lease))

    def journal(self) -> Journal:
        return Journal(None, self.home().tables())

    def telegram(self) -> Records:
        return Records(Path("unused"), self.home().tables("telegram"))

    async def close(self) -> None:
        for database in self._opened:
            await asyncio.to_thread(database.close)
        self._databases.give_back(self._name)


@pytest.fixture(
    params=[
        pytest.param(Files, id="sqlite"),
        pytest.param(SharedChannels, id="postgres", marks=pytest.mark.postgres),
    ]
)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChannelBackend]:
    backend: ChannelBackend = request.param(tmp_path)
    yield backend
    await backend.close()


async def add(records: DeliveryRecords, message_id: str, text: str = "Hello") -> tuple[Delivery, bool]:
    key = delivery_key("post", "ann", message_id)
    return await records.add(key, "post", "ann", principal="post:ann", agent_id=None, text=text)


async def test_delivery_is_kept_from_message_to_answer_over_a_restart(backend: ChannelBackend) -> None:
    journal = backend.journal()
    await journal.open()
    records = DeliveryRecords(journal, 1800)
    delivery, is_new = await add(records, "1")
    assert (is_new, delivery.text, delivery.session, delivery.turn_id) == (True, "Hello", "post:ann:1", None)
    again, is_new = await add(records, "1", "Something else")
    assert (again, is_new) == (delivery, False)
    delivery = Delivery(**{**_fields(delivery), "turn_id": "t1"})
    await records.set_turn(delivery)
    await records.set_answer(delivery, "Hi", "s1", "demo")
    await add(records, "2", "More")
    await journal.close()

    journal = backend.journal()
    await journal.open()
    records = DeliveryRecords(journal, 1800)
    first, second = await records.undelivered()
    assert (first.turn_id, first.answer, second.text) == ("t1", "Hi", "More")
    await records.set_delivered(first)
    assert [left.message_id for left in await records.undelivered()] == ["2"]
    (known, is_new) = await add(records, "1")
    assert (is_new, known.text, known.delivered_at is not None) == (False, "", True)
    await records.new_conversation("post", "ann")
    assert await records.conversation("post", "ann") == "post:ann:2"
    await journal.close()


def _fields(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in Delivery.__struct_fields__}


async def test_subscriber_gets_events_in_order_over_a_restart(backend: ChannelBackend) -> None:
    seen: list[str] = []
    arrived = asyncio.Event()

    async def receive(payload: dict[str, Any]) -> None:
        seen.append(payload["text"])
        arrived.set()

    async def opened() -> tuple[Journal, EventBus]:
        journal = backend.journal()
        await journal.open()
        bus = EventBus(journal, LIMITS)
        await bus.prune()
        return journal, bus

    journal, bus = await opened()
    await bus.emit("user_message", {"text": "nobody has subscribed yet"})
    bus.subscribe("mine", "user_message", receive)
    bus.start("mine")
    await bus.emit("user_message", {"text": "one"})
    await within(arrived.wait())
    await bus.stop("mine")
    await bus.close()
    await journal.close()

    journal, bus = await opened()
    await bus.emit("user_message", {"text": "two"})
    await bus.emit("agent_response", {"text": "another topic"})
    await bus.emit("user_message", {"text": "three"})
    # An extension may subscribe while it starts.
    bus.start("mine")
    bus.subscribe("mine", "user_message", receive)
    while "three" not in seen:
        arrived.clear()
        await within(arrived.wait())
    # At least once: the first process may have left before it had noted what it published.
    assert list(dict.fromkeys(seen)) == ["one", "two", "three"]
    await bus.close()
    await journal.close()


async def test_subscription_that_stops_while_it_is_inserted_can_be_started_again(backend: ChannelBackend) -> None:
    journal, arrived = backend.journal(), asyncio.Event()
    await journal.open()
    bus = EventBus(journal, LIMITS)

    async def receive(payload: dict[str, Any]) -> None:
        arrived.set()

    bus.subscribe("mine", "user_message", receive)
    bus.start("mine")
    await asyncio.sleep(0)  # It waits for its row now.
    await bus.stop("mine")
    bus.start("mine")
    await bus.emit("user_message", {"text": "one"})
    await within(arrived.wait())
    await bus.close()
    await journal.close()


async def test_telegram_records_outlive_the_process(backend: ChannelBackend) -> None:
    records = backend.telegram()
    await records.open()
    await records.set_note("bot", "a")
    await records.set_note("bot", "b")
    await records.set_handled(11)
    await records.set_handled(11)
    live = await records.begin(Answer("7:1", "7", "live", reply_to=5))
    assert await records.begin(Answer("7:1", "7", "live", "other")) == live
    await records.set_part("7:1", 0, MessagePart(101, None, "digest"))
    await records.set_part("7:1", 1, MessagePart(None, 101, None))
    await records.set_part("7:1", 1, None)
    # A transaction whose connection was lost is repeated.
    for _ in range(2):
        assert await records.finish(Answer("7:1", "7", "final", "Text", stopped=True))
    assert not await records.finish(Answer("7:1", "7", "final", "Other text"))
    await records.set_flood(7, 100)
    await records.set_flood(7, 200)
    await records.pair(7, "Ada")
    await records.pair(7, "Ada L.")
    await records.set_ask("7:2", b"{}")
    await records.close()

    records = backend.telegram()
    await records.open()
    assert (await records.note("bot"), await records.note("none")) == ("b", None)
    assert (await records.is_handled(11), await records.is_handled(12)) == (True, False)
    assert await records.inbox() == []
    await records.drop_inbox()
    (answer,) = await records.undelivered()
    assert answer == Answer("7:1", "7", "final", "Text", stopped=True, reply_to=5)
    assert await records.parts("7:1") == {0: MessagePart(101, None, "digest")}
    assert await records.message_ids(7, 100) == {101}
    assert await records.message_ids(7, 101) == await records.message_ids(8, 0) == set()
    assert await records.newest_messages() == [("7", 101)]
    ((chat_id, seconds),) = await records.floods()
    assert (chat_id, 100 < seconds <= 200) == (7, True)
    assert await records.paired() == [7]
    assert await records.ask("7:2") == b"{}"
    await records.set_ask("7:1", b"[]")
    assert await records.asks("7", "7:") == {"7:1": b"[]"}
    assert await records.asks("7", "8:") == await records.asks("8", "7:") == {}
    (final,) = await records.undelivered()
    await records.settle(final, "delivered")
    assert not await records.finish(final)
    assert await records.undelivered() == []
    closed = await records.close_ask("7:1", "Decided.")
    assert closed is not None
    assert (closed.state, closed.text, await records.ask("7:1")) == ("final", "Decided.", None)
    await records.close()


# Leases, in PostgreSQL only


@pytest.fixture
async def channels(tmp_path: Path) -> AsyncIterator[SharedChannels]:
    channels = SharedChannels(tmp_path)
    yield channels
    await channels.close()


@pytest.mark.postgres
async def test_lease_has_one_holder_until_it_lapses_or_is_released(channels: SharedChannels) -> None:
    one, other = channels.home(), channels.home(lease=0)
    assert await one.leases.claim(["a", "b"]) == {"a", "b"}
    assert await other.leases.claim(["b", "c"]) == {"c"}
    # Renewing keeps the epoch.
    assert await one.leases.claim(["a", "b", "c"]) == {"a", "b", "c"}
    assert one.leases.epochs == {"a": 1, "b": 1, "c": 2}
    await one.leases.release(["a"])
    assert await other.leases.claim(["a", "b"]) == {"a"}
    assert other.leases.epochs["a"] == 2


@pytest.mark.postgres
async def test_transaction_of_a_process_that_lost_its_lease_is_refused(channels: SharedChannels) -> None:
    one, other = channels.home(lease=0), channels.home()
    await one.leases.claim(["post"])
    paused = DeliveryRecords(Journal(None, one.tables()), 1800)
    delivery, _ = await add(paused, "1")
    assert await other.leases.claim(["post"]) == {"post"}
    for write in (add(paused, "2"), paused.set_delivered(delivery), paused.set_answer(delivery, "Late", "s", None)):
        with pytest.raises(ShuttingDownError):
            await write
    with pytest.raises(ShuttingDownError):
        await Records(Path("unused"), one.tables("post")).check()
    await Records(Path("unused"), other.tables("post")).check()
    heir = DeliveryRecords(Journal(None, other.tables()), 1800)
    (left,) = await heir.undelivered()
    assert (left.message_id, left.answer) == ("1", None)
    await heir.set_answer(left, "In time", "s", None)
    # What is not for an extension that it ran is still its own.
    assert await paused.conversation("mine", "self") == "mine:self:1"


@pytest.mark.postgres
async def test_shared_secret_needs_the_database_and_its_password(channels: SharedChannels) -> None:
    database = channels.home().database
    secret = database.secret("login")
    assert secret == channels.home().database.secret("login") != database.secret("other")
    (stored,) = database.transaction(lambda connection: connection.execute("SELECT value FROM secret").fetchone())
    assert secret != stored
    assert channels.home(password="changed").database.secret("login") != secret
