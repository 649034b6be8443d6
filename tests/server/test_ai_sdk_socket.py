"""`/api/chat/ws`: frames as the AI SDK's WebSocketChatTransport has them; the real one is in tests/clients."""

import json
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.server.chat_client import asks, decides
from tests.server.conftest import Serve
from tests.server.socket_client import SocketMessage, Talk, talking
from tests.server.test_approvals import careful
from tests.serving import Puppet, saying, within
from tests.wires.ui_message import UIMessage

URL = "/api/chat/ws"


async def send(talk: Talk, *messages: dict[str, Any], request: str = "r1", chat: str = "c", **more: Any) -> None:
    fields = {"trigger": "submit-message", "headers": {}, "body": {}, **more}
    await talk.say("send", requestId=request, id=chat, messages=list(messages), **fields)


async def resume(talk: Talk, request: str = "r2", chat: str = "c") -> None:
    await talk.say("resume", requestId=request, id=chat, headers={}, body={})


async def rest(talk: Talk, request: str = "r1") -> list[SocketMessage]:
    """All that is said to a request, up to its end."""
    messages: list[SocketMessage] = []
    while not messages or messages[-1]["type"] not in ("end", "error", "no-active"):
        message = await talk.hear()
        assert message["requestId"] == request
        messages.append(message)
    return messages


def read(messages: list[SocketMessage]) -> UIMessage:
    """Return the message that the client builds, and check that chunks are numbered without gaps."""
    chunks = [message for message in messages if message["type"] == "chunk"]
    assert [message["sequence"] for message in chunks] == list(range(len(chunks)))
    raw = b"".join(b"data: %b\n\n" % json.dumps(message["chunk"]).encode() for message in chunks)
    return UIMessage(7).read(raw + b"data: [DONE]\n\n")


async def test_chat_is_answered_in_numbered_chunks(serve: Serve) -> None:
    async with serve(saying("Hello ", "there")) as server, talking(server, URL) as talk:
        await send(talk, asks("Hi"))
        messages = await rest(talk)
    assert messages[-1] == {"type": "end", "requestId": "r1"}
    assert read(messages).text == "Hello there"


async def test_request_without_a_trigger_submits_its_message(serve: Serve) -> None:
    async with serve(saying("Hello")) as server, talking(server, URL) as talk:
        await talk.say("send", requestId="r1", id="c", messages=[asks("Hi")])
        assert read(await rest(talk)).text == "Hello"


async def test_idempotency_key_of_a_request_is_read_like_a_header(serve: Serve) -> None:
    async with serve(saying("Hi")) as server, talking(server, URL) as talk:
        turns: list[str | None] = []
        for name in ("Idempotency-Key", "idempotency-key"):
            await send(talk, asks("Hi", "m1"), headers={name: "key-1"}, chat="c")
            turns.append(read(await rest(talk)).id)
        assert turns[0] == turns[1]
        await send(talk, asks("Hi", "m2"), headers={"Idempotency-Key": "k" * 256}, chat="other")
        refused = await rest(talk)
    assert (refused[-1]["type"], "255" in refused[-1]["errorText"]) == ("error", True)
    assert await server.written() == (1, 1)


async def test_resume_replays_a_running_turn_and_reports_none(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        async with talking(server, URL) as talk:
            await resume(talk, "r0")
            assert (await talk.hear()) == {"type": "no-active", "requestId": "r0"}
            await send(talk, asks("Hi"))
            part = await puppet.part()
            part.say("Hello ")
            while (await talk.hear())["chunk"]["type"] != "text-delta":
                pass
        async with talking(server, URL) as talk:
            await resume(talk)
            assert (await talk.hear()) == {"type": "start", "requestId": "r2"}
            part.say("there")
            part.end()
            messages = await rest(talk, "r2")
    assert read(messages).text == "Hello there"


async def test_abort_cancels_the_turn_and_disconnect_does_not(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        async with talking(server, URL) as talk:
            await send(talk, asks("Stop"), chat="c1")
            stopped = (await talk.hear())["chunk"]["messageId"]
            await puppet.part()
            await talk.say("abort", requestId="r1")
            assert (await server.ended(stopped))["outcome"] == "cancelled"
            await send(talk, asks("Stay"), request="r2", chat="c2")
            while (message := await talk.hear())["requestId"] != "r2":
                pass
            await puppet.part()
        puppet.parts[-1].end()
        assert (await server.ended(message["chunk"]["messageId"]))["outcome"] == "completed"


async def test_decision_continues_the_same_message(serve: Serve) -> None:
    async with serve(careful) as server, talking(server, URL) as talk:
        await send(talk, question := asks("Pay"))
        messages = await rest(talk)
        turn_id = messages[0]["chunk"]["messageId"]
        assert messages[-2]["chunk"] == {"type": "finish", "finishReason": "tool-calls"}
        await send(talk, question, decides(turn_id, ("c1", {"amount": 40}, True)), request="r2", messageId=turn_id)
        messages = await rest(talk, "r2")
    assert messages[0]["chunk"]["messageId"] == turn_id
    assert messages[-1]["type"] == "end"
    assert "Paid." in "".join(message["chunk"].get("delta", "") for message in messages[:-1])


async def test_refused_message_is_an_error_of_its_request(serve: Serve) -> None:
    async with serve(saying("a")) as server, talking(server, URL) as talk:
        await send(talk, {"id": "a", "role": "assistant", "parts": []})
        assert (await talk.hear())["type"] == "error"
        await send(talk, asks("Hi"), request="r2", body={"agent": "nobody"})
        message = await talk.hear()
        assert (message["type"], message["requestId"]) == ("error", "r2")
        assert "nobody" in message["errorText"]
        await talk.say("dance", requestId="r3")
        assert (await within(talk.closed()))[0] == 1008
    assert await server.written() == (0, 0)


async def test_unknown_version_is_refused_before_accepting(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        with pytest.raises(InvalidStatus, match="422"):
            async with talking(server, f"{URL}?sdk_version=9"):
                pass
