"""Resume points: how often a log is read to find one."""

import asyncio
from typing import Any

import pytest

from tests.contracts.turns import BOUND, append, claimed, done
from turnwire.core.contracts.stores import Accepted
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    RestartEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
)
from turnwire.server.streams.resume import BYTES, START, find_point, find_start
from turnwire.stores.memory import MemoryStore
from turnwire.wires.ag_ui.resume import RunName, find_in_run
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.resume import RunId, find_chunk
from turnwire.wires.openai.responses.encoder import OpenAIResponses
from turnwire.wires.openai.responses.resume import settled_response
from turnwire.wires.three_phase_text.routes import THREE_PHASE_TEXT


class CountingStore(MemoryStore):
    """A store that counts how often a log is read from its start."""

    def __init__(self) -> None:
        super().__init__()
        self.walks = 0
        read = self.read

        async def counting(turn_id: str, after: int, limit: int, epoch: int | None = None) -> Any:
            self.walks += after == 0
            return await read(turn_id, after, limit, epoch)

        self.read = counting


async def test_log_of_a_created_turn_is_not_read() -> None:
    store = CountingStore()
    record = await claimed(store)
    assert await find_start(store, Accepted(record, created=True)) is START
    assert store.walks == 0
    assert await find_start(store, Accepted(record, created=False)) == START
    assert store.walks == 1


async def test_log_is_walked_once_and_once_more_for_each_restart() -> None:
    for restarts in range(3):
        store = CountingStore()
        record = await claimed(store)
        events = [TokenEvent("a"), *[RestartEvent(3, "worker_lost")] * restarts, TokenEvent("b")]
        await append(store, record.id, 1, 3, *events, done(record, "cancelled"), end=True)
        point = await find_point(store, record.id, THREE_PHASE_TEXT, BYTES, 0)
        assert (store.walks, len(point.void)) == (1 + restarts, restarts)


APPROVED: list[Event] = [
    TokenEvent("May I? "),
    ToolCallEvent("c1", "pay", {}),
    ApprovalRequestEvent("c1", "pay", {}),
    ApprovalResponseEvent("c1", True, by="ann"),
    TokenEvent("Paid, "),
    TokenEvent("thanks."),
]


@pytest.mark.parametrize("index", [0, 2, -2])
@pytest.mark.parametrize("first", [0, 6])
async def test_log_is_walked_once_to_find_a_chunk(index: int, first: int) -> None:
    store = CountingStore()
    record = await claimed(store)
    await append(store, record.id, 1, 3, *APPROVED, done(record, "completed"), end=True)
    point, last = await find_chunk(store, RunId(record.id, first), AiSdk(), index)
    assert (store.walks, point.position >= first, last > 4) == (1, True, True)


@pytest.mark.parametrize("number", [1, 2])
async def test_log_is_walked_once_to_find_a_run(number: int) -> None:
    store = CountingStore()
    record = await claimed(store)
    await append(store, record.id, 1, 3, *APPROVED, done(record, "completed"), end=True)
    run = RunName(record, number)
    point = await find_in_run(store, run, run.wire("th", 1), 1)
    assert (store.walks, b"RUN_STARTED" in point.rest) == (1, number == 2)


async def test_response_of_a_waiting_turn_is_settled_though_a_call_follows_the_request() -> None:
    store = CountingStore()
    record = await claimed(store)
    calls = ApprovalRequestEvent("c1", "pay", {}), ToolCallEvent("c2", "look", {})
    await append(store, record.id, 1, 3, StatusEvent("asking"), ToolCallEvent("c1", "pay", {}), *calls)
    async with asyncio.timeout(BOUND):
        response = await settled_response(store, record.id, OpenAIResponses(), created=False)
    assert response["status"] == "completed"
