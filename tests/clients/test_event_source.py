"""EventSource on `/v1/turns/{id}/events`: it reconnects by itself, and 204 stops it."""

import pytest

from tests.clients.conftest import Run
from tests.server.conftest import Serve
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


async def test_it_comes_back_with_the_last_id_until_the_turn_has_ended(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve(stream_lifetime=0.6) as server:
        turn_id = await server.start()
        part = await puppet.part()
        async with run("source.mjs", f"{server.url}/v1/turns/{turn_id}/events") as script:
            part.say("one ")
            seen = [await script.next()]
            while seen[-1]["event"].get("content") != "one ":
                seen.append(await script.next())
            # The stream is ended by its age; only one that was opened again shows what comes now.
            while (told := await script.next())["event"]["type"] != "reconnect":
                seen.append(told)
            part.say("two")
            part.end()
            while "closed" not in (told := await script.next()):
                seen.append(told)
    events = [one["event"] for one in seen if one["event"]["type"] != "reconnect"]
    assert "".join(event["content"] for event in events if event["type"] == "token") == "one two"
    assert [event["type"] for event in events].count("session") == 1
    assert events[-1]["type"] == "done"
    assert told["closed"] == 204
    assert told["opened"] >= 2
