"""Stop, approvals and commands, which work at once and only for people with access."""

import json

import pytest

from tests.channels.telegram.agents import Gated, saying
from tests.channels.telegram.world import ADA, BOB, GROUP, STRANGER, World
from turnwire.core.errors import StoreAwayError, TurnEndedError
from turnwire.extensions.contract import ApprovalAsk

ASK = ApprovalAsk(
    turn_id="t1", call_id="c1", tool="delete_file", args={"path": "a*b_c `x`"}, reason="You asked for it."
)


async def answering(world: World, chat_id: int = ADA) -> Gated:
    gate = Gated("An answer that is long enough to be shown at once. ", "And more of it.")
    world.agent = gate
    await world.start()
    world.api.says(ADA, "@TurnBot hello", chat_id=chat_id)
    await world.api.until(lambda: world.kernel.received)
    await gate.say()
    await world.api.until(lambda: world.api.shown(chat_id))
    return gate


@pytest.mark.parametrize("way", ["button", "/stop", "/stop in a queue"])
async def test_stop_cancels_at_once_and_keeps_the_partial_answer(world: World, way: str) -> None:
    await answering(world)
    if way == "button":
        world.api.presses(ADA, ADA, "⏹ Stop")
    elif way == "/stop":
        world.api.says(ADA, "/stop")
    else:
        world.api.says(ADA, "another question")
        world.api.says(ADA, "/stop")
        world.kernel.agent = saying("Another answer.")
    await world.api.until(lambda: "Stopped" in world.api.texts(ADA)[0])
    await world.delivered()
    stopped = world.api.shown(ADA)[0]
    assert stopped.text == "An answer that is long enough to be shown at once.\n\n⏹ Stopped"
    assert stopped.buttons == []
    assert world.kernel.cancelled == ["7"]
    if way == "button":
        assert world.api.toasts == ["Stopping…"]
    if way == "/stop in a queue":
        assert world.api.texts(ADA)[1:] == ["Another answer."]


async def test_stop_works_during_a_flood_wait(world: World) -> None:
    await answering(world)
    world.api.flood(ADA, 30)
    flooded = world.clock.now()
    world.api.presses(ADA, ADA, "⏹ Stop")
    await world.api.until(lambda: world.api.toasts)
    assert world.clock.now() - flooded < 15
    assert world.kernel.cancelled == ["7"]
    await world.delivered()


async def test_stranger_in_a_group_cannot_stop(world: World) -> None:
    gate = await answering(world, GROUP)
    world.api.presses(STRANGER, GROUP, "⏹ Stop")
    await world.api.until(lambda: world.api.toasts)
    assert world.api.toasts == ["This is not for you to decide."]
    assert world.kernel.cancelled == []
    gate.end()
    await world.delivered()


async def test_stop_button_of_an_ended_answer_cancels_nothing(world: World) -> None:
    gate = await answering(world)
    old = world.api.shown(ADA)[0].markup
    gate.end()
    await world.delivered()
    gate = Gated("A second answer that is long enough to be shown.")
    world.kernel.agent = gate
    world.api.says(ADA, "again")
    await world.api.until(lambda: len(world.kernel.received) == 2)
    world.api.shown(ADA)[0].markup = old
    await gate.say()
    await world.api.until(lambda: len(world.api.shown(ADA)) == 2)
    world.api.shown(ADA)[1].markup = []
    world.api.presses(ADA, ADA, "⏹ Stop")
    await world.api.until(lambda: world.api.toasts)
    assert world.api.toasts == ["It is over already."]
    assert world.kernel.cancelled == []
    gate.end()
    await world.delivered()


async def test_stop_without_an_answer_is_reported(world: World) -> None:
    await world.start()
    world.api.says(ADA, "/stop")
    await world.api.until(lambda: world.api.texts(ADA) == ["Nothing is being answered."])
    await world.delivered()


@pytest.mark.parametrize("command", ["/start", "/help"])
async def test_help_command_shows_the_help(world: World, command: str) -> None:
    await world.start()
    world.api.says(ADA, command)
    await world.api.until(lambda: "/stop stops the answer" in "".join(world.api.texts(ADA)))
    await world.delivered()
    assert world.kernel.received == []


async def test_new_command_starts_a_new_conversation(world: World) -> None:
    await world.start()
    world.api.says(ADA, "/new")
    await world.api.until(lambda: world.api.texts(ADA) == ["This is a new conversation."])
    await world.delivered()
    assert world.kernel.sessions == ["7"]


async def test_message_without_text_is_refused(world: World) -> None:
    await world.start()
    world.api.says(ADA, "")
    await world.api.until(lambda: world.api.texts(ADA) == ["I can only read text, photos and documents so far."])
    await world.delivered()


# Approvals


async def asking(world: World, chat_id: int = ADA, ask: ApprovalAsk = ASK) -> Gated:
    gate = Gated(ask)
    world.agent = gate
    await world.start()
    world.api.says(ADA, "@TurnBot delete it", chat_id=chat_id)
    await world.api.until(lambda: world.kernel.received)
    await gate.say()
    await world.api.until(lambda: any(message.buttons for message in world.api.shown(chat_id)))
    return gate


@pytest.mark.parametrize(
    ("button", "approved", "outcome"), [("✅ Approve", True, "✅ Approved"), ("🚫 Deny", False, "🚫 Denied")]
)
async def test_approval_button_decides_and_shows_the_outcome(
    world: World, button: str, approved: bool, outcome: str
) -> None:
    gate = await asking(world)
    (message,) = world.api.shown(ADA)
    assert message.text.startswith("🔐 May delete_file run?\n\nYou asked for it.")
    assert message.styled("pre") == ['{\n "path": "a*b_c `x`"\n}']
    assert message.buttons == ["✅ Approve", "🚫 Deny"]
    world.api.presses(ADA, ADA, button)
    await world.api.until(lambda: world.api.shown(ADA)[0].text.endswith(f"{outcome} by Ada"))
    assert world.kernel.decided == [("t1", "c1", approved, "telegram:7")]
    assert world.api.shown(ADA)[0].buttons == []
    gate.end()
    await world.delivered()


async def test_approval_shows_characters_that_hide_others_and_says_what_it_leaves_out(world: World) -> None:
    args = {"path": "\u202etxt.exe", "text": "x" * 2_000}
    gate = await asking(world, ask=ApprovalAsk(turn_id="t1", call_id="c1", tool="delete_file", args=args))
    (message,) = world.api.shown(ADA)
    shown = json.dumps(args, indent=1)
    assert message.styled("pre") == [shown[:1_500]]
    assert message.text.endswith(f"{len(shown) - 1_500} more characters are not shown.")
    gate.end()
    await world.delivered()


async def test_stranger_cannot_decide(world: World) -> None:
    gate = await asking(world, GROUP)
    world.api.presses(STRANGER, GROUP, "✅ Approve")
    await world.api.until(lambda: world.api.toasts)
    assert world.kernel.decided == []
    world.api.presses(BOB, GROUP, "🚫 Deny", name="Bob_*")
    await world.api.until(lambda: world.api.shown(GROUP)[0].text.endswith("Denied by Bob_*"))
    gate.end()
    await world.delivered()


async def test_second_press_of_an_approval_decides_nothing(world: World) -> None:
    gate = await asking(world)
    world.api.presses(ADA, ADA, "✅ Approve")
    world.api.presses(ADA, ADA, "🚫 Deny")
    await world.api.until(lambda: len(world.api.toasts) == 2)
    assert len(world.kernel.decided) == 1
    assert "It is decided already." in world.api.toasts
    gate.end()
    await world.delivered()


async def test_late_decision_is_reported(world: World) -> None:
    gate = await asking(world)
    world.kernel.decision_error = TurnEndedError("t1")
    world.api.presses(ADA, ADA, "✅ Approve")
    await world.api.until(lambda: world.api.shown(ADA)[0].text.endswith("It was too late to decide."))
    gate.end()
    await world.delivered()


async def test_decision_that_the_store_failed_to_record_is_made_by_the_next_process(world: World) -> None:
    await asking(world)
    world.kernel.decision_error = StoreAwayError("the database")
    world.api.presses(ADA, ADA, "✅ Approve")
    with pytest.raises(StoreAwayError):
        await world.service_ended()
    await world.crash()
    gate = Gated(ASK)
    world.agent = gate
    await world.start()
    await world.api.until(lambda: world.kernel.decided == [("t1", "c1", True, "telegram:7")])
    await world.api.until(lambda: world.api.shown(ADA)[0].text.endswith("✅ Approved by Ada"))
    gate.end()
    await world.delivered()


async def test_approval_request_survives_a_crash_and_is_posted_once(world: World) -> None:
    await asking(world)
    await world.crash()
    gate = Gated(ASK)
    world.agent = gate
    await world.start()
    await world.api.until(lambda: world.kernel.received)
    await gate.say()
    world.api.presses(ADA, ADA, "✅ Approve")
    await world.api.until(lambda: world.kernel.decided)
    gate.end()
    await world.delivered()
    assert sum("May delete_file run?" in text for text in world.api.texts(ADA)) == 1
