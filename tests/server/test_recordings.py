"""A turn's recording over HTTP: only its owner gets it, and only with the scope `operate`."""

from pathlib import Path

from typer.testing import CliRunner

from tests.server.conftest import Serve
from tests.server.test_auth import holder
from tests.serving import Client, Served, error_of, within
from turnwire import Turn, journaled
from turnwire.agents.loader import as_agent
from turnwire.cli.main import app
from turnwire.recordings.recording import decode_recording
from turnwire.recordings.replay import replay_turn

SECRET = "a result that nobody is shown"


async def answer(turn: Turn):
    async def look() -> str:
        return SECRET

    await journaled("look", look)
    if turn.message == "fail":
        raise ValueError("no")
    yield "Done."


answer.on_crash = "resume"


async def record(client: Client, turn_id: str) -> bytes:
    response = await client.http.get(f"/v1/turns/{turn_id}/recording")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/jsonl"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-disposition"] == f'attachment; filename="recording-{turn_id}.jsonl"'
    return response.content


async def test_owner_with_the_scope_operate_gets_a_recording_that_replays(serve: Serve) -> None:
    async with serve(answer) as server, holder(server, "anna", ("read", "write", "operate")) as anna:
        first = await anna.start("Hello")
        await server.reached(first, 1_000_000_000)
        session = (await anna.http.get(f"/v1/turns/{first}")).json()["session_id"]
        second = await anna.start("Again", session_id=session)
        await server.reached(second, 1_000_000_000)
        recording = decode_recording(await record(anna, second))
        assert SECRET.encode() in await record(anna, second)
        assert [message.content for message in recording.turn.history] == ["Hello", "Done."]
        replay = await replay_turn(recording, as_agent(answer))
        assert (replay.divergence, replay.events) == (None, recording.events)
        async with holder(server, "anna") as reader, holder(server, "ops", ("read", "operate")) as other:
            refused = await reader.http.get(f"/v1/turns/{second}/recording")
            assert error_of(refused, 403)["code"] == "forbidden"
            hidden = await other.http.get(f"/v1/turns/{second}/recording")
            assert error_of(hidden, 404)["code"] == "turn_not_found"
            assert SECRET not in refused.text + hidden.text


async def test_recording_of_a_running_turn_is_refused_and_of_an_expired_one_gone(server: Served, puppet) -> None:
    turn_id = await server.start()
    part = await puppet.part()
    refused = await server.http.get(f"/v1/turns/{turn_id}/recording")
    assert error_of(refused, 409)["code"] == "not_recordable"
    part.end()
    await server.ended(turn_id)
    decode_recording(await record(server, turn_id))
    await server.turnwire.store.maintain(expire_before=2**60)
    assert error_of(await server.http.get(f"/v1/turns/{turn_id}/recording"), 410)["code"] == "events_gone"


async def test_command_records_from_a_server(serve: Serve, tmp_path: Path) -> None:
    import asyncio

    async with serve(answer) as server:
        turn_id = await server.start("Hello")
        await server.ended(turn_id)
        file = tmp_path / "turn.jsonl"
        arguments = ["record", turn_id[-6:], "--url", server.url, "-o", str(file), "--data", str(tmp_path)]
        result = await within(asyncio.to_thread(CliRunner().invoke, app, arguments))
        assert result.exit_code == 0, result.output
        assert decode_recording(file.read_bytes()).turn.id == turn_id
        missing = await within(asyncio.to_thread(CliRunner().invoke, app, [*arguments[:1], "nothing1", *arguments[2:]]))
        assert missing.exit_code == 2
