"""Tests of a turn that waits for approval while its process is killed or stopped."""

import signal
from pathlib import Path

import pytest

from tests.process.server_process import served
from tests.serving import within


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_approved_turn_continues_in_another_process(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        async with server.ask("Buy it", agent="careful") as stream:
            seen = await stream.until("approval_request")
        server.process.send_signal(number)
        await within(server.process.wait())
    async with served(data) as server:
        assert (await server.http.get(f"/v1/turns/{stream.turn_id}")).json()["phase"] == "waiting"
        path = f"/v1/turns/{stream.turn_id}/approvals/c1"
        assert (await server.http.post(path, json={"approved": True})).status_code == 200
        async with server.events(stream.turn_id, last_id=seen[-1].id) as rest:
            frames = await rest.rest()
        assert [frame.type for frame in frames] == ["approval_response", "token", "token", "response", "done"]
        assert frames[-2].event["content"] == "May I? Yes, another process"
