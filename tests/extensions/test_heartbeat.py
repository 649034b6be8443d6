"""The heartbeat of examples/extensions, which speaks through a channel on its own."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.harness import PLAIN, STREAMING, running, write_extension
from tests.serving import Puppet, saying, until, within

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions" / "heartbeat"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_extension(tmp_path / "x", "chat", STREAMING)
    shutil.copytree(EXAMPLE, tmp_path / "x" / "heartbeat")
    monkeypatch.setenv("TURNWIRE_EXTENSION_HEARTBEAT_CHANNEL", "chat")
    monkeypatch.setenv("TURNWIRE_EXTENSION_HEARTBEAT_USER_ID", "ann")
    return tmp_path / "x"


async def test_heartbeat_streams_through_the_channel_without_being_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_EXTENSION_HEARTBEAT_EVERY_MINUTES", "0.0001")
    puppet = Puppet()
    async with running(folder, puppet) as kernel:
        part = await puppet.part()
        part.say("All ")
        await until(lambda: ("chunk", "ann", "All ") in kernel.calls("chat"))
        assert not part.over.is_set()
        part.say("is well.")
        part.end()
        await until(lambda: ("end", "ann", "All is well.") in kernel.calls("chat"))
        assert kernel.calls("chat")[0] == ("start", "ann")


async def test_user_replies_to_a_heartbeat_in_the_same_conversation(folder: Path) -> None:
    async def count(turn: Any) -> Any:
        yield str(len(turn.history))

    async with running(folder, count) as kernel:
        await within(kernel.extension("heartbeat").beat())
        assert await kernel.say("chat") == "2"


async def test_heartbeat_to_a_channel_that_does_not_stream_is_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_extension(folder, "plain", PLAIN)
    monkeypatch.setenv("TURNWIRE_EXTENSION_HEARTBEAT_CHANNEL", "plain")
    async with running(folder, saying("All ", "is well.")) as kernel:
        await within(kernel.extension("heartbeat").beat())
        assert kernel.calls("plain") == [("send", "ann", "All is well.")]


async def test_prompt_with_the_same_id_is_answered_once(folder: Path) -> None:
    async with running(folder, saying("Hi.")) as kernel:
        context = kernel.extension("chat").context
        for _ in range(2):
            assert await within(context.speak_to_user("chat", "ann", "Hello", message_id="m1")) == "Hi."
        assert len(await kernel.turnwire.store.list_turns("chat:ann")) == 1


async def test_heartbeat_reports_a_missing_channel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_EXTENSION_HEARTBEAT_CHANNEL", "mail")
    async with running(folder, saying("Hi.")) as kernel:
        await kernel.extension("heartbeat").beat()
        await kernel.runtime.loader.check_all()
        assert kernel["heartbeat"].state == "degraded"
        assert "there is no channel 'mail'" in kernel["heartbeat"].message
