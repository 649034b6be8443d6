"""A turn that waits for a person outlives the process it was asked in, however that ends."""

import signal
from pathlib import Path

import pytest

from tests.process.running import served
from tests.serving import within


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_another_process_goes_on_when_it_is_approved(tmp_path: Path, how: signal.Signals) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        async with server.ask("Buy it", agent="careful") as stream:
            seen = await stream.until("approval_request")
        server.process.send_signal(how)
        await within(server.process.wait())
    async with served(data) as server:
        assert (await server.http.get(f"/v1/turns/{stream.turn_id}")).json()["phase"] == "waiting"
        path = f"/v1/turns/{stream.turn_id}/approvals/c1"
        assert (await server.http.post(path, json={"approved": True})).status_code == 200
        async with server.events(stream.turn_id, last_id=seen[-1].id) as rest:
            frames = await rest.rest()
        assert [frame.type for frame in frames] == ["approval_response", "token", "token", "response", "done"]
        assert frames[-2].event["content"] == "May I? Yes, another process"
