"""A2A tasks over `kill -9`: the official client gets the rest from the next process."""

import asyncio
from pathlib import Path

import pytest
from a2a.client import Client
from a2a.client.errors import A2AClientError
from a2a.types import GetTaskRequest, SubscribeToTaskRequest
from a2a.utils.errors import UnsupportedOperationError

from tests.process.server_process import served
from tests.process.test_resume import configure
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.server.a2a_clients import Dialect, SeenTask, a2a_client, answer_of, message, read
from tests.serving import until, within

__all__ = ["model_server"]


@pytest.mark.rotated("dialect")
@pytest.mark.parametrize("dialect", ["HTTP+JSON 1.0", "JSONRPC 0.3"])
async def test_killed_server_leaves_the_task_to_the_next_one(
    tmp_path: Path, model_server: ScriptedModel, dialect: Dialect
) -> None:
    data, config, going_on = tmp_path / "data", configure(tmp_path, model_server), asyncio.Event()
    model_server.plan(
        calls(("look", {"city": "Oslo"})), says("Void", asyncio.Event()), says("Snow ", going_on, "in Oslo.")
    )
    seen = SeenTask()
    async with served(data, "--config", config, agents=[]) as server, a2a_client(server.url, dialect) as client:
        reading = asyncio.create_task(read(client.send_message(message("How is it?")), seen))
        await until(lambda: seen.text == "Void")
        await server.kill()
        with pytest.raises(A2AClientError):
            await within(reading)
    async with served(data, "--config", config, agents=[]) as server, a2a_client(server.url, dialect) as client:
        going_on.set()
        text = await within(final_text(client, seen.task.id))
    assert text == "Snow in Oslo."


async def final_text(client: Client, task_id: str) -> str:
    """Subscribe to a task until it has ended. A restart breaks a stream, because what it has shown is void."""
    while True:
        try:
            seen = await read(client.subscribe(SubscribeToTaskRequest(id=task_id)))
        except UnsupportedOperationError:
            return answer_of(await client.get_task(GetTaskRequest(id=task_id)))
        except A2AClientError:
            continue
        assert seen.state == "completed"
        return seen.text
