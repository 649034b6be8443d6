"""Questions of turns: buttons for choices, messages for the rest, and forms that survive a crash."""

from typing import Any

import pytest

from tests.channels.telegram.agents import Gated
from tests.channels.telegram.world import ADA, BOB, GROUP, STRANGER, World
from turnwire.core.errors import InvalidReplyError, StoreAwayError, TurnEndedError
from turnwire.extensions.contract import QuestionAsk

PLAN = {"type": "string", "oneOf": [{"const": "b", "title": "Basic"}, {"const": "p", "title": "Plus"}]}
FORM = {
    "type": "object",
    "properties": {
        "plan": PLAN,
        "days": {"type": "integer", "minimum": 1, "maximum": 9, "title": "Days"},
        "note": {"type": "string"},
        "express": {"type": "boolean", "default": False},
    },
    "required": ["plan", "days"],
}


def question(schema: dict[str, Any] | None, id: str = "q1") -> QuestionAsk:
    return QuestionAsk(turn_id="t1", question_id=id, prompt="Which *plan*?", schema=schema)


async def asking(world: World, *asks: QuestionAsk, chat_id: int = ADA) -> Gated:
    gate = Gated(*asks)
    world.agent = gate
    await world.start()
    world.api.says(ADA, "@TurnBot go on", chat_id=chat_id)
    await world.api.until(lambda: world.kernel.received)
    await gate.say(len(asks))
    await world.api.until(lambda: len(world.api.shown(chat_id)) == len(asks))
    return gate


async def shows(world: World, number: int, end: str, chat_id: int = ADA) -> None:
    """Wait until the message of this number ends so, without buttons."""
    await world.api.until(lambda: len(world.api.shown(chat_id)) > number)
    message = lambda: world.api.shown(chat_id)[number]  # noqa: E731 - read again at each look
    await world.api.until(lambda: message().text.endswith(end) and not message().buttons)


@pytest.mark.parametrize(
    ("schema", "buttons", "button", "value"),
    [
        (PLAN, ["Basic", "Plus"], "Plus", "p"),
        ({"type": "integer", "enum": [2, 1]}, ["2", "1"], "1", 1),
        ({"type": "boolean"}, ["yes", "no"], "no", False),
    ],
)
async def test_choice_is_answered_by_its_button(
    world: World, schema: dict[str, Any], buttons: list[str], button: str, value: object
) -> None:
    gate = await asking(world, question(schema))
    (message,) = world.api.shown(ADA)
    assert (message.text, message.buttons) == ("❓ Which *plan*?", [*buttons, "🚫 Decline"])
    world.api.presses(ADA, ADA, button)
    await shows(world, 0, f"✅ {button} by Ada")
    assert world.kernel.replies == [("q1", value, False, "telegram:7")]
    gate.end()
    await world.delivered()


async def test_message_answers_the_question_and_starts_no_turn(world: World) -> None:
    gate = await asking(world, question({"type": "integer", "minimum": 2}))
    world.api.says(ADA, "many")
    world.api.says(ADA, "1")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 3)
    assert world.api.texts(ADA)[1:] == [
        "This must be a whole number: Which *plan*?",
        "This must be at least 2: Which *plan*?",
    ]
    world.api.says(ADA, "7")
    await shows(world, 0, "✅ 7 by Ada")
    assert world.kernel.replies == [("q1", 7, False, "telegram:7")]
    gate.end()
    await world.delivered()
    assert len(world.kernel.received) == 1


async def test_several_choices_are_written(world: World) -> None:
    gate = await asking(world, question({"type": "array", "items": {"enum": ["a", "b", "c"]}}))
    assert "Write some, separated by commas, of: a, b, c" in world.api.texts(ADA)[0]
    world.api.says(ADA, "a, c")
    await world.api.until(lambda: world.kernel.replies == [("q1", ["a", "c"], False, "telegram:7")])
    gate.end()
    await world.delivered()


async def test_question_is_declined_by_its_button(world: World) -> None:
    gate = await asking(world, question(None))
    world.api.presses(ADA, ADA, "🚫 Decline")
    await shows(world, 0, "🚫 Declined by Ada")
    assert world.kernel.replies == [("q1", None, True, "telegram:7")]
    gate.end()
    await world.delivered()


async def test_form_goes_on_field_by_field_over_a_crash(world: World) -> None:
    await asking(world, question(FORM))
    assert world.api.texts(ADA)[0] == "❓ Which *plan*?\n\nplan"
    world.api.presses(ADA, ADA, "Plus")
    await shows(world, 0, "✅ Plus")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 2)
    assert world.api.texts(ADA)[1] == "❓ Which *plan*?\n\nDays\n\nWrite the answer."
    await world.crash()
    gate = Gated(question(FORM))
    world.agent = gate
    await world.start()
    await world.api.until(lambda: world.kernel.received)
    await gate.say()
    world.api.says(ADA, "3")
    await shows(world, 1, "✅ 3")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 3)
    assert world.api.shown(ADA)[2].buttons == ["⏭ Skip", "🚫 Decline"]
    world.api.presses(ADA, ADA, "⏭ Skip")
    await shows(world, 2, "⏭ Skipped")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 4)
    assert world.api.shown(ADA)[3].buttons == ["yes", "no", "⏭ Default", "🚫 Decline"]
    world.api.presses(ADA, ADA, "⏭ Default")
    await shows(world, 3, "⏭ Skipped by Ada")
    assert world.kernel.replies == [("q1", {"plan": "p", "days": 3, "express": False}, False, "telegram:7")]
    gate.end()
    await world.delivered()


async def test_oldest_of_two_questions_is_answered_first(world: World) -> None:
    gate = await asking(world, question(None, "q1"), question(None, "q2"))
    world.api.says(ADA, "one")
    world.api.says(ADA, "two")
    await world.api.until(lambda: len(world.kernel.replies) == 2)
    assert [(id, value) for id, value, _, _ in world.kernel.replies] == [("q1", "one"), ("q2", "two")]
    gate.end()
    await world.delivered()


async def test_stranger_cannot_answer(world: World) -> None:
    gate = await asking(world, question(PLAN), chat_id=GROUP)
    world.api.presses(STRANGER, GROUP, "Plus")
    await world.api.until(lambda: world.api.toasts)
    assert world.kernel.replies == []
    world.api.presses(BOB, GROUP, "Basic", name="Bob_*")
    await shows(world, 0, "✅ Basic by Bob_*", GROUP)
    gate.end()
    await world.delivered()


async def test_message_after_the_question_was_closed_is_a_new_one(world: World) -> None:
    gate = await asking(world, question(None))
    world.kernel.decision_error = TurnEndedError("t1")
    world.api.says(ADA, "hello")
    await shows(world, 0, "It was too late to answer.")
    gate.end()
    await world.delivered()
    assert [message for message, *_ in world.kernel.received] == ["go on", "hello"]


async def test_question_that_was_answered_elsewhere_is_closed(world: World) -> None:
    gate = await asking(world, question(PLAN))
    await world.channel.on_question_closed(str(ADA), question(PLAN))
    await shows(world, 0, "This question is closed.")
    await world.channel.on_question_closed(str(ADA), question(PLAN, "unknown"))
    gate.end()
    await world.delivered()


async def test_reply_that_the_turn_refuses_leaves_the_question_open(world: World) -> None:
    gate = await asking(world, question(None))
    world.kernel.decision_error = InvalidReplyError("value", "this is too large")
    world.api.says(ADA, "long")
    await world.api.until(lambda: world.api.texts(ADA)[1:] == ["Value: this is too large"])
    world.kernel.decision_error = None
    world.api.says(ADA, "short")
    await world.api.until(lambda: [value for _, value, _, _ in world.kernel.replies] == ["short"])
    gate.end()
    await world.delivered()


async def test_answer_that_the_store_failed_to_record_is_recorded_by_the_next_process(world: World) -> None:
    await asking(world, question(None))
    world.kernel.decision_error = StoreAwayError("the database")
    world.api.says(ADA, "tea")
    with pytest.raises(StoreAwayError):
        await world.service_ended()
    await world.crash()
    gate = Gated(question(None))
    world.agent = gate
    await world.start()
    await world.api.until(lambda: world.kernel.replies == [("q1", "tea", False, "telegram:7")])
    await shows(world, 0, "✅ tea by Ada")
    gate.end()
    await world.delivered()


async def test_answer_that_telegram_sends_again_is_no_new_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await asking(world, question(None))
    records = world.channel.opened.records

    async def crash(_: int) -> None:
        raise StoreAwayError("the database")

    monkeypatch.setattr(records, "set_handled", crash)
    world.api.says(ADA, "tea")
    with pytest.raises(StoreAwayError):
        await world.service_ended()
    await world.crash()
    monkeypatch.undo()
    gate = Gated(question(None))
    world.agent = gate
    await world.start()
    world.api.says(ADA, "and more")
    await world.api.until(lambda: len(world.kernel.accepted) == 2)
    gate.end()
    await world.delivered()
    assert [receipt.message for receipt in world.kernel.accepted.values()] == ["go on", "and more"]
