"""Messages to a running turn over HTTP and the WebSocket: what the answer to each request says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.core.desk import Gate
from tests.server.conftest import Serve
from tests.server.socket_client import talking
from tests.serving import within
from turnwire import Turn, take_inputs
from turnwire.core.log.events import Event


class Listener:
    """An agent that answers in two halves, and takes messages in between."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        yield f"{turn.message}: "
        await self.gate.wait()
        yield ", ".join([*await take_inputs(), "end"])


async def test_answer_to_a_steering_message_says_where_it_is(serve: Serve) -> None:
    listener = Listener()
    async with serve(listener) as server:
        first = await server.start("One", session_id="s")
        await listener.gate.reached()
        body = {"message": "Two", "session_id": "s", "on_busy": "steer"}
        headers = {"Idempotency-Key": "k"}
        waiting = asyncio.create_task(server.http.post("/chat", json=body, headers=headers))
        async with server.ask("Three", session_id="s", on_busy="steer") as stream:
            listener.gate.open()
            answer = (await within(waiting)).json()
            *_, done = await stream.rest()
        assert (answer["outcome"], answer["content"]) == ("joined", "")
        assert answer["joined"]["turn_id"] == first
        log = [frame.event for frame in await server.whole(first)]
        entered = {number: event for number, event in enumerate(log, start=1) if event["type"] == "input"}
        assert entered[answer["joined"]["position"]]["content"] == "Two"
        assert done.event["outcome"] == "joined"
        assert entered[done.event["joined"]["position"]]["content"] == "Three"
        assert len(entered) == 2
        snapshot = (await server.http.get(f"/v1/turns/{first}")).json()
        assert sorted(each["content"] for each in snapshot["state"]["inputs"]) == ["Three", "Two"]
        again = (await server.http.post("/chat", json=body, headers=headers)).json()
        assert again["turn_id"] == answer["turn_id"]
        assert [turn["outcome"] for turn in (await server.http.get("/v1/turns")).json()["turns"]] == [
            "joined",
            "joined",
            "completed",
        ]
        exported = (await server.http.get("/v1/sessions/s/export")).json()["transcript"]
        assert [message["role"] for message in exported] == ["user", "assistant", "user", "assistant"]


async def test_messages_are_sent_and_collected_on_the_websocket(serve: Serve) -> None:
    listener = Listener()
    async with serve(listener) as server, talking(server) as talk:
        first = await talk.ask("start", message="One", session_id="s")
        await listener.gate.reached()
        steered = await talk.ask("start", message="Two", session_id="s", on_busy="steer")
        collected = [
            await talk.ask("start", message=message, session_id="s", on_busy="collect") for message in ("Three", "Four")
        ]
        assert [each["phase"] for each in (steered, *collected)] == ["queued"] * 3
        listener.gate.open()
        done: dict[str, Any] = (await talk.events(steered["turn_id"]))[-1]["event"]
        assert (done["outcome"], done["joined"]["turn_id"]) == ("joined", first["turn_id"])
        events = [message["event"] for message in await talk.events(collected[0]["turn_id"])]
        assert [event["content"] for event in events if event["type"] == "token"] == ["Three\n\nFour: ", "end"]
        assert [event["mode"] for event in events if event["type"] == "input"] == ["collect"]
        done = (await talk.events(collected[1]["turn_id"]))[-1]["event"]
        assert (done["outcome"], done["joined"]) == ("joined", {"turn_id": collected[0]["turn_id"], "position": 3})


async def test_message_stands_at_its_place_in_a_thread_and_in_a_shared_session(serve: Serve) -> None:
    listener = Listener()
    async with serve(listener) as server:
        first = await server.start("One", session_id="s")
        await listener.gate.reached()
        await server.start("Two", session_id="s", on_busy="steer")
        listener.gate.open()
        await server.whole(first)
        thread = (await server.http.get("/ag-ui", params={"threadId": "s"})).json()
        texts = [(message["role"], message["content"]) for message in thread["messages"]]
        assert texts == [("user", "One"), ("assistant", "One: "), ("user", "Two"), ("assistant", "Two, end")]
        link = (await server.http.post("/v1/sessions/s/share")).json()
        (turn,) = (await server.http.get(f"/v1/shared/{link['token']}")).json()["turns"]
        assert turn["inputs"] == [{"content": "Two", "answer_offset": 5}]
