"""Groups and topics: calls of the bot, conversations and rate limits."""

import pytest

from tests.channels.telegram.agents import TEXT, TOKENS, paced
from tests.channels.telegram.world import ADA, BOB, GROUP, World
from turnwire.channels.telegram.updates import Bot, IncomingMessage, read_update


async def test_group_message_without_a_call_of_the_bot_is_ignored(world: World) -> None:
    await world.start()
    world.api.says(ADA, "just talking", chat_id=GROUP)
    world.api.says(ADA, "@OtherBot hello", chat_id=GROUP)
    world.api.says(ADA, "/help@OtherBot", chat_id=GROUP)
    world.api.says(ADA, "@turnbot what is up?", chat_id=GROUP)
    await world.api.until(lambda: world.api.texts(GROUP))
    await world.delivered()
    assert world.api.texts(GROUP) == ["You said: what is up?"]
    assert world.kernel.received == [("what is up?", str(GROUP), "telegram:7", f"{GROUP}:104")]


async def test_reply_to_the_bot_is_answered(world: World) -> None:
    await world.start()
    question = world.api.says(ADA, "hey @TurnBot, hello", chat_id=GROUP)
    await world.api.until(lambda: world.api.texts(GROUP))
    await world.delivered()
    (answer,) = world.api.shown(GROUP)
    assert (answer.text, answer.reply_to) == ("You said: hey , hello", question)
    world.api.says(BOB, "and then?", chat_id=GROUP, reply_to=answer.message_id)
    world.api.says(BOB, "not to you", chat_id=GROUP, reply_to=question)
    await world.api.until(lambda: len(world.api.texts(GROUP)) == 2)
    await world.delivered()
    assert world.api.texts(GROUP)[1] == "You said: and then?"


async def test_each_topic_is_its_own_conversation(world: World) -> None:
    await world.start()
    world.api.says(ADA, "@TurnBot one", chat_id=GROUP, thread_id=42)
    world.api.says(BOB, "@TurnBot two", chat_id=GROUP, thread_id=43)
    await world.api.until(lambda: len(world.api.texts(GROUP)) == 2)
    await world.delivered()
    assert world.api.texts(GROUP, 42) == ["You said: one"]
    assert world.api.texts(GROUP, 43) == ["You said: two"]
    assert {user_id for _, user_id, *_ in world.kernel.received} == {f"{GROUP}:42", f"{GROUP}:43"}
    assert {principal for _, _, principal, _ in world.kernel.received} == {"telegram:7", "telegram:8"}


async def test_topics_share_the_rate_limit_of_their_group(world: World) -> None:
    await world.start()
    for number in range(24):
        world.api.says(ADA, f"@TurnBot {number}", chat_id=GROUP, thread_id=100 + number)
    await world.api.until(lambda: len(world.api.texts(GROUP)) == 24)
    await world.delivered()
    assert world.api.too_many == []


async def test_concurrent_answers_in_topics_share_the_rate_limit(world: World) -> None:
    world.agent = paced(world.clock, TOKENS, 10)
    await world.start()
    for thread_id in (41, 42, 43):
        world.api.says(ADA, "@TurnBot tell me", chat_id=GROUP, thread_id=thread_id)
    await world.api.until(lambda: len(world.kernel.answers) == 3)
    await world.delivered()
    assert world.api.too_many == []
    for thread_id in (41, 42, 43):
        assert "\n\n".join(world.api.texts(GROUP, thread_id)) == TEXT


@pytest.mark.parametrize("space", [" ", "\n", "\t "])
def test_command_ends_at_any_white_space(space: str) -> None:
    message = {"message_id": 1, "chat": {"id": ADA}, "from": {"id": ADA}, "text": f"/pair@TurnBot{space}ABCD"}
    update = read_update({"update_id": 1, "message": message}, Bot(1, "TurnBot"))
    assert isinstance(update, IncomingMessage)
    assert (update.command, update.text) == ("pair", "ABCD")


async def test_command_with_the_bots_name_is_obeyed(world: World) -> None:
    await world.start()
    world.api.says(ADA, "/new@TurnBot", chat_id=GROUP, thread_id=42)
    await world.api.until(lambda: world.api.texts(GROUP, 42))
    await world.delivered()
    assert world.kernel.sessions == [f"{GROUP}:42"]


async def test_answer_to_a_deleted_private_topic_goes_to_the_chat(world: World) -> None:
    await world.start()
    world.api.says(ADA, "hello", thread_id=5)
    world.api.threads[ADA].clear()
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    assert world.api.texts(ADA) == ["You said: hello"]


BOT = Bot(4242, "TurnBot")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"text": "hi"}, False),
        ({"text": "hi 🎉 @TurnBot", "entities": [{"type": "mention", "offset": 6, "length": 8}]}, True),
        (
            {
                "text": "Turn, hi",
                "entities": [{"type": "text_mention", "offset": 0, "length": 4, "user": {"id": 4242}}],
            },
            True,
        ),
        ({"text": "user@TurnBot.org"}, False),
        ({"caption": "@TurnBot see", "caption_entities": [{"type": "mention", "offset": 0, "length": 8}]}, True),
        # In a topic that the bot has opened, every message seems to reply to the opening.
        (
            {
                "text": "hi",
                "is_topic_message": True,
                "message_thread_id": 9,
                "reply_to_message": {"message_id": 9, "chat": {"id": GROUP}, "from": {"id": 4242}},
            },
            False,
        ),
    ],
)
def test_read_update_detects_messages_for_the_bot(message: dict, expected: bool) -> None:
    plain = {"message_id": 10, "chat": {"id": GROUP}, "from": {"id": ADA, "first_name": "Ada"}, **message}
    update = read_update({"update_id": 1, "message": plain}, BOT)
    assert isinstance(update, IncomingMessage)
    assert update.is_for_bot is expected
    assert "TurnBot" not in update.text or not expected


def test_updates_of_bots_and_unknown_kinds_are_ignored() -> None:
    bots = {"message_id": 1, "chat": {"id": GROUP}, "from": {"id": 9, "is_bot": True}, "text": "@TurnBot"}
    for update in ({"message": bots}, {"message": {"text": 5}}, {"poll": {}}, {"callback_query": {"id": 7}}):
        assert not isinstance(read_update({"update_id": 1, **update}, BOT), IncomingMessage)


def test_thread_of_replies_is_not_a_topic() -> None:
    plain = {"message_id": 10, "chat": {"id": GROUP}, "from": {"id": ADA}, "text": "/new", "message_thread_id": 3}
    update = read_update({"update_id": 1, "message": plain}, BOT)
    assert isinstance(update, IncomingMessage)
    assert update.address.user_id == str(GROUP)
