"""The design "Server-sent events for chat streaming"."""

import asyncio
import json
from typing import Any, Literal

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from tests.designs.conftest import Serve
from tests.serving import Puppet, saying, within


async def test_chat_stream_is_a_post_that_answers_with_an_event_stream(serve: Serve) -> None:
    """Decision, step 1, and the content type."""
    async with serve(saying("Hi")) as server:
        response = await server.http.post("/chat/stream", json={"message": "Hello"})
        assert response.status_code == 200
        assert response.headers["content-type"].split(";")[0] == "text/event-stream"


async def test_events_are_data_lines_that_end_with_an_empty_line(serve: Serve) -> None:
    """Decision, step 4."""
    async with serve(saying("Hi")) as server:
        body = (await server.http.post("/chat/stream", json={"message": "Hello"})).content
        frames = [frame for frame in body.split(b"\n\n") if b"data:" in frame]
        assert body.endswith(b"\n\n")
        for frame in frames:
            (data,) = [line for line in frame.split(b"\n") if line.startswith(b"data: ")]
            assert json.loads(data.removeprefix(b"data: "))["type"]


async def test_first_event_is_the_session_with_its_id(serve: Serve) -> None:
    """Event types: session."""
    async with serve(saying("Hi")) as server, server.ask() as stream:
        first = await stream.next()
        assert (first.type, first.event["session_id"]) == ("session", stream.session_id)


async def test_each_token_is_an_event_with_its_content(serve: Serve) -> None:
    """Event types: token."""
    async with serve(saying("One ", "two")) as server, server.ask() as stream:
        tokens = [frame.event for frame in await stream.rest() if frame.type == "token"]
        assert [token["content"] for token in tokens] == ["One ", "two"]


async def test_last_event_is_done(serve: Serve) -> None:
    """Event types: done."""
    async with serve(saying("Hi")) as server, server.ask() as stream:
        types = [frame.type for frame in await stream.rest()]
        assert types[-1] == "done"
        assert types.count("done") == 1


async def test_token_arrives_while_the_agent_still_writes(serve: Serve, puppet: Puppet) -> None:
    """Consequences, positive: the answer is seen while it is written."""
    async with serve(puppet) as server, server.ask() as stream:
        part = await puppet.part()
        part.say("One ")
        await stream.until("token")
        assert not part.over.is_set()
        part.end()
        await stream.rest()


async def test_session_goes_on_with_its_id(serve: Serve) -> None:
    """Event types: the session's id is the one to send with the next message."""

    async def agent(turn: Any) -> Any:
        yield str(len(turn.history))

    async with serve(agent) as server, server.ask() as stream:
        await stream.rest()
        async with server.ask(session_id=stream.session_id) as second:
            assert [frame.event["content"] for frame in await second.rest() if frame.type == "token"] == ["2"]


async def test_agent_that_only_has_astream_events_streams_its_tokens(serve: Serve) -> None:
    """Decision, step 3: tokens come from `astream_events`."""
    model = GenericFakeChatModel(messages=iter([AIMessage("One two")]))

    class Remote:
        """Has this one method of a runnable, and is none."""

        def astream_events(self, input: dict[str, Any], version: Literal["v2"]) -> Any:
            return model.astream_events(input["messages"], version=version)

    async with serve(Remote()) as server, server.ask() as stream:
        tokens = [frame.event["content"] for frame in await stream.rest() if frame.type == "token"]
        assert "".join(tokens) == "One two"
        assert len(tokens) > 1


async def test_broken_connection_is_resumed_after_the_last_id(serve: Serve, puppet: Puppet) -> None:
    """Consequences, negative: broken connections are noticed and tried again, and nothing is lost by that."""
    async with serve(puppet) as server:
        async with server.ask() as stream:
            part = await puppet.part()
            part.say("One ")
            seen = await stream.until("token")
        part.say("two")
        part.end()
        async with server.events(stream.turn_id, last_id=seen[-1].id) as again:
            rest = await again.rest()
        assert [frame.event["content"] for frame in rest if frame.type == "token"] == ["two"]
        assert [frame.position for frame in rest] == list(
            range(seen[-1].position + 1, seen[-1].position + len(rest) + 1)
        )


async def test_message_that_is_sent_while_an_answer_streams_is_answered_too(serve: Serve, puppet: Puppet) -> None:
    """Consequences, negative: a stream has one direction, so the next message is a request of its own."""
    async with serve(puppet) as server, server.ask(session_id="s") as stream:
        first = await puppet.part()
        second = asyncio.create_task(server.http.post("/chat", json={"message": "And?", "session_id": "s"}))
        first.say("One.")
        first.end()
        await stream.rest()
        later = await puppet.part()
        later.say("Two.")
        later.end()
        assert (await within(second)).json()["content"] == "Two."
