"""Recovery: the next process delivers and publishes what the last one left."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.harness import BASE, LIMITS, LISTENER, PLAIN, STREAMING, running, write_extension
from tests.serving import PATIENCE, Puppet, quick_settings, saying, until, within
from turnwire import Turnwire
from turnwire.core.errors import ShuttingDownError, StoreError

HANGING = """
    async def send_to_user(self, user_id, message):
        await asyncio.Event().wait()
"""


async def test_answer_that_the_channel_refused_is_delivered_by_the_next_process(tmp_path: Path) -> None:
    extension = write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    write_extension(tmp_path / "x", "listener", LISTENER)
    async with running(tmp_path / "x", saying("at last"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat")
        await until(lambda: len(kernel.calls("listener", "agent_response")) == 1)
    (extension / "main.py").write_text(PLAIN)
    async with running(tmp_path / "x", saying("another"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "at last")])
        await kernel.say("chat")
        # It was answered once, however often it was delivered.
        await until(lambda: [call[1]["text"] for call in kernel.calls("listener", "agent_response")] == ["another"])
    async with running(tmp_path / "x", saying(), store="sqlite", data=tmp_path / "d") as kernel:
        assert kernel.calls("chat") == []


async def test_queued_turn_is_run_and_streamed_by_the_next_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING)
    puppet = Puppet()
    async with running(tmp_path / "x", puppet, store="sqlite", data=tmp_path / "d") as kernel:
        first, second = kernel.saying("chat", "one"), None
        await puppet.part()
        second = kernel.saying("chat", "two")
        await kernel.queued(2)
    assert "(Error: The server was stopped" in await within(first)
    assert isinstance((await within(asyncio.gather(second, return_exceptions=True)))[0], ShuttingDownError)
    puppet = Puppet()
    async with running(tmp_path / "x", puppet, store="sqlite", data=tmp_path / "d") as kernel:
        part = await puppet.part()
        await until(lambda: kernel.calls("chat") == [("start", "ann")])
        part.say("here")
        part.end()
        await until(lambda: ("end", "ann", "here") in kernel.calls("chat"))
        assert [call[0] for call in kernel.calls("chat")] == ["start", "chunk", "end"]


async def test_message_while_draining_is_answered_by_the_next_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("no"), store="sqlite", data=tmp_path / "d") as kernel:
        kernel.turnwire.drain()
        late = (await within(asyncio.gather(kernel.saying("chat", "late", message_id="7"), return_exceptions=True)))[0]
        assert isinstance(late, ShuttingDownError)
    async with running(tmp_path / "x", saying("yes"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "yes")])
        # The channel may send it again: it does not know that it was accepted.
        assert await kernel.say("chat", "late", message_id="7") == "yes"
        assert kernel.calls("chat") == [("send", "ann", "yes")]


async def test_answer_of_a_missing_channel_waits_for_it(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    (tmp_path / "empty").mkdir()
    limits = replace(LIMITS, delivery_attempts=1)
    async with running(tmp_path / "x", saying("hi"), store="sqlite", data=tmp_path / "d", limits=limits) as kernel:
        await kernel.say("chat")
    async with running(tmp_path / "empty", saying(), store="sqlite", data=tmp_path / "d"):
        pass
    (tmp_path / "x" / "chat" / "main.py").write_text(PLAIN)
    async with running(tmp_path / "x", saying(), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "hi")])


async def test_answers_left_by_the_last_process_come_before_new_messages(tmp_path: Path) -> None:
    receiving = """
    async def run_background(self):
        await self.context.accept("new", "ann")
"""
    extension = write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    slow = BASE + "class Main(Base):\n    async def start(self): await asyncio.sleep(0.2)\n"
    write_extension(tmp_path / "x", "slow", slow, after=["chat"])
    async with running(tmp_path / "x", saying("old"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat")
    (extension / "main.py").write_text(PLAIN + receiving)
    async with running(tmp_path / "x", saying("new"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: len(kernel.calls("chat")) == 2)
        assert [call[2] for call in kernel.calls("chat")] == ["old", "new"]


async def test_answer_of_a_deleted_session_is_not_delivered(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    async with running(tmp_path / "x", saying("hi"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat")
        store = kernel.turnwire.store
        (session,) = await store.list_sessions("chat:ann")
        await store.delete_session("chat:ann", session.id)
    (tmp_path / "x" / "chat" / "main.py").write_text(PLAIN)
    async with running(tmp_path / "x", saying("new"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat")
        assert kernel.calls("chat") == [("send", "ann", "new")]


async def test_delivery_keeps_no_text_of_delivered_answers(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("a secret answer"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat", "a secret question")
        query = "SELECT * FROM turnwire.channel_delivery"
        rows = await kernel.turnwire.store.transaction(lambda connection: connection.fetch(query))
    assert len(rows) == 1
    assert "secret" not in json.dumps(rows)


# A store that fails for a moment


@pytest.mark.parametrize("method", ["find_session", "turn_state", "read"])
async def test_failure_of_the_store_delays_an_answer(tmp_path: Path, method: str) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("at last"), store="sqlite", data=tmp_path / "d") as kernel:
        store = kernel.turnwire.store
        works, failures = getattr(store, method), [StoreError("one moment"), StoreError("another moment")]

        def fail_twice(*args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return works(*args, **options)

        setattr(store, method, fail_twice)
        assert await kernel.say("chat") == "at last"
        assert (failures, kernel.calls("chat")) == ([], [("send", "ann", "at last")])


@pytest.mark.parametrize("method", ["set_turn", "set_answer", "set_delivered"])
async def test_failure_to_record_a_delivery_delays_an_answer(tmp_path: Path, method: str) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("at last"), store="sqlite", data=tmp_path / "d") as kernel:
        records = kernel.router.records
        works, failures = getattr(records, method), [StoreError("one moment"), StoreError("another moment")]

        async def fail_twice(*args: Any) -> None:
            if failures:
                raise failures.pop()
            await works(*args)

        setattr(records, method, fail_twice)
        assert await kernel.say("chat") == "at last"
        assert (failures, kernel.calls("chat")) == ([], [("send", "ann", "at last")])
        assert await records.undelivered() == []


# Killed


CHANNEL = """
import asyncio, os
from pathlib import Path
from turnwire.extensions.contract import Health

class Main:
    async def initialize(self, context):
        self.context = context
        context.subscribe("agent_response", self.receive_answer)
        context.subscribe("user_message", self.receive_message)
    async def start(self): ...
    async def stop(self): ...
    async def destroy(self): ...
    async def health_check(self): return Health("running")
    def note(self, *words):
        with open(self.context.data_folder / "notes", "a") as file:
            file.write(" ".join(words) + "\\n")
    async def write(self, *words): await asyncio.to_thread(self.note, *words)
    async def receive_message(self, payload): await self.write("asked", payload["text"])
    async def receive_answer(self, payload): await self.write("answered", payload["text"].replace("\\n", " "))
    async def send_to_user(self, user_id, message): await self.on_stream_end(user_id, message)
    async def send_message(self, message): ...
    async def on_stream_start(self, user_id): ...
    async def on_stream_chunk(self, user_id, chunk): print(chunk, flush=True)
    async def on_stream_status(self, user_id, status): ...
    async def on_stream_end(self, user_id, full_text): await self.write("shown", full_text.replace("\\n", " "))
"""

CHILD = """
import asyncio, sys
from pathlib import Path
from turnwire import Settings, Turnwire

async def endless(turn):
    yield "begun"
    await asyncio.Event().wait()

async def main():
    settings = Settings(data=sys.argv[1], shutdown_grace=0, documents={"embeddings": "off"})
    turnwire = Turnwire(endless, settings=settings, extensions=[sys.argv[2]])
    async with turnwire.lifespan():
        await turnwire.extensions.hosts["chat"].extension.context.handle_user_message("hello", "ann")

asyncio.run(main())
"""


@pytest.mark.process
async def test_answer_of_a_killed_process_is_delivered_by_the_next_one(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", CHANNEL)
    arguments = ("-c", CHILD, str(tmp_path / "d"), str(tmp_path / "x"))
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE * 3):
        assert await child.stdout.readline() == b"begun\n"
        child.send_signal(signal.SIGKILL)
        await child.wait()
    notes = tmp_path / "d" / "extensions" / "chat" / "notes"
    settings = quick_settings(tmp_path / "d")
    answer = "begun  (Error: The server was lost while it worked on this answer.)"

    def lines() -> set[str]:
        return set(notes.read_text().splitlines()) if notes.exists() else set()

    async with Turnwire(saying(), settings=settings, extensions=[tmp_path / "x"]).lifespan():
        await until(lambda: lines() == {"asked hello", f"shown {answer}", f"answered {answer}"})
    assert notes.read_text().count("shown") == 1
