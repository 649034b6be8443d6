"""Answers as Telegram's drafts: no flash, no leftover draft, and edits where drafts are refused."""

from itertools import pairwise
from typing import Any

from tests.channels.telegram.agents import TEXT, TOKENS, Gated, paced
from tests.channels.telegram.bot_api import units
from tests.channels.telegram.world import ADA, GROUP, World
from turnwire.extensions.contract import StreamStep


async def begin(world: World, gate: Gated, **config: Any) -> None:
    world.agent = gate
    await world.start(transport="draft", **config)
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.received)


async def test_draft_becomes_a_message_without_a_flash(world: World) -> None:
    gate = Gated("**An answer** that is long enough to be shown. ", "The end.")
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: world.api.draft(ADA))
    assert world.api.texts(ADA) == []
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["An answer that is long enough to be shown. The end."]
    assert world.api.flashes == []
    assert world.api.draft(ADA) is None
    # The last draft was equal to the message.
    last = [call for call in world.api.calls if call.method in ("sendMessageDraft", "sendMessage")][-2:]
    assert [call.method for call in last] == ["sendMessageDraft", "sendMessage"]
    assert last[0].text == last[1].text
    assert last[0].params["entities"] == last[1].params["entities"]


async def test_draft_only_grows(world: World) -> None:
    world.agent = paced(world.clock, TOKENS[:300], 60)
    await world.start(transport="draft")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.answers)
    await world.delivered()
    drafts = [call.text for call in world.api.made("sendMessageDraft")][:-1]
    assert len(drafts) > 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(drafts))
    assert world.api.too_many == []


async def test_long_answer_continues_in_its_own_draft(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 60)
    await world.start(transport="draft")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.answers)
    await world.delivered()
    assert "\n\n".join(world.api.texts(ADA)) == TEXT
    assert all(units(text) <= 4096 for text in world.api.texts(ADA))
    assert world.api.flashes == []
    assert world.api.too_many == []


async def test_idle_draft_is_refreshed(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown. ", "The end.")
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: len(world.api.made("sendMessageDraft")) == 3)
    times = [call.at for call in world.api.made("sendMessageDraft")]
    assert all(10 < later - earlier < 29 for earlier, later in pairwise(times))
    gate.end()
    await world.delivered()


async def test_step_is_shown_as_a_draft_before_the_text(world: World) -> None:
    gate = Gated(StreamStep(id="1", kind="search", name="search", phase="started"), "An answer, at last. ")
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: world.api.draft(ADA))
    draft = world.api.draft(ADA)
    assert draft is not None
    assert draft.text.startswith("🔎 search · ")
    await gate.say()
    await world.api.until(lambda: (now := world.api.draft(ADA)) is not None and now.text.startswith("An answer"))
    gate.end()
    await world.delivered()
    assert world.api.flashes == []


async def test_stop_of_the_draft_cancels_the_answer(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown. ", "The end.")
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: world.api.draft(ADA))
    world.api.stops_draft(ADA)
    await world.api.until(lambda: world.kernel.cancelled)
    await world.delivered()
    assert world.api.texts(ADA) == ["An answer that is long enough to be shown.\n\n⏹ Stopped"]


async def test_stop_of_another_draft_cancels_nothing(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown. ", "The end.")
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: world.api.draft(ADA))
    world.api.tell({"stopped_message_generation": {"chat": {"id": ADA}, "draft_id": "1"}})
    await world.api.until(lambda: not world.api.updates)
    gate.end()
    await world.delivered()
    assert world.kernel.cancelled == []


async def test_refused_draft_falls_back_to_edits(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown. ", "More of it. ", "The end.")
    world.api.refuse_drafts = True
    await begin(world, gate)
    await gate.say()
    await world.api.until(lambda: world.api.texts(ADA) == ["An answer that is long enough to be shown."])
    assert world.api.shown(ADA)[0].buttons == ["⏹ Stop"]
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["An answer that is long enough to be shown. More of it. The end."]
    assert len(world.api.made("sendMessageDraft")) == 1


async def test_groups_get_no_drafts(world: World) -> None:
    await world.start(transport="draft")
    world.api.says(ADA, "@TurnBot hello", chat_id=GROUP)
    await world.api.until(lambda: world.api.texts(GROUP) == ["You said: hello"])
    await world.delivered()
    assert world.api.made("sendMessageDraft") == []
