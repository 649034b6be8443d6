"""Resuming by frame number: a client that may have frames of a void attempt must not resume after them."""

import pytest

from tests.contracts.turns import append, claimed, done, whole_log
from tests.contracts.wires import WIRES
from turnwire.core.contracts.wires import Wire
from turnwire.core.log.events import ApprovalRequestEvent, ApprovalResponseEvent, Event, RestartEvent, TokenEvent
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import FRAMES, find_point
from turnwire.stores.memory import MemoryStore
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ag_ui.resume import RunName, find_in_run
from turnwire.wires.openai.responses.encoder import OpenAIResponses

LOST = "worker_lost"
APPROVAL = [ApprovalRequestEvent("c1", "pay", {}), ApprovalResponseEvent("c1", True)]


async def stored(*events: Event) -> tuple[MemoryStore, str]:
    store = MemoryStore()
    record = await claimed(store)
    await append(store, record.id, 1, 3, *events, done(record, "cancelled"), end=True)
    return store, record.id


async def last_valid_frame(store: MemoryStore, turn_id: str, wire: Wire, after: int) -> int:
    """Resume after a void frame, and return the frame that the refusal names instead."""
    with pytest.raises(HttpError) as refused:
        await find_point(store, turn_id, wire, FRAMES, after)
    assert refused.value.status == 416
    return refused.value.more["size"]


@pytest.mark.parametrize("name", ["ag_ui", "openai_responses"])
async def test_resume_after_void_frames_is_refused_with_the_last_valid_frame(name: str) -> None:
    events = TokenEvent("Good "), TokenEvent("n"), TokenEvent("ight")
    store, turn_id = await stored(*events, RestartEvent(3, LOST), TokenEvent("day"))
    wire, log = WIRES[name], await whole_log(store, turn_id)
    valid = b"".join(map(wire.encoder().frame, log[:3])).count(b"\n\n")
    for count in (valid + 1, valid + 2, valid + 3):
        assert await last_valid_frame(store, turn_id, wire, count) == valid
    point = await find_point(store, turn_id, wire, FRAMES, valid)
    assert b"day" in point.rest
    assert b"Good" not in point.rest


async def test_resume_after_two_restarts_is_refused_with_the_last_valid_frame() -> None:
    events = TokenEvent("a"), TokenEvent("b"), RestartEvent(4, LOST), TokenEvent("c"), RestartEvent(3, LOST)
    store, turn_id = await stored(*events, TokenEvent("d"))
    valid = b"".join(map(AgUi().encoder().frame, (await whole_log(store, turn_id))[:3])).count(b"\n\n")
    assert b"d" in (await find_point(store, turn_id, AgUi(), FRAMES, valid)).rest
    assert await last_valid_frame(store, turn_id, AgUi(), valid + 1) == valid


async def test_restart_before_the_segment_refuses_no_resume() -> None:
    """The second response has no frames of the first."""
    store, turn_id = await stored(TokenEvent("a"), RestartEvent(2, LOST), *APPROVAL, TokenEvent("b"))
    assert (await find_point(store, turn_id, OpenAIResponses(segment=2), FRAMES, 3)).position > 4
    assert await last_valid_frame(store, turn_id, OpenAIResponses(), 3) == 2


async def test_resume_of_later_run_skips_void_frames() -> None:
    """A client that asks for a later run has no frames of the earlier ones."""
    store, turn_id = await stored(TokenEvent("a"), RestartEvent(2, LOST), *APPROVAL, TokenEvent("b"))
    assert await last_valid_frame(store, turn_id, AgUi(), 8) == 2
    run = RunName(await store.find_turn("ann", turn_id), number=2)
    assert (await find_in_run(store, run, run.wire("thread", 1), 0)).position > 4
