"""Isolation: what one channel, user or extension does costs the agent, other readers and other users nothing."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.harness import BASE, CHANNEL, LIMITS, PLAIN, STREAMING, running, write_extension
from tests.serving import PATIENCE, Puppet, saying, until, within
from turnwire import Turn
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent
from turnwire.extensions.channels import TurnListener, follow_turn
from turnwire.extensions.contract import StreamStep

SLOW = (
    STREAMING
    + """
    async def initialize(self, context):
        await super().initialize(context)
        self.gate = asyncio.Event()
        self.at_once = 0
    async def on_stream_chunk(self, user_id, chunk):
        self.at_once += 1
        assert self.at_once == 1, "called while it was still busy"
        self.calls.append(("chunk", user_id, chunk))
        await self.gate.wait()
        self.at_once -= 1
"""
)


async def test_stuck_channel_does_not_delay_the_agent(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", SLOW)
    finished = asyncio.Event()

    async def answer(turn: Turn) -> Any:
        for number in range(500):
            yield f"{number} "
            await asyncio.sleep(0)
        yield ToolCallEvent("c1", "look", {})
        yield "end"
        finished.set()

    async with running(tmp_path / "x", answer, limits=replace(LIMITS, channel_timeout=10)) as kernel:
        answering = kernel.saying("chat")
        await until(lambda: len(kernel.calls("chat", "chunk")) == 1)
        # The agent has finished while its first words are still being shown.
        await within(finished.wait())
        (turn,) = await kernel.turnwire.store.list_turns("chat:ann")
        await within(follow_turn(kernel.turnwire.store, turn.id, TurnListener()))
        assert len(kernel.calls("chat")) == 2
        kernel.extension("chat").gate.set()
        text = await within(answering)
        calls = kernel.calls("chat")
    # The rest came in few long chunks, with the step and the end.
    assert "".join(call[2] for call in calls if call[0] == "chunk") == text
    assert len([call for call in calls if call[0] == "chunk"]) < 50
    assert ("status", "ann", "Using: look") in calls
    assert calls[-1] == ("end", "ann", text)


async def test_stuck_channel_does_not_delay_another_reader(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "stuck", SLOW)
    write_extension(tmp_path / "x", "quick", STREAMING)
    async with running(tmp_path / "x", saying("hello"), limits=replace(LIMITS, channel_timeout=10)) as kernel:
        stuck = kernel.saying("stuck")
        await until(lambda: len(kernel.calls("stuck", "chunk")) == 1)
        assert await kernel.say("quick") == "hello"
        kernel.extension("stuck").gate.set()
        await within(stuck)


async def test_two_users_are_answered_concurrently(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", puppet) as kernel:
        ann, bob = kernel.saying("chat", "one"), kernel.saying("chat", "two", "bob")
        first, second = await puppet.part(), await puppet.part()
        assert {first.turn.message, second.turn.message} == {"one", "two"}
        for part in (second, first):
            part.say(f"for {part.turn.principal}")
            part.end()
        assert await within(asyncio.gather(ann, bob)) == ["for chat:ann", "for chat:bob"]


async def test_invoke_agent_does_not_wait_for_users(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        talking = kernel.saying("chat")
        held = await puppet.part()
        asking = asyncio.create_task(kernel.extension("chat").context.invoke_agent("what is new?"))
        own = await puppet.part()
        own.say("nothing")
        own.end()
        assert await within(asking) == "nothing"
        held.end()
        await within(talking)


async def test_tool_is_a_step_with_an_id_a_start_and_an_end(tmp_path: Path) -> None:
    code = CHANNEL + "\n    async def on_stream_step(self, user_id, step): self.calls.append(step)\n"
    write_extension(tmp_path / "x", "chat", code)
    work = (
        ToolCallEvent("a", "search", {"q": "1"}),
        ToolCallEvent("b", "search", {"q": "2"}),
        ToolResultEvent("b", "search", False, "no", 5.0),
        ToolResultEvent("a", "search", True, "yes", 9.0),
    )
    async with running(tmp_path / "x", saying(*work, "done")) as kernel:
        await kernel.say("chat")
        steps = [call for call in kernel.extension("chat").calls if isinstance(call, StreamStep)]
    assert [(step.id, step.phase, step.elapsed_ms) for step in steps] == [
        ("a", "started", None),
        ("b", "started", None),
        ("b", "failed", 5.0),
        ("a", "finished", 9.0),
    ]


async def test_cancel_works_while_the_channel_is_stuck(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", SLOW)
    async with running(tmp_path / "x", puppet, limits=replace(LIMITS, channel_timeout=10)) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        part.say("Well, ")
        await until(lambda: len(kernel.calls("chat", "chunk")) == 1)
        assert await within(kernel.extension("chat").context.cancel("ann"))
        await within(part.over.wait())
        kernel.extension("chat").gate.set()
        assert await within(answering) == "Well, \n\n(Stopped.)"


async def test_answers_to_one_user_are_never_mixed(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", puppet) as kernel:
        first = kernel.saying("chat", "one")
        first_part = await puppet.part()
        await kernel.extension("chat").context.new_session("ann")
        second = kernel.saying("chat", "two")
        # Another session, so both turns run; both answers go to the same user.
        second_part = await puppet.part()
        for number in range(5):
            first_part.say(f"a{number}")
            second_part.say(f"b{number}")
        second_part.end()
        first_part.end()
        assert await within(asyncio.gather(first, second)) == ["a0a1a2a3a4", "b0b1b2b3b4"]
        calls = kernel.calls("chat")
    ends = [index for index, call in enumerate(calls) if call[0] == "end"]
    assert all(call[2].startswith("a") for call in calls[1 : ends[0]])
    assert calls[ends[0] + 1] == ("start", "ann")


async def test_unconfigured_extension_is_neither_failed_nor_stopped(tmp_path: Path) -> None:
    code = (
        BASE
        + """
class Main(Base):
    is_paired = False
    async def health_check(self):
        return Health("running") if self.is_paired else Health("unconfigured", "nobody is paired", "send /start")
    async def stop(self):
        self.calls.append("stopped")
"""
    )
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", saying(), limits=replace(LIMITS, health_interval=0.005)) as kernel:
        hosted, extension = kernel["chat"], kernel.extension("chat")
        await until(lambda: hosted.state == "unconfigured")
        for _ in range(5):
            await kernel.runtime.loader.check_all()
        assert (hosted.state, hosted.message, hosted.hint) == ("unconfigured", "nobody is paired", "send /start")
        assert hosted.is_up
        assert extension.calls == []
        extension.is_paired = True
        await until(lambda: hosted.state == "running")


async def test_unhealthy_extension_is_reported_and_not_stopped(tmp_path: Path) -> None:
    code = PLAIN + "\n    async def health_check(self): return Health('failed', 'ill')\n"
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        assert kernel["chat"].state == "failed"
        assert await kernel.say("chat") == "hello"


async def test_users_of_a_channel_share_no_session(tmp_path: Path) -> None:
    seen: list[Turn] = []

    async def answer(turn: Turn) -> str:
        seen.append(turn)
        return "yes"

    write_extension(tmp_path / "x", "chat", PLAIN)
    write_extension(tmp_path / "x", "mail", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        await kernel.say("chat", user_id="1")
        await kernel.say("chat", user_id="2")
        await kernel.say("mail", user_id="1")
        assert len(await kernel.turnwire.store.list_sessions("chat:1")) == 1
    assert [turn.principal for turn in seen] == ["chat:1", "chat:2", "mail:1"]
    assert len({turn.session_id for turn in seen}) == 3
    assert all(turn.history == () for turn in seen)


async def test_extensions_load_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extension = write_extension(tmp_path / "far" / "away", "pair", "from .other import Main")
    (extension / "other.py").write_text(BASE + "class Main(Base): ...")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with running(Path(os.path.relpath(tmp_path / "far" / "away")), saying(), data=tmp_path / "d") as kernel:
        assert kernel["pair"].state == "running", kernel["pair"].message


async def test_slow_channel_costs_at_most_the_limit(tmp_path: Path) -> None:
    code = STREAMING + "".join(
        f"\n    async def {name}(self, *args): await asyncio.Event().wait()\n"
        for name in ("on_stream_start", "on_stream_chunk", "on_stream_status", "on_stream_end", "send_to_user")
    )
    write_extension(tmp_path / "x", "chat", code)
    limits = replace(LIMITS, channel_timeout=0.05, delivery_attempts=1)
    # Each of those calls would last for ever.
    async with (
        asyncio.timeout(PATIENCE),
        running(tmp_path / "x", saying("a", ToolCallEvent("c", "t", {}), "b"), limits=limits) as kernel,
    ):
        assert await kernel.say("chat") == "ab"
