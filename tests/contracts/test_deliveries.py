"""Contract suite of the tables of plugins, over every store: deliveries, events, and the records of Telegram."""

import asyncio
from typing import Any

import pytest

from tests.contracts.stores import PostgresBackend, StoreBackend
from tests.serving import PATIENCE, within
from turnwire.channels.telegram.records import Answer, MessagePart, Records
from turnwire.core.contracts.stores import SqlConnection, Store
from turnwire.core.errors import ShuttingDownError, StoreError
from turnwire.extensions.calls import ExtensionLimits
from turnwire.extensions.delivery import Delivery, DeliveryRecords, delivery_key
from turnwire.extensions.events import EventBus
from turnwire.extensions.tables import TABLES, ExtensionTables

LIMITS = ExtensionLimits(restart_delay=0.001, closing_patience=1)


async def opened(backend: StoreBackend) -> ExtensionTables:
    """Return the tables as a process has them that starts after the one before has ended."""
    if not isinstance(backend, PostgresBackend):
        await backend.close()
    store = await backend.open()
    await store.create_tables(TABLES)
    return ExtensionTables(store)


async def test_transaction_commits_all_or_nothing_and_fails_alone(store: Store) -> None:
    create = "CREATE TABLE IF NOT EXISTS turnwire.notes_pages (id BIGINT PRIMARY KEY, text TEXT)"
    for _ in range(2):
        await store.create_tables([create])
    insert = "INSERT INTO turnwire.notes_pages VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id"

    async def half(connection: SqlConnection) -> None:
        await connection.execute(insert, 1, "half")
        await connection.execute("INSERT INTO turnwire.notes_nothing VALUES (1)")

    async def whole(connection: SqlConnection) -> list[Any]:
        assert await connection.fetchrow("SELECT id FROM turnwire.notes_pages WHERE id = $1", 2) is None
        return [await connection.fetchval(insert, 2, text) for text in ("whole", "again")]

    failed, written = await asyncio.gather(store.transaction(half), store.transaction(whole), return_exceptions=True)
    assert isinstance(failed, StoreError)
    assert written == [2, None]
    rows = await store.transaction(lambda connection: connection.fetch("SELECT id, text FROM turnwire.notes_pages"))
    assert [tuple(row) for row in rows] == [(2, "whole")]
    await store.transaction(lambda connection: connection.execute("DROP TABLE turnwire.notes_pages"))


async def add(records: DeliveryRecords, message_id: str, text: str = "Hello") -> tuple[Delivery, bool]:
    key = delivery_key("post", "ann", message_id)
    message = Delivery(key, "post", "ann", "post:ann", text=text)
    return await records.add(message)


async def test_delivery_is_kept_from_message_to_answer_over_a_restart(backend: StoreBackend) -> None:
    records = DeliveryRecords(await opened(backend), 1800)
    delivery, is_new = await add(records, "1")
    assert (is_new, delivery.text, delivery.session, delivery.turn_id) == (True, "Hello", "post:ann:1", None)
    again, is_new = await add(records, "1", "Something else")
    assert (again, is_new) == (delivery, False)
    delivery = Delivery(**{**_fields(delivery), "turn_id": "t1"})
    await records.set_turn(delivery)
    await records.set_answer(delivery, "Hi", "s1", "demo")
    await add(records, "2", "More")

    records = DeliveryRecords(await opened(backend), 1800)
    first, second = await records.undelivered()
    assert (first.turn_id, first.answer, second.text) == ("t1", "Hi", "More")
    await records.set_delivered(first)
    assert [left.message_id for left in await records.undelivered()] == ["2"]
    (known, is_new) = await add(records, "1")
    assert (is_new, known.text, known.delivered_at is not None) == (False, "", True)
    await records.new_conversation("post", "ann")
    assert await records.conversation("post", "ann") == "post:ann:2"


def _fields(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in Delivery.__struct_fields__}


async def test_subscriber_gets_events_in_order_over_a_restart(backend: StoreBackend) -> None:
    seen: list[str] = []
    arrived = asyncio.Event()

    async def receive(payload: dict[str, Any]) -> None:
        seen.append(payload["text"])
        arrived.set()

    bus = EventBus(await opened(backend), LIMITS)
    await bus.prune()
    await bus.emit("user_message", {"text": "nobody has subscribed yet"})
    bus.subscribe("mine", "user_message", receive)
    bus.start("mine")
    await bus.emit("user_message", {"text": "one"})
    await within(arrived.wait())
    await bus.stop("mine")
    await bus.close()

    bus = EventBus(await opened(backend), LIMITS)
    await bus.prune()
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


async def test_subscription_that_stops_while_it_is_inserted_can_be_started_again(backend: StoreBackend) -> None:
    arrived = asyncio.Event()
    bus = EventBus(await opened(backend), LIMITS)

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


async def test_telegram_records_outlive_the_process(backend: StoreBackend) -> None:
    records = Records(await opened(backend))
    await records.open()
    await records.set_note("paired", "[7]")
    await records.set_note("paired", "[7, 8]")
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
    for _ in range(2):
        assert await records.finish(Answer("7:2", "7", "final", "May it?", buttons="[]", ask="{}"))

    records = Records(await opened(backend))
    await records.open()
    assert (await records.note("paired"), await records.note("none")) == ("[7, 8]", None)
    assert (await records.is_handled(11), await records.is_handled(12)) == (True, False)
    answer, ask = await records.undelivered()
    assert answer == Answer("7:1", "7", "final", "Text", stopped=True, reply_to=5)
    assert await records.parts("7:1") == {0: MessagePart(101, None, "digest")}
    assert await records.message_ids(7, 100) == {101}
    assert await records.message_ids(7, 101) == await records.message_ids(8, 0) == set()
    assert await records.newest_messages() == [("7", 101)]
    ((chat_id, seconds),) = await records.floods()
    assert (chat_id, 100 < seconds <= 200) == (7, True)
    assert await records.open_asks("7", "7:") == [ask]
    assert await records.open_asks("7", "8:") == await records.open_asks("8", "7:") == []
    await records.set_state(answer, "delivered")
    assert not await records.finish(answer)
    assert await records.undelivered() == [ask]
    # A transaction whose connection was lost is repeated.
    for _ in range(2):
        closed = await records.close_ask("7:2", "Decided.", 12)
        assert closed == Answer("7:2", "7", "final", "May it?\n\nDecided.")
    assert await records.is_handled(12)
    assert not await records.finish(ask)


# Leases, in PostgreSQL only


@pytest.fixture
async def database(tmp_path: Any) -> Any:
    backend = PostgresBackend(tmp_path)
    yield backend
    await backend.close()


@pytest.mark.postgres
async def test_event_numbers_are_committed_in_order(database: PostgresBackend) -> None:
    """A cursor that has passed a number never goes back, so a lower one must not be committed later."""
    one, other = [EventBus(await opened(database), LIMITS) for _ in range(2)]
    seen: list[str] = []

    async def receive(payload: dict[str, Any]) -> None:
        seen.append(payload["text"])

    one.subscribe("mine", "user_message", receive)
    one.start("mine")
    await one.emit("user_message", {"text": "after the subscription"})
    texts = [str(number) for number in range(40)]
    await asyncio.gather(*(bus.emit("user_message", {"text": text}) for text in texts for bus in (one, other)))
    async with asyncio.timeout(PATIENCE):
        while len(seen) < 81:
            one.wake()
            await asyncio.sleep(0.01)
    assert sorted(seen[1:]) == sorted(texts * 2)
    await one.close()


@pytest.mark.postgres
async def test_lease_has_one_holder_until_it_lapses_or_is_released(database: PostgresBackend) -> None:
    one, other = (await database.open()).leases(60), (await database.open()).leases(0)
    assert one is not None
    assert other is not None
    assert await one.claim(["a", "b"]) == {"a", "b"}
    assert await other.claim(["b", "c"]) == {"c"}
    # Renewing keeps the epoch.
    assert await one.claim(["a", "b", "c"]) == {"a", "b", "c"}
    assert one.epochs == {"a": 1, "b": 1, "c": 2}
    await one.release(["a"])
    assert await other.claim(["a", "b"]) == {"a"}
    assert other.epochs["a"] == 2


@pytest.mark.postgres
async def test_transaction_of_a_process_that_lost_its_lease_is_refused(database: PostgresBackend) -> None:
    stores = [await database.open() for _ in range(2)]
    await stores[0].create_tables(TABLES)
    one, other = stores[0].leases(0), stores[1].leases(60)
    assert one is not None
    assert other is not None
    await one.claim(["post"])
    paused = DeliveryRecords(ExtensionTables(stores[0], one), 1800)
    delivery, _ = await add(paused, "1")
    assert await other.claim(["post"]) == {"post"}
    for write in (add(paused, "2"), paused.set_delivered(delivery), paused.set_answer(delivery, "Late", "s", None)):
        with pytest.raises(ShuttingDownError):
            await write
    with pytest.raises(ShuttingDownError):
        await Records(ExtensionTables(stores[0], one, "post")).check()
    await Records(ExtensionTables(stores[1], other, "post")).check()
    heir = DeliveryRecords(ExtensionTables(stores[1], other), 1800)
    (left,) = await heir.undelivered()
    assert (left.message_id, left.answer) == ("1", None)
    await heir.set_answer(left, "In time", "s", None)
    # What is not for an extension that it ran is still its own.
    assert await paused.conversation("mine", "self") == "mine:self:1"
