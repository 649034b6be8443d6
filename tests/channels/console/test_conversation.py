"""Tests of Conversation: approval, cancellation and leaving of one turn in a terminal."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.channels.console.emulator import Terminal
from tests.serving import PATIENCE, until, within
from turnwire.channels.console import conversation
from turnwire.channels.console.conversation import Conversation, UserLeft
from turnwire.channels.console.host import Host
from turnwire.channels.console.keyboard import Keyboard
from turnwire.client import ReconnectLimits, ServerAddress
from turnwire.core.log.codec import encode_event
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    MessageEvent,
    QuestionEvent,
    ReplyEvent,
    SessionEvent,
    TokenEvent,
)

SNAPSHOT = b'{"turn_id":"t1","session_id":"s1","agent":"a","message":"Hello","phase":"running","position":1,"state":{}}'


class ScriptedServer:
    """A server that streams the test's events as one turn and records other requests."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[str, dict[str, object]]] = asyncio.Queue()
        self.lost_requests = 0
        self._stream: asyncio.StreamWriter | None = None
        self._position = 0

    def send(self, *events: Event) -> None:
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
            self.send(SessionEvent("s1", "t1", "agent"), MessageEvent("Pay", "anna", "http"))
        elif self.lost_requests:
            self.lost_requests -= 1
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SNAPSHOT)
            writer.close()
            self.requests.put_nowait((path, body))


class ShownTurn:
    """A turn of the scripted server, shown on a terminal."""

    def __init__(self, script: ScriptedServer, host: Host, keyboard: Keyboard | None, settle: float) -> None:
        self.script = script
        self.terminal = Terminal()
        self.conversation = Conversation(host, self.terminal.view, keyboard, key_grace=settle)
        self.showing = asyncio.create_task(self.conversation.show(host.converse("Pay")))

    async def sees(self, text: str) -> None:
        await until(lambda: any(text in line for line in self.terminal.transcript))


@asynccontextmanager
async def shown(keyboard: Keyboard | None = None, settle: float = 0) -> AsyncIterator[ShownTurn]:
    script = ScriptedServer()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    host = Host(lambda: ServerAddress(url, is_local=True), ReconnectLimits(give_up_seconds=1, read_timeout=PATIENCE))
    turn = ShownTurn(script, host, keyboard, settle)
    try:
        await turn.sees("waiting for the agent")
        yield turn
    finally:
        turn.showing.cancel()
        await asyncio.gather(turn.showing, return_exceptions=True)
        await host.aclose()
        script.hang_up()
        server.close()
        await server.wait_closed()


REQUEST = ApprovalRequestEvent("c1", "pay", {"sum": 3}, "It is much")
DONE = DoneEvent("completed", "s1", "t1")


@pytest.mark.parametrize(("key", "approved"), [("y", True), ("n", False), ("\r", False)])
async def test_approval_request_asks_and_posts_the_decision(key: str, approved: bool) -> None:
    keyboard = Keyboard()
    async with shown(keyboard) as turn:
        turn.script.send(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        assert any("pay(sum=3) needs your consent" in line for line in turn.terminal.transcript)
        keyboard.press("x")
        keyboard.press(key)
        assert await within(turn.script.requests.get()) == ("/v1/turns/t1/approvals/c1", {"approved": approved})
        turn.script.send(ApprovalResponseEvent("c1", approved, by="anna"), TokenEvent("Done."), DONE)
        await within(turn.showing)
        assert turn.terminal.transcript[-1] == "Done."
        assert not any("[y/N]" in line for line in turn.terminal.transcript)
        assert keyboard.typed == ""


async def test_decision_that_was_not_recorded_can_be_made_again() -> None:
    keyboard = Keyboard()
    async with shown(keyboard) as turn:
        turn.script.lost_requests = 1
        turn.script.send(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        keyboard.press("y")
        await turn.sees("the decision was not recorded")
        await turn.sees("Allow pay? [y/N]")
        keyboard.press("y")
        assert await within(turn.script.requests.get()) == ("/v1/turns/t1/approvals/c1", {"approved": True})


async def test_answer_that_was_not_recorded_can_be_given_again() -> None:
    keyboard = Keyboard(collects=False)
    async with shown(keyboard) as turn:
        turn.script.lost_requests = 1
        turn.script.send(QuestionEvent("q1", "Which colour?", {"type": "string"}))
        await turn.sees("Which colour?")
        enter(keyboard, "red")
        await turn.sees("the answer was not recorded")
        await turn.sees("Which colour?")
        enter(keyboard, "blue")
        path, body = await within(turn.script.requests.get())
        assert (path, body["value"]) == ("/v1/turns/t1/replies", "blue")


FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 18}, "news": {"type": "boolean"}},
    "required": ["name", "age"],
}


def enter(keyboard: Keyboard, line: str) -> None:
    keyboard.press(line)
    keyboard.press("\r")


async def test_question_is_answered_field_by_field() -> None:
    keyboard = Keyboard(collects=False)
    async with shown(keyboard) as turn:
        turn.script.send(QuestionEvent("q1", "Who are you?", FORM))
        await turn.sees("Who are you? name")
        enter(keyboard, "Ann")
        await turn.sees("Who are you? age")
        enter(keyboard, "17")
        await turn.sees("this must be at least 18")
        enter(keyboard, "18")
        await turn.sees("Who are you? news [yes/no, optional]")
        enter(keyboard, "yes")
        path, body = await within(turn.script.requests.get())
        assert (path, body) == (
            "/v1/turns/t1/replies",
            {"question_id": "q1", "value": {"name": "Ann", "age": 18, "news": True}},
        )
        turn.script.send(ReplyEvent("q1", body["value"], by="anna"), TokenEvent("Done."), DONE)
        await within(turn.showing)
        lines = [line for line in turn.terminal.transcript if "you: " in line or "must be" in line]
        values = [line.partition("you: ")[2] or "problem" for line in lines]
        assert values == ["Ann", "17", "problem", "18", "yes"]


async def test_question_without_a_keyboard_is_declined() -> None:
    async with shown() as turn:
        turn.script.send(QuestionEvent("q1", "Which colour?"))
        path, body = await within(turn.script.requests.get())
        assert (path, body["declined"]) == ("/v1/turns/t1/replies", True)


async def test_keys_pressed_before_the_question_settles_do_not_answer_it() -> None:
    keyboard = Keyboard()
    async with shown(keyboard, settle=3600) as turn:
        keyboard.press("cheap or anything")
        turn.script.send(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        keyboard.press("y\r")
        turn.script.send(TokenEvent("Waiting."))
        await turn.sees("Waiting.")
        assert turn.script.requests.empty()
        assert any("Allow pay? [y/N]" in line for line in turn.terminal.transcript)


async def test_question_decided_in_another_client_is_removed() -> None:
    keyboard = Keyboard()
    async with shown(keyboard) as turn:
        turn.script.send(REQUEST)
        await turn.sees("Allow pay? [y/N]")
        turn.script.send(ApprovalResponseEvent("c1", True, by="ben"))
        await turn.sees("✓ allowed by ben")
        await until(lambda: not any("[y/N]" in line for line in turn.terminal.transcript))
        keyboard.press("y")
        assert keyboard.typed == "y", "keys are collected for the next message again"
        turn.script.send(DONE)
        await within(turn.showing)
        assert turn.script.requests.empty()


async def test_approval_request_without_a_keyboard_is_refused() -> None:
    async with shown(None) as turn:
        turn.script.send(REQUEST)
        path, body = await within(turn.script.requests.get())
        assert (path, body["approved"]) == ("/v1/turns/t1/approvals/c1", False)
        turn.script.send(DONE)
        await within(turn.showing)
        assert "■ refused: there is no terminal to ask for consent" in turn.terminal.transcript


async def test_first_interrupt_cancels_the_turn_and_second_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_TWICE_SECONDS", PATIENCE)
    async with shown(Keyboard()) as turn:
        turn.conversation.interrupt()
        assert await within(turn.script.requests.get()) == ("/v1/turns/t1/cancel", {})
        await turn.sees("stopping; Ctrl-C again to leave")
        turn.conversation.interrupt()
        with pytest.raises(UserLeft):
            await within(turn.showing)
        assert not any("stopping" in line for line in turn.terminal.transcript)


async def test_cancelled_turn_is_shown_as_stopped() -> None:
    async with shown(Keyboard()) as turn:
        turn.conversation.interrupt()
        await within(turn.script.requests.get())
        turn.script.send(TokenEvent("Half"), DoneEvent("cancelled", "s1", "t1", "requested"))
        await within(turn.showing)
        assert turn.terminal.transcript == ["Half", "", "■ stopped"]
        assert turn.conversation.presenter.outcome == "cancelled"
