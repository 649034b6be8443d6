"""Tests of EventSource on `/v1/turns/{id}/events`: it reconnects automatically, and 204 stops it."""

import pytest

from tests.clients.conftest import Run
from tests.server.conftest import Serve
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


async def test_event_source_reconnects_with_last_id_until_turn_ends(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve(stream_lifetime=0.6) as server:
        turn_id = await server.start()
        part = await puppet.part()
        async with run("source.mjs", f"{server.url}/v1/turns/{turn_id}/events") as script:
            part.say("one ")
            seen = [await script.next()]
            while seen[-1]["event"].get("content") != "one ":
                seen.append(await script.next())
            # The server closes the stream by its age; only a reopened stream gets the next events.
            while (message := await script.next())["event"]["type"] != "reconnect":
                seen.append(message)
            part.say("two")
            part.end()
            while "closed" not in (message := await script.next()):
                seen.append(message)
    events = [item["event"] for item in seen if item["event"]["type"] != "reconnect"]
    assert "".join(event["content"] for event in events if event["type"] == "token") == "one two"
    assert [event["type"] for event in events].count("session") == 1
    assert events[-1]["type"] == "done"
    assert message["closed"] == 204
    assert message["opened"] >= 2
