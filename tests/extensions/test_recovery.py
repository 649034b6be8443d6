"""What a process leaves undone is done by the next one: an answer reaches its user, and the bus, whoever is killed."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.building import LISTENER, PLAIN, QUICK, STREAMING, running, write_extension
from tests.serving import PATIENCE, Puppet, quick_settings, saying, until, within
from turnwire import Turnwire
from turnwire.core.errors import ShuttingDownError

HANGING = """
    async def send_to_user(self, user_id, message):
        await asyncio.Event().wait()
"""


async def test_an_answer_that_the_channel_did_not_take_is_brought_by_the_next_process(tmp_path: Path) -> None:
    place = write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    write_extension(tmp_path / "x", "listener", LISTENER)
    async with running(tmp_path / "x", saying("at last"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat")
        await until(lambda: len(kernel.calls("listener", "agent_response")) == 1)
    (place / "main.py").write_text(PLAIN)
    async with running(tmp_path / "x", saying("another"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "at last")])
        await kernel.say("chat")
        # It was answered once, however often it had to be brought.
        await until(lambda: [call[1]["text"] for call in kernel.calls("listener", "agent_response")] == ["another"])
    async with running(tmp_path / "x", saying(), store="sqlite", data=tmp_path / "d") as kernel:
        assert kernel.calls("chat") == []


async def test_a_turn_that_waited_is_run_and_streamed_by_the_next_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING)
    puppet = Puppet()
    async with running(tmp_path / "x", puppet, store="sqlite", data=tmp_path / "d") as kernel:
        first, second = kernel.saying("chat", "one"), None
        await puppet.part()
        second = kernel.saying("chat", "two")
        await until(lambda: len(kernel.router._carrier.errands("chat", "ann")) == 2)
        await until(lambda: all(e.delivery.turn_id for e in kernel.router._carrier.errands("chat", "ann")))
    assert "(Error: The server was stopped" in await within(first)
    assert isinstance((await within(asyncio.gather(second, return_exceptions=True)))[0], ShuttingDownError)
    async with running(tmp_path / "x", saying("here"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: ("end", "ann", "here") in kernel.calls("chat"))
        assert [call[0] for call in kernel.calls("chat")] == ["start", "chunk", "end"]


async def test_a_message_that_came_too_late_is_answered_by_the_next_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("no"), store="sqlite", data=tmp_path / "d") as kernel:
        kernel.turnwire.drain()
        late = (await within(asyncio.gather(kernel.saying("chat", "late", message_id="7"), return_exceptions=True)))[0]
        assert isinstance(late, ShuttingDownError)
    async with running(tmp_path / "x", saying("yes"), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "yes")])
        # The channel may bring it again: it does not know that it was kept.
        assert await kernel.say("chat", "late", message_id="7") == "yes"
        assert kernel.calls("chat") == [("send", "ann", "yes")]


async def test_what_a_channel_that_is_gone_was_to_show_waits_for_it(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN + HANGING)
    (tmp_path / "empty").mkdir()
    limits = replace(QUICK, delivery_attempts=1)
    async with running(tmp_path / "x", saying("hi"), store="sqlite", data=tmp_path / "d", limits=limits) as kernel:
        await kernel.say("chat")
    async with running(tmp_path / "empty", saying(), store="sqlite", data=tmp_path / "d"):
        pass
    (tmp_path / "x" / "chat" / "main.py").write_text(PLAIN)
    async with running(tmp_path / "x", saying(), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: kernel.calls("chat") == [("send", "ann", "hi")])


async def test_the_answer_to_a_deleted_session_is_not_brought(tmp_path: Path) -> None:
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


async def test_no_text_stays_in_the_journal_when_it_was_brought(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("a secret answer"), store="sqlite", data=tmp_path / "d") as kernel:
        await kernel.say("chat", "a secret question")
        connection: Any = kernel.kernel._journal._connection
        rows = connection.execute("SELECT * FROM delivery").fetchall()
    assert len(rows) == 1
    assert "secret" not in json.dumps(rows)


# Killed


CHANNEL = """
import asyncio, os
from pathlib import Path
from turnwire.extensions.contract import Health

class Main:
    async def initialize(self, context):
        self.context = context
        context.subscribe("agent_response", self.on_answered)
        context.subscribe("user_message", self.on_asked)
    async def start(self): ...
    async def stop(self): ...
    async def destroy(self): ...
    async def health_check(self): return Health("running")
    def note(self, *words):
        with open(self.context.data_folder / "notes", "a") as file:
            file.write(" ".join(words) + "\\n")
    async def tell(self, *words): await asyncio.to_thread(self.note, *words)
    async def on_asked(self, payload): await self.tell("asked", payload["text"])
    async def on_answered(self, payload): await self.tell("answered", payload["text"].replace("\\n", " "))
    async def send_to_user(self, user_id, message): await self.tell("shown", message.replace("\\n", " "))
    async def send_message(self, message): ...
    async def on_stream_start(self, user_id): ...
    async def on_stream_chunk(self, user_id, chunk): print(chunk, flush=True)
    async def on_stream_status(self, user_id, status): ...
    async def on_stream_end(self, user_id, full_text): await self.tell("shown", full_text)
"""

CHILD = """
import asyncio, sys
from pathlib import Path
from turnwire import Settings, Turnwire

async def endless(turn):
    yield "begun"
    await asyncio.Event().wait()

async def main():
    settings = Settings(data=sys.argv[1], shutdown_grace=0, embeddings="off")
    turnwire = Turnwire(endless, settings=settings, extensions=[sys.argv[2]])
    async with turnwire.lifespan():
        await turnwire.kernel.extensions["chat"].extension.context.handle_user_message("hello", "ann")

asyncio.run(main())
"""


@pytest.mark.process
async def test_a_killed_process_leaves_no_user_without_an_answer(tmp_path: Path) -> None:
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
    wanted = "begun  (Error: The server was lost while it worked on this answer.)"

    def told() -> set[str]:
        return set(notes.read_text().splitlines()) if notes.exists() else set()

    async with Turnwire(saying(), settings=settings, extensions=[tmp_path / "x"]).lifespan():
        await until(lambda: told() == {"asked hello", f"shown {wanted}", f"answered {wanted}"})
    assert notes.read_text().count("shown") == 1
