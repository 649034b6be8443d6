"""The scheduler of examples/extensions, which sends messages on its own."""

import shutil
from pathlib import Path

import pytest

from tests.extensions.harness import PLAIN, running, write_extension
from tests.serving import saying, until
from turnwire import AgentError, Turn

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions" / "scheduler"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_extension(tmp_path / "x", "chat", PLAIN)
    shutil.copytree(EXAMPLE, tmp_path / "x" / "scheduler")
    return tmp_path / "x"


async def test_scheduler_sends_answers_on_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_EVERY_MINUTES", "0.0001")
    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_CHANNEL", "chat")
    async with running(folder, saying("Nothing new.")) as kernel:
        await until(lambda: kernel.calls("chat")[:2] == [("message", "Nothing new.")] * 2)
        turns = await kernel.turnwire.store.list_turns("extension:scheduler")
        assert turns[0].message == "What should I know now?"


async def test_scheduler_sends_to_the_configured_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_CHANNEL", "chat")
    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_USER_ID", "ann")
    async with running(folder, saying("Good morning.")) as kernel:
        await kernel.extension("scheduler").speak()
        assert kernel.calls("chat") == [("send", "ann", "Good morning.")]


async def test_scheduler_is_degraded_by_a_failure_and_recovers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [True, False]

    async def answer(turn: Turn) -> str:
        if fails.pop(0):
            raise AgentError("the model sleeps")
        return "Awake."

    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_CHANNEL", "chat")
    async with running(folder, answer) as kernel:
        scheduler = kernel.extension("scheduler")
        await scheduler.speak()
        await kernel.runtime.loader.check_all()
        assert kernel["scheduler"].state == "degraded"
        assert kernel["scheduler"].message == "the agent did not answer: the model sleeps"
        await scheduler.speak()
        await kernel.runtime.loader.check_all()
        assert kernel["scheduler"].state == "running"
        assert kernel.calls("chat") == [("message", "Awake.")]


async def test_scheduler_reports_a_missing_channel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_EXTENSION_SCHEDULER_CHANNEL", "mail")
    async with running(folder, saying("hello")) as kernel:
        await kernel.extension("scheduler").speak()
        await kernel.runtime.loader.check_all()
        assert "there is no channel 'mail'; there is chat" in kernel["scheduler"].message
