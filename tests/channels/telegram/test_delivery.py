"""Delivery exactly once, through crashes, lost responses, deleted messages and refusals."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.channels.telegram.agents import Gated, saying
from tests.channels.telegram.world import ADA, GROUP, Piece, World
from turnwire.channels.telegram.records import Answer, MessagePart
from turnwire.core.errors import ShuttingDownError, StoreError

LONG = "\n\n".join(f"Paragraph {number}: " + "words and more words " * 45 for number in range(12))


def whole(world: World, chat_id: int = ADA) -> list[str]:
    return "\n\n".join(world.api.texts(chat_id)).split()


async def ask_and_wait(world: World, chat_id: int = ADA) -> None:
    world.api.says(chat_id, "hello")
    await world.api.until(lambda: world.kernel.received)


async def test_partly_posted_answer_is_completed_by_the_next_process(world: World) -> None:
    world.agent = saying(LONG)
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 2)
    await world.crash()
    assert whole(world) != LONG.split()
    await world.start()
    await world.delivered()
    assert whole(world) == LONG.split()
    assert len(world.api.texts(ADA)) == 3
    # The agent did not run again.
    assert len(world.kernel.answers) == 1


async def test_crash_during_a_flood_wait_loses_no_answer(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once. ", "The end.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    world.api.flood(ADA, 30)
    gate.end()
    await world.api.until(lambda: world.api.too_many)
    await world.crash()
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["An answer that is long enough to be shown at once. The end."]
    assert world.api.shown(ADA)[0].buttons == []
    # The next process knew of the flood wait.
    assert len(world.api.too_many) == 1


async def test_unanswered_message_is_answered_by_the_next_process_in_the_same_post(world: World) -> None:
    world.agent = Gated("An answer that is long enough to be shown at once.")
    await world.start()
    await ask_and_wait(world)
    await world.agent.say()
    await world.api.until(lambda: world.api.shown(ADA))
    await world.crash()
    world.agent = saying("The whole answer, of another process.")
    await world.start()
    await world.delivered()
    # In the message that the first process had begun.
    assert world.api.texts(ADA) == ["The whole answer, of another process."]
    assert world.kernel.received == [("hello", "7", "telegram:7", "7:101")]


async def test_answer_completed_before_a_crash_is_posted_once_after_it(world: World) -> None:
    world.agent = Gated()
    await world.start()
    await ask_and_wait(world)
    await world.crash()
    # The turn ended while no process was there to deliver its answer.
    world.kernel.answers["7:101"] = "Kept by the kernel."
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["Kept by the kernel."]
    await world.crash()
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["Kept by the kernel."]
    assert world.kernel.received == []


async def test_answer_delivered_again_is_not_posted_again(world: World) -> None:
    """A kernel that crashed before it could note a delivery delivers the answer again."""
    world.agent = Gated()
    await world.start()
    await ask_and_wait(world)
    await world.channel.on_stream_end("7", "The answer.")
    await world.crash()
    world.agent = saying("The answer.")
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["The answer."]


@pytest.mark.parametrize("ended", [True, False])
async def test_answer_delivered_again_as_a_message_is_posted_once(world: World, ended: bool) -> None:
    """An answer that was complete before the kernel started is a message, not a stream."""
    gate = Gated("An answer that is long enough to be shown at once.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    text = "An answer that is long enough to be shown at once."
    if ended:
        await world.channel.on_stream_cancel("7", text)
    await world.crash()
    world.kernel.answers["7:101"] = f"{text}\n\n(Stopped.)"
    for _ in range(2):
        world.kernel.delivered.clear()
        await world.start()
        await world.delivered()
        await world.crash()
    await world.start()
    await world.channel.send_to_user("7", "By the way: tea is ready.")
    await world.api.until(lambda: len(world.api.shown(ADA)) == 2)
    await world.api.until(lambda: not world.api.shown(ADA)[0].buttons)
    assert world.api.texts(ADA) == [f"{text}\n\n{'⏹ Stopped' if ended else '(Stopped.)'}", "By the way: tea is ready."]


async def test_empty_stopped_answer_delivered_again_is_posted_once(world: World) -> None:
    world.agent = Gated()
    await world.start()
    await ask_and_wait(world)
    await world.channel.on_stream_cancel("7", "")
    await world.api.until(lambda: world.api.texts(ADA) == ["⏹ Stopped"])
    await world.crash()
    world.kernel.answers["7:101"] = "(Stopped.)"
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["⏹ Stopped"]


async def test_notice_during_an_answer_does_not_replace_it(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once. ", "The end.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    await world.channel.send_to_user("7", "By the way: tea is ready.")
    await world.api.until(lambda: len(world.api.shown(ADA)) == 2)
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == [
        "An answer that is long enough to be shown at once. The end.",
        "By the way: tea is ready.",
    ]


@pytest.mark.parametrize("fault", ["cut", "hang", "bad gateway", "lost"])
async def test_message_that_may_have_been_sent_is_looked_for_first(world: World, fault: Any) -> None:
    world.agent = saying("Short.")
    await world.start()
    world.api.plan("sendMessage", fault)
    await ask_and_wait(world)
    await world.delivered()
    assert world.api.texts(ADA) == ["Short."]
    assert world.api.too_many == []


@pytest.mark.parametrize("chat_id", [ADA, GROUP])
async def test_crash_while_sending_does_not_send_twice(world: World, chat_id: int) -> None:
    world.agent = saying("Short.")
    await world.start()
    world.api.plan("sendMessage", "hang")
    world.api.says(ADA, "@TurnBot hello", chat_id=chat_id)
    await world.api.until(lambda: world.api.shown(chat_id))
    await world.crash()
    await world.start()
    await world.delivered()
    assert world.api.texts(chat_id) == ["Short."]


async def test_first_message_of_the_next_process_is_not_sent_twice(world: World) -> None:
    """The update was handled by the last process, so this one has not seen the id of the question."""
    world.agent = Gated()
    await world.start()
    await ask_and_wait(world)
    await world.crash()
    world.agent = saying("Short.")
    world.api.plan("sendMessage", "cut")
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA) == ["Short."]


async def test_message_that_was_sent_among_many_others_is_found(world: World) -> None:
    world.agent = saying("Short.")
    await world.start()
    opened = world.channel.opened
    records, set_part = opened.records, opened.records.set_part

    async def set_part_slowly(answer_id: str, number: int, part: MessagePart | None) -> None:
        await set_part(answer_id, number, part)
        if part is not None and part.sent_after is not None:
            # Before the call reaches Telegram, and the poller sees them.
            for person in range(1000, 1012):
                world.api.says(person, "hello")

    records.set_part = set_part_slowly  # type: ignore[method-assign]
    world.api.plan("sendMessage", "cut")
    await ask_and_wait(world)
    await world.api.until(lambda: world.api.made("editMessageReplyMarkup"))
    records.set_part = set_part  # type: ignore[method-assign]
    await world.delivered()
    assert world.api.texts(ADA) == ["Short."]


async def test_two_lost_messages_of_one_chat_are_two(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    opened = world.channel.opened
    message_ids = opened.records.message_ids

    async def slow_message_ids(chat_id: int, after: int) -> set[int]:
        found = await message_ids(chat_id, after)
        await world.clock.sleep(60)
        return found

    opened.records.message_ids = slow_message_ids  # type: ignore[method-assign]
    world.api.plan("sendMessage", "cut", "cut")
    await gate.say()
    await world.channel.send_to_user("7", "By the way: tea is ready.")
    await world.api.until(lambda: len(world.api.shown(ADA)) == 2)
    gate.end()
    await world.delivered()
    assert sorted(world.api.texts(ADA)) == [
        "An answer that is long enough to be shown at once.",
        "By the way: tea is ready.",
    ]


async def test_search_for_a_lost_message_ignores_other_messages(world: World) -> None:
    world.agent = saying("Short.")
    await world.start()
    world.api.plan("sendMessage", "lost")
    await ask_and_wait(world)
    await world.channel.send_to_user("7", "Something else, sent meanwhile.")
    await world.delivered()
    assert sorted(world.api.texts(ADA)) == ["Short.", "Something else, sent meanwhile."]


async def test_deleted_message_is_sent_again(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once. ", "The end.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    world.api.delete(ADA, world.api.shown(ADA)[0].message_id)
    gate.end()
    await world.delivered()
    assert world.api.texts(ADA) == ["An answer that is long enough to be shown at once. The end."]


async def test_refused_formatting_is_dropped_and_the_answer_posted(world: World) -> None:
    world.agent = saying("This is **bold**.")
    world.api.refuse_entities = True
    await world.start()
    await ask_and_wait(world)
    await world.delivered()
    (shown,) = world.api.shown(ADA)
    assert (shown.text, shown.entities) == ("This is bold.", [])


async def test_flood_wait_keeps_the_formatting(world: World) -> None:
    world.agent = saying("This is **bold**.")
    await world.start()
    world.api.says(ADA, "hello")
    world.api.flood(ADA, 5)
    await world.api.until(lambda: world.kernel.received)
    await world.delivered()
    assert world.api.shown(ADA)[0].styled("bold") == ["bold"]


async def test_blocked_bot_does_not_delay_later_answers(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()
    world.api.blocked.add(ADA)
    await ask_and_wait(world)
    await world.delivered()
    assert "cannot be delivered" in caplog.text
    world.api.blocked.clear()
    world.api.says(ADA, "again")
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: again"])
    await world.delivered()


async def test_shorter_final_answer_deletes_the_extra_messages(world: World) -> None:
    gate = Gated(LONG)
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: len(world.api.shown(ADA)) == 3)
    await world.channel.on_stream_end("7", "Never mind.")
    await world.api.until(lambda: world.api.texts(ADA) == ["Never mind."])


async def test_full_message_that_was_taken_back_is_written_again(world: World) -> None:
    gate = Gated(LONG)
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: len(world.api.shown(ADA)) == 3)
    await world.channel.on_stream_restart("7", "")
    await world.api.until(lambda: world.api.texts(ADA)[0] == "…")
    gate.end()
    await world.delivered()
    assert whole(world) == LONG.split()
    assert [message.buttons for message in world.api.shown(ADA)] == [[], [], []]


async def test_full_messages_are_not_edited_when_the_answer_is_complete(world: World) -> None:
    gate = Gated(LONG)
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: len(world.api.shown(ADA)) == 3)
    gate.end()
    await world.delivered()
    # The last one loses its button.
    assert [call.params["message_id"] for call in world.api.made("editMessageText")] == [104]


@pytest.mark.parametrize("method", ["begin", "answer", "parts", "set_part", "set_state"])
async def test_failure_of_the_records_delays_the_answer(world: World, method: str) -> None:
    await world.start()
    opened = world.channel.opened
    works, failures = getattr(opened.records, method), [StoreError("one moment"), StoreError("another moment")]

    async def fail_twice(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await works(*args)

    setattr(opened.records, method, fail_twice)
    await ask_and_wait(world)
    await world.delivered()
    assert world.api.texts(ADA) == ["You said: hello"]
    assert (await opened.records.undelivered(), method == "begin" or not failures) == ([], True)


async def test_answer_whose_commit_took_too_long_is_posted_when_it_is_delivered_again(world: World) -> None:
    gate = Gated("An answer that is long enough to be shown at once.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    opened, text = world.channel.opened, "An answer that is long enough to be shown at once. The end."
    # The kernel gave the call up, and the transaction was finished all the same.
    await opened.records.finish(Answer("7:101", "7", "final", text))
    await world.channel.send_to_user("7", text)
    await world.api.until(lambda: [(shown.text, shown.buttons) for shown in world.api.shown(ADA)] == [(text, [])])


async def test_process_that_lost_the_channel_edits_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gated("An answer that is long enough to be shown at once. ", "More of it.")
    world.agent = gate
    await world.start()
    await ask_and_wait(world)
    await gate.say()
    await world.api.until(lambda: world.api.shown(ADA))
    opened = world.channel.opened

    async def refuse() -> None:
        raise ShuttingDownError

    opened.records.check = refuse  # type: ignore[method-assign]
    await gate.say()
    await asyncio.wait(opened.answers.background.tasks, timeout=world.api.patience)
    assert world.api.made("editMessageText") == []
    assert "Traceback" not in caplog.text


async def test_unavailable_telegram_gets_the_answer_later(world: World) -> None:
    await world.start()
    world.api.plan("sendMessage", "unavailable", "unavailable", "unavailable")
    await ask_and_wait(world)
    await world.delivered()
    assert world.api.texts(ADA) == ["You said: hello"]


async def test_failure_of_the_kernel_is_answered_with_an_apology(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(text: str) -> AsyncGenerator[Piece]:
        yield "It begins"
        raise RuntimeError("a secret of the server")

    world.agent = fails
    await world.start()
    await ask_and_wait(world)
    await world.delivered()
    assert world.api.texts(ADA) == ["Sorry, something went wrong here. Please try again."]
    assert "could not be answered" in caplog.text


@pytest.mark.parametrize("ended", [True, False])
async def test_answer_that_the_kernel_gave_up_is_posted_by_the_next_process(world: World, ended: bool) -> None:
    async def fails(text: str) -> AsyncGenerator[Piece]:
        yield "An answer that is long enough to be shown at once."
        await world.api.until(lambda: world.api.shown(ADA))
        raise RuntimeError("a bug")

    world.agent = fails
    await world.start()
    await ask_and_wait(world)
    await world.delivered()
    assert world.api.texts(ADA)[1:] == ["Sorry, something went wrong here. Please try again."]
    await world.crash()
    world.agent = saying("The true answer.")
    if ended:
        world.kernel.answers["7:101"] = "The true answer."
    await world.start()
    await world.delivered()
    assert world.api.texts(ADA)[0] == "The true answer."


async def test_message_of_an_extension_just_before_an_answer_does_not_replace_it(world: World) -> None:
    gate = Gated("The answer.")
    world.agent = gate
    await world.start()
    start = world.channel.on_stream_start

    async def start_late(user_id: str) -> None:
        await world.channel.send_to_user(user_id, "By the way: tea is ready.")
        await start(user_id)

    world.channel.on_stream_start = start_late  # type: ignore[method-assign]
    await ask_and_wait(world)
    await gate.say()
    gate.end()
    await world.delivered()
    assert sorted(world.api.texts(ADA)) == ["By the way: tea is ready.", "The answer."]
