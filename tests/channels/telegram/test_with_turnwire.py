"""End to end, in real time: a real Turnwire with its kernel, the bundled channel and the simulator."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.channels.telegram.bot_api import TOKEN, BotApi
from tests.channels.telegram.world import ADA
from tests.core.desk import Gate
from tests.serving import PATIENCE, Puppet, quick_settings, until, within
from turnwire import Turnwire, ask, read_file, take_inputs
from turnwire.channels.telegram import channel, records
from turnwire.channels.telegram.client import Clock
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, Event, QuestionEvent, ReplyEvent, RestartEvent, SearchEvent
from turnwire.core.log.follow import read_all
from turnwire.core.log.turns import Turn

pytestmark = pytest.mark.long

HOUR = 3600.0
ANSWER = "An **answer** that is long enough to be shown at once. "


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[BotApi]:
    async with BotApi(Clock(), PATIENCE) as made:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("TELEGRAM_BOT_TOKEN", TOKEN)
        monkeypatch.setenv("TURNWIRE_EXTENSION_CONSOLE_ENABLED", "false")
        monkeypatch.setenv("TURNWIRE_EXTENSION_TELEGRAM_API_URL", made.url)
        monkeypatch.setenv("TURNWIRE_EXTENSION_TELEGRAM_ALLOWED_USERS", f"[{ADA}]")
        yield made


@asynccontextmanager
async def running(folder: Path, agent: Any) -> AsyncIterator[Turnwire]:
    turnwire = Turnwire(agent, store="sqlite", settings=quick_settings(folder), extensions=[])
    async with turnwire.lifespan():
        yield turnwire


@pytest.fixture
def pass_hour(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that lets an hour pass for the channel and the simulator. A stop hardly waits meanwhile."""
    passed = [0.0]
    now, wall = Clock.now, time.time
    monkeypatch.setattr(Clock, "now", lambda clock: now(clock) + passed[0])
    monkeypatch.setattr(records, "time", SimpleNamespace(time=lambda: wall() + passed[0]))
    monkeypatch.setattr(channel, "_STOP_SECONDS", 0.1)
    return lambda: passed.append(passed.pop() + HOUR)


async def test_answer_grows_while_the_agent_works(api: BotApi, tmp_path: Path) -> None:
    puppet = Puppet()
    async with running(tmp_path, puppet) as turnwire:
        assert turnwire.extensions is not None
        api.says(ADA, "hello")
        part = await puppet.part()
        assert part.turn.message == "hello"
        part.say(SearchEvent("s1", "started", "notes", "tea"))
        await api.until(lambda: "".join(api.texts(ADA)).startswith("🔎 notes: tea · "))
        part.say(SearchEvent("s1", "finished", "notes", "tea", hits=()), ANSWER)
        await api.until(lambda: api.texts(ADA) == ["An answer that is long enough to be shown at once."])
        assert api.shown(ADA)[0].buttons == ["⏹ Stop"]
        part.say("The end.")
        part.end()
        await api.until(lambda: api.texts(ADA) == ["An answer that is long enough to be shown at once. The end."])
        (shown,) = api.shown(ADA)
        assert (shown.buttons, shown.styled("bold")) == ([], ["answer"])
        assert len(await turnwire.store.list_sessions("telegram:7")) == 1
    assert api.too_many == []


async def test_message_during_an_answer_enters_it_and_is_not_answered_apart(api: BotApi, tmp_path: Path) -> None:
    gate = Gate()

    async def listening(turn: Turn) -> AsyncIterator[str]:
        yield f"To {turn.message}: {ANSWER}"
        await gate.wait()
        yield ", ".join([*await take_inputs(), "done"])

    async with running(tmp_path, listening) as turnwire:
        api.says(ADA, "hello")
        await gate.reached()
        store, accepted = turnwire.store, asyncio.Event()
        (session,) = await store.list_sessions("telegram:7")
        unwatch = store.watch(session.id, lambda _: accepted.set())
        api.says(ADA, "and more")
        await within(accepted.wait())
        unwatch()
        gate.open()
        answer = f"To hello: {ANSWER}and more, done".replace("**", "")
        await api.until(lambda: api.texts(ADA) == [answer])
        api.says(ADA, "again")
        await api.until(lambda: len(api.texts(ADA)) == 2)
        assert api.texts(ADA)[1] == f"To again: {ANSWER}done".replace("**", "")
        async with asyncio.timeout(PATIENCE):  # The answer is shown whole before its turn has ended.
            while (turns := await store.list_turns("telegram:7"))[-1].outcome is None:  # noqa: ASYNC110 - the store knows
                await asyncio.sleep(0.01)
        assert [turn.outcome for turn in turns] == ["completed", "joined", "completed"]


async def test_restart_replaces_the_text_that_was_shown(api: BotApi, tmp_path: Path) -> None:
    puppet = Puppet()
    async with running(tmp_path, puppet):
        api.says(ADA, "hello")
        part = await puppet.part()
        part.say(ANSWER)
        await api.until(lambda: api.texts(ADA) == ["An answer that is long enough to be shown at once."])
        part.say(RestartEvent(2, "worker_lost"), "Again")
        await api.until(lambda: [text.partition("\n")[0] for text in api.texts(ADA)] == ["Again"])
        part.say(" and whole.")
        part.end()
        await api.until(lambda: api.texts(ADA) == ["Again and whole."])


async def test_stop_button_cancels_the_turn(api: BotApi, tmp_path: Path) -> None:
    puppet = Puppet()
    async with running(tmp_path, puppet) as turnwire:
        api.says(ADA, "hello")
        part = await puppet.part()
        part.say(ANSWER)
        await api.until(lambda: api.shown(ADA))
        api.presses(ADA, ADA, "⏹ Stop")
        await within(part.over.wait())
        await api.until(lambda: "⏹ Stopped" in api.texts(ADA)[0])
        state = await turnwire.store.turn_state(part.turn.id)
        assert state is not None
        assert state.outcome == "cancelled"


async def test_unposted_answer_is_posted_by_the_next_process(
    api: BotApi, tmp_path: Path, pass_hour: Callable[[], None]
) -> None:
    puppet = Puppet()
    async with running(tmp_path, puppet):
        api.says(ADA, "hello")
        part = await puppet.part()
        part.say(ANSWER)
        await api.until(lambda: api.shown(ADA))
        # A second is left of it when the next process begins.
        api.flood(ADA, HOUR + 1)
        part.say("The end.")
        part.end()
        await api.until(lambda: api.too_many)
    assert "The end." not in api.texts(ADA)[0]
    pass_hour()
    async with running(tmp_path, Puppet()):
        await api.until(lambda: api.texts(ADA) == ["An answer that is long enough to be shown at once. The end."])
        await until(lambda: api.shown(ADA)[0].buttons == [])
    # The next process knows of the flood wait.
    assert len(api.too_many) == 1


async def test_answers_to_one_chat_are_posted_in_order_through_a_flood_wait(api: BotApi, tmp_path: Path) -> None:
    async def echo(turn: Turn) -> AsyncIterator[str]:
        yield f"{turn.message}: an answer that is long enough to be shown at once."

    async with running(tmp_path, echo) as turnwire:
        api.says(ADA, "one")
        await api.until(lambda: len(api.texts(ADA)) == 1)
        api.flood(ADA, 1)
        api.says(ADA, "two")
        api.says(ADA, "three")
        await api.until(lambda: len(api.texts(ADA)) == 3)
        await until(lambda: all(not message.buttons for message in api.shown(ADA)))
        assert [text.partition(":")[0] for text in api.texts(ADA)] == ["one", "two", "three"]
        turns = await turnwire.store.list_turns("telegram:7")
        assert [turn.message for turn in turns] == ["one", "two", "three"]


async def test_interrupted_turn_ends_in_the_message_that_it_began(
    api: BotApi, tmp_path: Path, pass_hour: Callable[[], None]
) -> None:
    puppet = Puppet()
    async with running(tmp_path, puppet):
        api.says(ADA, "hello")
        part = await puppet.part()
        part.say(ANSWER)
        await api.until(lambda: api.shown(ADA))
        api.flood(ADA, HOUR)
        # The server shuts down, and the end of the answer cannot be posted.
    assert len(api.texts(ADA)) == 1
    assert "(Error: " not in api.texts(ADA)[0]
    pass_hour()
    async with running(tmp_path, Puppet()):
        await api.until(lambda: "(Error: " in api.texts(ADA)[0])
        assert len(api.texts(ADA)) == 1


async def careful(turn: Turn) -> AsyncIterator[Any]:
    yield "I would delete it. "
    request = ApprovalRequestEvent("c1", "delete_file", {"path": "notes.md"}, "It is gone for good.")
    decision = await approval(request)
    yield f"{'Deleted.' if decision.approved else decision.denial} By {decision.by}."


@pytest.mark.parametrize(
    ("button", "answer"),
    [("✅ Approve", "Deleted. By telegram:7."), ("🚫 Deny", "Denied: the user did not allow this. By telegram:7.")],
    ids=["approved", "denied"],
)
async def test_approval_button_decides_whether_a_tool_runs(
    api: BotApi, tmp_path: Path, button: str, answer: str
) -> None:
    async with running(tmp_path, careful):
        api.says(ADA, "delete it")
        await api.until(lambda: any("May delete_file run?" in text for text in api.texts(ADA)))
        api.presses(ADA, ADA, button)
        await api.until(lambda: any(answer in text for text in api.texts(ADA)))


async def test_decision_after_a_restart_is_accepted(api: BotApi, tmp_path: Path) -> None:
    async with running(tmp_path, careful):
        api.says(ADA, "delete it")
        await api.until(lambda: any("May delete_file run?" in text for text in api.texts(ADA)))
    async with running(tmp_path, careful):
        api.presses(ADA, ADA, "✅ Approve")
        await api.until(lambda: any("Deleted. By telegram:7." in text for text in api.texts(ADA)))


async def test_broken_off_call_is_requested_again_after_a_restart(api: BotApi, tmp_path: Path) -> None:
    async def stuck(turn: Turn) -> Any:
        decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 40}))
        journal = current_journal()
        assert journal is not None
        with await journal.begin_tool("run", "c1", "pay", decision.args):
            await asyncio.Event().wait()
        yield ""

    stuck.on_crash = "resume"  # type: ignore[attr-defined]
    async with running(tmp_path, stuck):
        api.says(ADA, "pay")
        await api.until(lambda: sum("May pay run?" in text for text in api.texts(ADA)) == 1)
        api.presses(ADA, ADA, "✅ Approve")
        await api.until(lambda: any("Approved by" in text for text in api.texts(ADA)))
    async with running(tmp_path, stuck):
        await api.until(lambda: sum("May pay run?" in text for text in api.texts(ADA)) == 2)
        assert any("may have taken effect already" in text for text in api.texts(ADA))


# Files


async def see(turn: Turn) -> str:
    files = [f"{file.media_type} {file.name} {(await read_file(file)).hex()}" for file in turn.attachments]
    earlier = [file.name for message in turn.history for file in message.attachments]
    return f"{turn.message}: {files} {earlier}"


see.takes_attachments = ["image/*"]  # type: ignore[attr-defined]


async def test_photo_and_document_reach_the_agent_and_the_next_turn(api: BotApi, tmp_path: Path) -> None:
    async with running(tmp_path, see):
        api.says(ADA, "Look", photo=b"\xff\xd8jpeg")
        await api.until(lambda: api.texts(ADA))
        api.says(ADA, "", document=("cat.png", "image/png", b"\x89PNG"))
        await api.until(lambda: len(api.texts(ADA)) == 2)
    assert api.texts(ADA) == [
        "Look: ['image/jpeg photo.jpg ffd86a706567'] []",
        ": ['image/png cat.png 89504e47'] ['photo.jpg']",
    ]


async def test_file_that_cannot_be_taken_or_read_is_told(api: BotApi, tmp_path: Path) -> None:
    async with running(tmp_path, see):
        api.says(ADA, "Listen", document=("a.mp3", "audio/mpeg", b"ID3"))
        await api.until(lambda: api.texts(ADA))
        assert "takes image/*, and not audio/mpeg" in api.texts(ADA)[0]
        api.says(ADA, "Look", photo=b"jpeg")
        api.files.clear()
        await api.until(lambda: len(api.texts(ADA)) == 2)
        assert api.texts(ADA)[1].startswith("Sorry, I could not read this file.")


# Questions


async def events_of(turnwire: Turnwire, turn_id: str) -> list[Event]:
    return [logged.event async for page in read_all(turnwire.store, turn_id) for logged in page]


async def ordering(turn: Turn) -> AsyncIterator[str]:
    order = await ask("What would you like?", ORDER)
    yield f"{order['size']}, {order['cups']} times"


ORDER = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "cups": {"type": "integer", "minimum": 1}},
    "required": ["size", "cups"],
}


async def test_form_is_answered_by_button_and_message_over_restarts(api: BotApi, tmp_path: Path) -> None:
    async with running(tmp_path, ordering):
        api.says(ADA, "tea")
        await api.until(
            lambda: [message.buttons for message in api.shown(ADA)][-1:] == [["small", "large", "🚫 Decline"]]
        )
    async with running(tmp_path, ordering):
        api.presses(ADA, ADA, "large")
        await api.until(lambda: api.texts(ADA)[-1].endswith("Write the answer."))
    async with running(tmp_path, ordering) as turnwire:
        api.says(ADA, "0")
        await api.until(lambda: "This must be at least 1" in api.texts(ADA)[-1])
        api.says(ADA, "2")
        await api.until(lambda: "large, 2 times" in api.texts(ADA))
        (turn,) = await turnwire.store.list_turns("telegram:7")
        replies = [event for event in await events_of(turnwire, turn.id) if isinstance(event, ReplyEvent)]
        assert [(reply.value, reply.by) for reply in replies] == [({"size": "large", "cups": 2}, "telegram:7")]


async def test_question_answered_on_another_wire_is_closed_in_the_chat(api: BotApi, tmp_path: Path) -> None:
    async with running(tmp_path, ordering) as turnwire:
        api.says(ADA, "tea")
        await api.until(lambda: api.shown(ADA) and api.shown(ADA)[-1].buttons[-1:] == ["🚫 Decline"])
        (turn,) = await turnwire.store.list_turns("telegram:7")
        (question,) = [event for event in await events_of(turnwire, turn.id) if isinstance(event, QuestionEvent)]
        await turnwire.runner.reply(turn.id, question.id, {"size": "small", "cups": 1}, by="page")
        await api.until(lambda: any("This question is closed." in text for text in api.texts(ADA)))
        await api.until(lambda: "small, 1 times" in api.texts(ADA))
