"""Access: lists, pairing and refusals."""

import re
import time
from types import SimpleNamespace

import pytest

from tests.channels.telegram.world import ADA, GROUP, STRANGER, World


def code_in(caplog: pytest.LogCaptureFixture) -> str:
    return re.findall(r"/pair ([A-Z0-9]{8})", caplog.text)[-1]


async def says(world: World, text: str, sender_id: int = ADA, answers: int = 1) -> None:
    """Send a message and wait until everything that it causes is done."""
    count = len(world.api.shown(sender_id))
    world.api.says(sender_id, text)
    await world.api.until(lambda: len(world.api.shown(sender_id)) >= count + answers)
    await world.delivered()


async def test_first_stranger_does_not_become_the_owner(world: World) -> None:
    await world.start(allowed_users=[])
    assert (await world.health())[0] == "unconfigured"
    await says(world, "/start", STRANGER)
    world.api.says(STRANGER, "hello")
    await says(world, "/pair WRONGONE", STRANGER)
    assert world.kernel.received == []
    assert (await world.health())[0] == "unconfigured"


async def test_channel_without_users_and_pairing_is_unconfigured(world: World) -> None:
    await world.start(allowed_users=[], pairing=False)
    state, hint = await world.health()
    assert state == "unconfigured"
    assert "allowed_users" in hint
    await says(world, "/pair ANYTHING", STRANGER)
    assert world.kernel.received == []


async def test_pairing_code_in_the_log_works_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(allowed_users=[])
    code = code_in(caplog)
    await says(world, f"/pair {code.lower()}")
    assert world.api.texts(ADA)[0].startswith("Welcome, Ada.")
    await world.api.until(lambda: True)
    assert (await world.health())[0] == "running"
    await says(world, "hello")
    assert world.api.texts(ADA)[-1] == "You said: hello"
    # It works for nobody else, and after a restart no new one is made.
    await says(world, f"/pair {code}", STRANGER)
    assert "only people I know" in world.api.texts(STRANGER)[0]
    await world.crash()
    caplog.clear()
    await world.start()
    assert "/pair" not in caplog.text
    await says(world, "again")
    assert world.api.texts(ADA)[-1] == "You said: again"
    assert [text for text, *_ in world.kernel.received] == ["again"]


async def test_start_link_with_the_code_pairs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(allowed_users=[])
    await says(world, f"/start {code_in(caplog)}")
    assert world.api.texts(ADA)[0].startswith("Welcome, Ada.")


async def test_pairing_code_is_closed_after_five_tries(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(allowed_users=[])
    for number in range(5):
        await says(world, f"/pair GUESS{number:03d}", STRANGER)
    # The right one comes too late.
    await says(world, f"/pair {code_in(caplog)}")
    assert "only people I know" in world.api.texts(ADA)[0]
    # Further tries do not make a new one.
    assert len(re.findall("/pair [A-Z0-9]{8}", caplog.text)) == 1


async def test_pairing_code_expires(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(allowed_users=[], pairing_minutes=15)
    old = code_in(caplog)
    later = time.time() + 15 * 60
    monkeypatch.setattr("turnwire.channels.telegram.access.time", SimpleNamespace(time=lambda: later))
    await says(world, f"/pair {old}")
    assert "only people I know" in world.api.texts(ADA)[0]
    # The log has the next one.
    assert code_in(caplog) != old


async def test_pairing_code_is_stored_as_a_digest(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(allowed_users=[])
    assert code_in(caplog) not in world.stored_text()


async def test_pairing_in_a_group_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start(allowed_users=[])
    world.api.says(ADA, f"/pair@TurnBot {code_in(caplog)}", chat_id=GROUP)
    await world.api.until(lambda: world.api.shown(GROUP))
    await world.delivered()
    assert "only people I know" in world.api.texts(GROUP)[0]


async def test_stranger_is_refused_once(world: World) -> None:
    await world.start()
    await says(world, "hello", STRANGER)
    assert f"Your id is {STRANGER}" in world.api.texts(STRANGER)[0]
    for _ in range(5):
        world.api.says(STRANGER, "hello?")
    await says(world, "hello", ADA)
    assert len(world.api.texts(STRANGER)) == 1
    assert [user_id for _, user_id, *_ in world.kernel.received] == ["7"]


async def test_refusals_of_many_strangers_are_limited(world: World) -> None:
    await world.start()
    for number in range(40):
        world.api.says(5000 + number, "hello")
    await says(world, "hello", ADA)
    refused = [call for call in world.api.made("sendMessage") if "only people" in call.text]
    assert 0 < len(refused) <= 20
    assert world.api.too_many == []


async def test_members_of_an_allowed_group_have_access(world: World) -> None:
    await world.start(allowed_users=[GROUP])
    world.api.says(STRANGER, "@TurnBot hello", chat_id=GROUP)
    await world.api.until(lambda: world.api.texts(GROUP) == ["You said: hello"])
    await world.delivered()
    assert world.kernel.received[0][2] == f"telegram:{STRANGER}"
