"""One turn in a terminal: asked for consent, stopped, left."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.channels.console.emulator import Terminal
from tests.serving import PATIENCE, until, within
from turnwire.channels.console.conversation import Conversation, Left
from turnwire.channels.console.hosts import Patience, RemoteHost, Server
from turnwire.channels.console.keyboard import Keyboard
from turnwire.core.codec import encode_event
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    MessageEvent,
    SessionEvent,
    TokenEvent,
)


class Script:
    """A server that tells one turn as the test says, and writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, dict[str, object]]] = asyncio.Queue()
        self._stream: asyncio.StreamWriter | None = None
        self._position = 0

    def tell(self, *events: Event) -> None:
        assert self._stream is not None
        for event in events:
            self._position += 1
            self._stream.write(b"id: %d.1\ndata: %b\n\n" % (self._position, encode_event(event)[1]))

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        body = json.loads(await reader.readexactly(length) or b"{}")
        path = head.split()[1].decode()
        if path == "/chat/stream":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Turn-Id: t1\r\n\r\n")
            self._stream = writer
            self.tell(SessionEvent("s1", "t1", "agent"), MessageEvent("Pay", "anna", "http"))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            writer.close()
            self.asked.put_nowait((path, body))


class Shown:
    """A turn of the script, on a terminal."""

    def __init__(self, script: Script, host: RemoteHost, keyboard: Keyboard | None, settle: float) -> None:
        self.script = script
        self.terminal = Terminal()
        self.conversation = Conversation(host, self.terminal.view, keyboard, settle_seconds=settle)
        self.showing = asyncio.create_task(self.conversation.show(host.converse("Pay", None, None)))

    async def sees(self, text: str) -> None:
        await until(lambda: any(text in line for line in self.terminal.transcript))


@asynccontextmanager
async def shown(keyboard: Keyboard | None = None, settle: float = 0) -> AsyncIterator[Shown]:
    script = Script()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    host = RemoteHost(lambda: Server(url, is_local=True), Patience(seconds=1, pause=0.05, silence=PATIENCE))
    turn = Shown(script, host, keyboard, settle)
    try:
        await turn.sees("waiting for the agent")
        yield turn
    finally:
        turn.showing.cancel()
        await asyncio.gather(turn.showing, return_exceptions=True)
        await host.close()
        script.hang_up()
        server.close()
        await server.wait_closed()


REQUEST = ApprovalRequestEvent("c1", "pay", {"sum": 3}, "It is much")
DONE = DoneEvent("completed", "s1", "t1")


@pytest.mark.parametrize(("key", "approved"), [("y", True), ("n", False), ("\r", False)])
async def test_a_tool_that_needs_consent_asks_and_the_decision_is_posted(key: str, approved: bool) -> None:
    keyboard = Keyboard()
    async with shown(keyboard) as turn:
        turn.script.tell(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        assert any("pay(sum=3) needs your consent" in line for line in turn.terminal.transcript)
        keyboard.press("x")
        keyboard.press(key)
        assert await within(turn.script.asked.get()) == ("/v1/turns/t1/approvals/c1", {"approved": approved})
        turn.script.tell(ApprovalResponseEvent("c1", approved, by="anna"), TokenEvent("Done."), DONE)
        await within(turn.showing)
        assert turn.terminal.transcript[-1] == "Done."
        assert not any("[y/N]" in line for line in turn.terminal.transcript)
        assert keyboard.typed == ""


async def test_who_was_typing_when_the_question_came_has_not_answered_it() -> None:
    keyboard = Keyboard()
    async with shown(keyboard, settle=3600) as turn:
        keyboard.press("cheap or anything")
        turn.script.tell(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        keyboard.press("y\r")
        turn.script.tell(TokenEvent("Waiting."))
        await turn.sees("Waiting.")
        assert turn.script.asked.empty()
        assert any("Allow pay? [y/N]" in line for line in turn.terminal.transcript)


async def test_a_question_that_somebody_else_has_answered_is_taken_back() -> None:
    keyboard = Keyboard()
    async with shown(keyboard) as turn:
        turn.script.tell(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        turn.script.tell(ApprovalResponseEvent("c1", True, by="ben"))
        await turn.sees("✓ allowed by ben")
        await until(lambda: not any("[y/N]" in line for line in turn.terminal.transcript))
        keyboard.press("y")
        assert keyboard.typed == "y", "keys are for the next message again"
        turn.script.tell(DONE)
        await within(turn.showing)
        assert turn.script.asked.empty()


async def test_where_nobody_can_be_asked_consent_is_refused() -> None:
    async with shown(None) as turn:
        turn.script.tell(REQUEST)
        path, body = await within(turn.script.asked.get())
        assert (path, body["approved"]) == ("/v1/turns/t1/approvals/c1", False)
        turn.script.tell(DONE)
        await within(turn.showing)
        assert "■ refused: there is no terminal to ask at" in turn.terminal.transcript


async def test_the_first_interrupt_stops_the_turn_and_the_second_leaves() -> None:
    async with shown(Keyboard()) as turn:
        turn.conversation.interrupt()
        assert await within(turn.script.asked.get()) == ("/v1/turns/t1/cancel", {})
        await turn.sees("stopping; Ctrl-C again to leave")
        turn.conversation.interrupt()
        with pytest.raises(Left):
            await within(turn.showing)
        assert not any("stopping" in line for line in turn.terminal.transcript)


async def test_a_turn_that_was_stopped_ends_as_such() -> None:
    async with shown(Keyboard()) as turn:
        turn.conversation.interrupt()
        await within(turn.script.asked.get())
        turn.script.tell(TokenEvent("Half"), DoneEvent("cancelled", "s1", "t1", "requested"))
        await within(turn.showing)
        assert turn.terminal.transcript == ["Half", "", "■ stopped"]
        assert turn.conversation.teller.outcome == "cancelled"
