"""Answers that grow: politely, without keeping the agent waiting, and whole in the end.

Each weak point of channels that stream by editing has its test: flood waits that are ignored, finals that are lost,
messages that are full, agents that wait for the network, tools that nobody sees.
"""

import asyncio
import re
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.channels.telegram.agents import TEXT, TOKENS, Gated, paced, saying
from tests.channels.telegram.bot_api import TOKEN, BotApi, units
from tests.channels.telegram.world import ADA, BOB, GROUP, World
from turnwire.channels.telegram.client import Clock
from turnwire.extensions.contract import StreamStep


def search(phase: Any = "started", **fields: Any) -> StreamStep:
    return StreamStep(id="s1", kind="search", name="search", phase=phase, **fields)


def joined(world: World, chat_id: int = ADA) -> str:
    return "\n\n".join(world.api.texts(chat_id))


def age(world: World) -> int | None:
    """How long the search has taken, by what is seen."""
    seen = re.search(r"🔎 search · (\d+) s$", joined(world))
    return int(seen[1]) if seen else None


async def ask(world: World, text: str = "hello") -> None:
    world.api.says(ADA, text)
    await world.api.until(lambda: world.kernel.received)


async def test_a_message_is_answered_in_one_message_without_leftovers(world: World) -> None:
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: hello"])
    await world.delivered()
    assert world.api.shown(ADA)[0].buttons == []
    assert world.kernel.received == [("hello", "7", "telegram:7", "7:101")]
    assert len(world.api.made("sendMessage")) == 1


async def test_fast_tokens_break_no_limit_and_arrive_whole(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 60)
    await world.start()
    began = world.clock.now()
    await ask(world)
    await world.api.until(lambda: world.kernel.answers)
    lasted = world.clock.now() - began
    await world.delivered()
    assert world.api.too_many == []
    assert joined(world) == TEXT
    # It was seen to grow, and the agent did not wait for that.
    assert len(world.api.made("editMessageText")) >= 4
    assert len(world.kernel.spent) == 601
    assert sum(world.kernel.spent) < 0.05 * lasted


async def test_channel_that_is_flooded_does_not_stall_the_agent(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 60)
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.made("sendMessage"))
    world.api.flood(ADA, 30)
    began = world.clock.now()
    await world.api.until(lambda: world.api.too_many)
    await world.delivered()
    assert sum(world.kernel.spent) < 0.05 * (world.clock.now() - began)
    assert joined(world) == TEXT


async def test_flood_wait_of_30_s_is_kept_and_nothing_is_sent_meanwhile(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 60)
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: len(world.api.made("editMessageText")) >= 2)
    world.api.flood(ADA, 30)
    flooded = world.clock.now()
    await world.delivered()
    # One call found out; nobody tried again before its time.
    assert len(world.api.too_many) == 1
    closed = [call for call in world.api.calls if flooded < call.at < flooded + 29 and "chat_id" in call.params]
    assert closed == world.api.too_many
    assert joined(world) == TEXT


async def test_edits_become_rarer_after_a_flood_wait(world: World) -> None:
    gate = Gated(*(f"This is sentence number {number}. " for number in range(20)))
    world.agent = gate
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.received)
    await gate.say(2)
    await world.api.until(lambda: world.api.made("sendMessage"))
    world.api.flood(ADA, 5)
    await gate.say()
    await world.api.until(lambda: world.api.too_many)
    for _ in range(3):
        await gate.say()
        count = len(world.api.made("editMessageText"))
        await world.api.until(lambda count=count: len(world.api.made("editMessageText")) > count)
    edits = [call.at for call in world.api.made("editMessageText") if call.code == 200]
    assert all(later - earlier >= 2.3 for earlier, later in pairwise(edits))
    gate.end()
    await world.delivered()


async def test_final_answer_arrives_after_a_flood_wait(world: World) -> None:
    gate = Gated("The beginning of an answer that is long enough. ", "And its end.")
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    world.api.flood(ADA, 30)
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["The beginning of an answer that is long enough. And its end."]
    assert len(world.api.too_many) <= 1


@pytest.mark.parametrize("fault", ["bad gateway", "unavailable", "cut", "lost"])
async def test_final_answer_arrives_after_errors(world: World, fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gated("The beginning of an answer that is long enough. ", "And its end.")
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    world.api.plan("editMessageText", fault, fault)
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["The beginning of an answer that is long enough. And its end."]
    # What had been done before its reply was lost counts as done.
    assert "cannot be delivered" not in caplog.text


async def test_answer_past_4096_characters_goes_on_in_a_new_message(world: World) -> None:
    paragraphs = [f"Paragraph {number}: " + "words and more words " * 40 + "\n\n" for number in range(12)]
    gate = Gated(*paragraphs)
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say(6)
    # While it grows: the full message is complete and left alone, the tail is in a second one.
    await world.api.until(lambda: len(world.api.shown(ADA)) == 2)
    first, second = world.api.shown(ADA)
    assert first.text.startswith("Paragraph 0:")
    assert first.buttons == []
    assert second.buttons == ["⏹ Stop"]
    frozen = first.text
    gate.end()
    await world.delivered()
    shown = world.api.shown(ADA)
    assert shown[0].text == frozen
    assert all(units(message.text) <= 4096 for message in shown)
    assert joined(world).split() == "".join(paragraphs).split()
    assert world.api.too_many == []
    assert all(units(call.text) <= 4096 for call in world.api.calls)


async def test_steps_are_seen_with_their_time(world: World) -> None:
    gate = Gated(search(), "Here is what was found in the notes. ", search("finished"), "The end.")
    world.agent = gate
    await world.start()
    await ask(world)
    # The first step is shown at once, though there is no text yet.
    await gate.say()
    await world.api.until(lambda: age(world) is not None)
    assert world.api.shown(ADA)[0].styled("italic") == world.api.texts(ADA)
    # Its time is told from time to time.
    await world.api.until(lambda: (age(world) or 0) >= 5)
    await gate.say()
    await world.api.until(lambda: joined(world).startswith("Here is what was found in the notes.\n\n🔎 search"))
    await gate.say()
    await world.api.until(lambda: joined(world) == "Here is what was found in the notes.")
    assert world.api.shown(ADA)[0].buttons == ["⏹ Stop"]
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["Here is what was found in the notes. The end."]
    assert world.api.shown(ADA)[0].buttons == []
    assert world.api.too_many == []


async def test_a_step_that_lasts_costs_few_calls(world: World) -> None:
    gate = Gated(search(), "Done.")
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say()
    await world.api.until(lambda: len(world.api.made("editMessageText")) == 4)
    calls = [call.at for call in world.api.made("editMessageText")]
    assert calls[3] - calls[0] >= 15
    gate.end()
    await world.delivered()


async def test_nothing_is_said_twice(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once.", "")
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say(2)
    await world.api.until(lambda: world.api.shown(ADA))
    gate.end()
    await world.delivered()
    assert all(call.code == 200 for call in world.api.calls)
    assert len(world.api.made("editMessageText")) == 1


async def test_a_short_beginning_waits_a_second_before_it_rings_a_phone(world: World) -> None:
    gate = Gated("Hm. ", "Yes.")
    world.agent = gate
    await world.start()
    began = world.clock.now()
    await ask(world)
    await gate.say()
    await world.api.until(lambda: world.api.texts(ADA) == ["Hm."])
    assert world.api.made("sendMessage")[0].at - began >= 1
    # Meanwhile the bot seems to type.
    assert world.api.made("sendChatAction")
    gate.end()
    await world.delivered()


async def test_two_people_are_answered_at_the_same_time(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once. ", "The end.")
    world.agent = gate
    await world.start()
    world.api.says(ADA, "one")
    world.api.says(BOB, "two")
    await world.api.until(lambda: gate.begun == 2)
    gate.end()
    await world.delivered()
    assert len(world.api.texts(ADA)) == len(world.api.texts(BOB)) == 1


async def test_messages_of_one_chat_are_answered_one_after_the_other(world: World) -> None:
    await world.start()
    for number in range(4):
        world.api.says(ADA, f"number {number}")
    await world.api.until(lambda: len(world.kernel.answers) == 4)
    await world.delivered()
    assert world.api.texts(ADA) == [f"You said: number {number}" for number in range(4)]
    assert world.api.too_many == []


async def test_a_busy_group_keeps_to_its_own_limit(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 20)
    await world.start()
    world.api.says(ADA, "@TurnBot tell me", chat_id=GROUP)
    await world.api.until(lambda: world.api.made("sendMessage"))
    await world.delivered()
    assert world.api.too_many == []
    assert joined(world, GROUP) == TEXT
    edits = [call.at for call in world.api.made("editMessageText") if "reply_markup" in call.params]
    assert all(later - earlier >= 3.3 for earlier, later in pairwise(edits))


async def test_answer_can_be_given_whole(world: World) -> None:
    world.agent = saying("An answer that is long enough to be shown at once. ", "The end.")
    await world.start(streaming_enabled=False)
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.answers)
    await world.delivered()
    assert [call.method for call in world.api.calls if "chat_id" in call.params] == ["sendMessage"]


async def test_an_empty_answer_is_said_to_be_one(world: World) -> None:
    world.agent = saying()
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.received)
    await world.delivered()
    assert world.api.texts(ADA) == ["(There was no answer.)"]


async def test_channel_can_be_told_to_say_something(world: World) -> None:
    await world.start(allowed_users=[ADA])
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.shown(ADA))
    await world.delivered()
    await world.channel.send_to_user("7", "A **reminder**")
    await world.channel.send_message("To whom it may concern")
    await world.delivered()
    assert world.api.texts(ADA) == ["You said: hello", "A reminder", "To whom it may concern"]
    assert world.api.shown(ADA)[1].styled("bold") == ["reminder"]
    with pytest.raises(LookupError, match="not a Telegram chat"):
        await world.channel.send_to_user("ada", "hello")


async def test_the_simulator_punishes_the_old_way(clock: Clock) -> None:
    """An edit with every token half a second after the last that worked, errors forgotten, one last try at the end."""
    async with BotApi(clock) as api, httpx.AsyncClient(base_url=f"{api.url}/bot{TOKEN}/", trust_env=False) as http:
        api.says(ADA, "hello")
        sent = await http.post("sendMessage", json={"chat_id": ADA, "text": "..."})
        message = {"chat_id": ADA, "message_id": sent.json()["result"]["message_id"]}
        text, edited_at, began = "", clock.now(), clock.now()
        for number, token in enumerate(TOKENS):
            await clock.sleep(max(0.0, began + number / 60 - clock.now()))
            text += token
            if clock.now() - edited_at >= 0.5:
                answer = await http.post("editMessageText", json={**message, "text": text})
                if answer.status_code == 200:
                    edited_at = clock.now()
        final = await http.post("editMessageText", json={**message, "text": text})
        assert final.status_code != 200
        assert len(api.too_many) > 100
        assert len(api.texts(ADA)[0]) < len(TEXT) * 0.7


async def test_a_slow_network_shows_the_newest_state_and_no_backlog(world: World) -> None:
    gate = Gated(*(f"This is sentence number {number:02d}. " for number in range(30)))
    world.agent = gate
    await world.start()
    await ask(world)
    world.api.plan("sendMessage", "hang")
    await gate.say(2)
    await world.api.until(lambda: world.api.made("sendMessage"))
    # Nobody answers that call; the agent goes on as if nothing were.
    async with asyncio.timeout(5):
        await gate.say(28)
    gate.end()
    await world.delivered()
    assert len(world.api.texts(ADA)) == 1
    assert world.api.texts(ADA)[0].endswith("number 29.")


async def test_a_connection_that_breaks_while_an_answer_grows_does_not_end_its_growing(world: World) -> None:
    gate = Gated(*(f"This is sentence number {number:02d}. " for number in range(9)))
    world.agent = gate
    await world.start()
    await ask(world)
    await gate.say(3)
    await world.api.until(lambda: world.api.shown(ADA))
    world.api.plan("editMessageText", "lost", "bad gateway")
    await gate.say(3)
    await world.api.until(lambda: "number 05" in joined(world))
    assert world.api.shown(ADA)[0].buttons == ["⏹ Stop"]
    gate.end()
    await world.delivered()


async def test_restart_while_a_full_message_is_sent_replaces_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    is_sending, may_go_on, send = asyncio.Event(), asyncio.Event(), world.api._do_sendMessage

    async def held(params: dict[str, Any]) -> Any:
        is_sending.set()
        await may_go_on.wait()
        return send(params)

    monkeypatch.setattr(world.api, "_do_sendMessage", held)
    gate = Gated("Old words. " * 500)
    world.agent = gate
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.received)
    await gate.say()
    await is_sending.wait()
    await world.channel.on_stream_restart(str(ADA), "New words. " * 500)
    may_go_on.set()
    await world.api.until(lambda: [text[:9] for text in world.api.texts(ADA)] == ["New words"] * 2)
    gate.end()
    await world.delivered()
