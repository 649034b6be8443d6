"""A turn's log as a file: every event that is committed, a line each."""

import json

from tests.serving import Puppet, Served, error_of
from turnwire.core.log.follow import PAGE


async def test_a_log_is_downloaded_whole_with_its_times(server: Served, puppet: Puppet) -> None:
    async with server.ask(turn_id="mine") as stream:
        part = await puppet.part()
        # Longer than what is read of a log at once.
        part.say(*[f"{number} " for number in range(PAGE + 20)])
        await server.reached(stream.turn_id, 100)
        running = (await server.http.get("/v1/turns/mine/log.jsonl")).text.splitlines()
        assert len(running) >= 100
        part.end()
        frames = await stream.rest()
    answer = await server.http.get("/v1/turns/mine/log.jsonl")
    assert answer.headers["content-disposition"] == f'attachment; filename="turn-{stream.turn_id}.jsonl"'
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["cache-control"] == "no-store"
    lines = answer.text.splitlines()
    assert lines[: len(running)] == running
    logged = [json.loads(line) for line in lines]
    assert [entry["position"] for entry in logged] == list(range(1, len(logged) + 1))
    assert [entry["event"] for entry in logged] == [frame.event for frame in frames]
    times = [entry["at"] for entry in logged]
    assert times == sorted(times)


async def test_download_of_an_expired_log_is_410(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    (await puppet.part()).end()
    await server.ended(turn_id)
    await server.turnwire.store.maintain(expire_before=2**60)
    answer = await server.http.get(f"/v1/turns/{turn_id}/log.jsonl")
    assert error_of(answer, 410)["code"] == "events_gone"
