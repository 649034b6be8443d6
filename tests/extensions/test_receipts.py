"""Message receipts: `accept` returns when the message is durable, `answer` when the channel has taken the answer."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.extensions.harness import BASE, CHANNEL, PLAIN, STREAMING, running, write_extension
from tests.serving import PATIENCE, Puppet, saying, until, within
from turnwire.core.errors import ShuttingDownError
from turnwire.extensions.calls import ExtensionLimits

SLOW_CONTEXT = (
    BASE
    + """
class Main(Base):
    async def initialize(self, context):
        await super().initialize(context)
        self.gate = asyncio.Event()
    async def get_context(self, prompt, agent_id):
        await self.gate.wait()
"""
)

BUFFERED = (
    CHANNEL
    + """
    posted = asyncio.Event()
    async def wait_for_delivery(self, user_id):
        self.calls.append(("wait", user_id, self.context.current_message(user_id)))
        if len(self.calls) > 1:
            await self.posted.wait()
"""
)


async def test_accept_returns_before_the_turn_is_started(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "slow", SLOW_CONTEXT)
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        context = kernel.extension("chat").context
        receipts = [await within(context.accept(text, "ann", message_id=text)) for text in ("one", "two")]
        assert await kernel.turnwire.store.list_turns("chat:ann") == []
        assert [(receipt.message_id, receipt.user_id) for receipt in receipts] == [("one", "ann"), ("two", "ann")]
        kernel.extension("slow").gate.set()
        assert await within(asyncio.gather(*(receipt.answer() for receipt in receipts))) == ["hello", "hello"]
        turns = await kernel.turnwire.store.list_turns("chat:ann")
        assert sorted(turn.message for turn in turns) == ["one", "two"]


async def test_answer_returns_after_the_channel_has_taken_it(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", puppet) as kernel:
        receipt = await within(kernel.extension("chat").context.accept("hi", "ann"))
        answer = asyncio.create_task(receipt.answer())
        part = await puppet.part()
        part.say("Hello.")
        await until(lambda: bool(kernel.calls("chat", "chunk")))
        assert not answer.done()
        part.end()
        assert await within(answer) == "Hello."
        assert kernel.calls("chat")[-1] == ("end", "ann", "Hello.")
        # It can be read again, and by somebody else.
        assert await within(receipt.answer()) == "Hello."


async def test_cancelling_a_call_of_answer_does_not_cancel_the_answer(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        receipt = await within(kernel.extension("chat").context.accept("hi", "ann"))
        answer = asyncio.create_task(receipt.answer())
        part = await puppet.part()
        answer.cancel()
        await asyncio.wait([answer])
        part.say("Hello.")
        part.end()
        assert await within(receipt.answer()) == "Hello."


async def test_message_id_that_was_accepted_before_is_answered_once(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        context = kernel.extension("chat").context
        receipts = await within(asyncio.gather(*(context.accept("hi", "ann", message_id="a:1") for _ in range(3))))
        part = await puppet.part()
        part.say("once")
        part.end()
        for receipt in [*receipts, await within(context.accept("hi", "ann", message_id="a:1"))]:
            assert (receipt.message_id, await within(receipt.answer())) == ("a:1", "once")
        assert kernel.calls("chat") == [("send", "ann", "once")]
        assert len(puppet.parts) == 1


async def test_message_without_an_id_gets_one_and_blank_message_a_blank_answer(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        context = kernel.extension("chat").context
        first, second = await within(context.accept("a", "ann")), await within(context.accept("a", "ann"))
        assert first.message_id != second.message_id
        blank = await within(context.accept("  ", "ann"))
        assert await within(blank.answer()) == ""
        await within(second.answer())
        assert len(kernel.calls("chat")) == 2


async def test_current_message_is_the_message_being_answered(tmp_path: Path) -> None:
    code = STREAMING.replace('(("start", user_id))', '(("start", self.context.current_message(user_id).message_id))')
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        context = kernel.extension("chat").context
        assert context.current_message("ann") is None
        receipts = [await within(context.accept("hi", "ann", message_id=id)) for id in ("7:1", "7:2")]
        await within(asyncio.gather(*(receipt.answer() for receipt in receipts)))
        assert kernel.calls("chat", "start") == [("start", "7:1"), ("start", "7:2")]
        await until(lambda: context.current_message("ann") is None)


async def test_buffered_channel_gets_the_next_answer_after_posting_the_last(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", BUFFERED)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        extension = kernel.extension("chat")
        first = await within(extension.context.accept("one", "ann"))
        assert await within(first.answer()) == "hello"
        second = await within(extension.context.accept("two", "ann"))
        await until(lambda: len(kernel.calls("chat", "wait")) == 2)
        assert len(kernel.calls("chat", "start")) == 1
        # Another user does not wait.
        extension.calls.clear()
        assert await kernel.say("chat", "three", "bob") == "hello"
        assert kernel.calls("chat", "start") == [("start", "bob")]
        extension.posted.set()
        assert await within(second.answer()) == "hello"


async def test_failing_wait_for_delivery_costs_no_answer(tmp_path: Path) -> None:
    code = CHANNEL + "\n    async def wait_for_delivery(self, user_id): raise OSError('no network')\n"
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        assert await kernel.say("chat") == "hello"


async def test_message_accepted_while_draining_is_left_to_the_next_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("no"), store="sqlite", data=tmp_path / "d") as kernel:
        kernel.turnwire.drain()
        receipt = await within(kernel.extension("chat").context.accept("late", "ann", message_id="7"))
        with pytest.raises(ShuttingDownError):
            await within(receipt.answer())
    async with running(tmp_path / "x", saying("yes"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "yes")])


CHILD = """
import asyncio, sys
from turnwire import Settings, Turnwire

async def silent(turn):
    await asyncio.Event().wait()
    yield ""

async def main():
    settings = Settings(data=sys.argv[1], documents={"embeddings": "off"})
    turnwire = Turnwire(silent, settings=settings, extensions=[sys.argv[2]])
    async with turnwire.lifespan():
        for number in range(5):
            await turnwire.extensions.hosts["chat"].extension.context.accept(str(number), "ann")
            print(number, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.process
async def test_accepted_messages_survive_a_kill(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    arguments = ("-c", CHILD, str(tmp_path / "d"), str(tmp_path / "x"))
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE * 3):
        for _ in range(5):
            await child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        await child.wait()
    limits = ExtensionLimits()
    async with running(tmp_path / "x", saying("yes"), store="sqlite", data=tmp_path / "d", limits=limits) as kernel:
        # The turn that ran was lost, which is an answer too.
        await until(lambda: len(kernel.calls("chat", "send")) == 5)
        turns = await kernel.turnwire.store.list_turns("chat:ann")
        assert [turn.message for turn in turns] == ["0", "1", "2", "3", "4"]
