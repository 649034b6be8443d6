"""Wires whose clients go on by the number of a frame: who has frames that a restart took back must not go on."""

import pytest

from tests.contracts.turns import append, claimed, done, whole_log
from tests.contracts.wires import WIRES
from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent, Event, RestartEvent, TokenEvent
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import FRAMES, find_point
from turnwire.stores.memory import MemoryStore
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.openai.responses_encoder import OpenAIResponses

LOST = "worker_lost"
ASKING = [ApprovalRequestEvent("c1", "pay", {}), ApprovalResponseEvent("c1", True)]


async def stored(*events: Event) -> tuple[MemoryStore, str]:
    store = MemoryStore()
    record = await claimed(store)
    await append(store, record.id, 1, 3, *events, done(record, "cancelled"), end=True)
    return store, record.id


@pytest.mark.parametrize("name", ["ag_ui", "openai_responses"])
async def test_who_may_have_frames_that_were_taken_back_is_told_from_where_to_read_again(name: str) -> None:
    said = TokenEvent("Good "), TokenEvent("n"), TokenEvent("ight")
    store, turn_id = await stored(*said, RestartEvent(3, LOST), TokenEvent("day"))
    wire, log = WIRES[name], await whole_log(store, turn_id)
    kept = b"".join(map(wire.encoder().frame, log[:3])).count(b"\n\n")
    for count in (kept + 1, kept + 2, kept + 3):
        with pytest.raises(HttpError, match="begun anew") as refused:
            await find_point(store, turn_id, wire, FRAMES, count)
        assert (refused.value.status, refused.value.more["size"]) == (416, kept)
    place = await find_point(store, turn_id, wire, FRAMES, kept)
    assert b"day" in place.rest
    assert b"Good" not in place.rest


async def test_frames_of_a_second_attempt_that_was_lost_too_are_taken_back_as_well() -> None:
    said = TokenEvent("a"), TokenEvent("b"), RestartEvent(4, LOST), TokenEvent("c"), RestartEvent(3, LOST)
    store, turn_id = await stored(*said, TokenEvent("d"))
    kept = b"".join(map(AgUi().encoder().frame, (await whole_log(store, turn_id))[:3])).count(b"\n\n")
    assert b"d" in (await find_point(store, turn_id, AgUi(), FRAMES, kept)).rest
    with pytest.raises(HttpError, match=f"frame {kept} was begun anew"):
        await find_point(store, turn_id, AgUi(), FRAMES, kept + 1)


async def test_what_was_taken_back_without_a_word_on_the_wire_refuses_nobody() -> None:
    """The second response of a turn has nothing of what happened in the first."""
    store, turn_id = await stored(TokenEvent("a"), RestartEvent(2, LOST), *ASKING, TokenEvent("b"))
    assert (await find_point(store, turn_id, OpenAIResponses(segment=2), FRAMES, 3)).position > 4
    with pytest.raises(HttpError, match="begun anew"):
        await find_point(store, turn_id, OpenAIResponses(), FRAMES, 3)


async def test_who_only_passes_over_frames_that_were_taken_back_goes_on() -> None:
    """A client that asks for a later run has nothing of the runs before it."""
    store, turn_id = await stored(TokenEvent("a"), RestartEvent(2, LOST), *ASKING, TokenEvent("b"))
    with pytest.raises(HttpError, match="begun anew"):
        await find_point(store, turn_id, AgUi(), FRAMES, 8)
    assert (await find_point(store, turn_id, AgUi(), FRAMES, 8, had=2)).position > 4
