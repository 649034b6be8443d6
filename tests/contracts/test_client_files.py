"""Pictures sent by real clients: they reach the model through every SDK, byte for byte, and again in the next turn."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.clients.conftest import Run, node, run
from tests.contracts.agents import MODULES, PATIENT
from tests.contracts.test_agent_files import PICTURE, files, texts, user_messages
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, model_server, says
from tests.serving import Served, quick_settings, serving, within
from turnwire import Turnwire

__all__ = ["lost_connections_are_collected", "model_server", "node", "run"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.node, IGNORED]

READERS = [module for module in MODULES if "files" not in module.CANNOT]
AGENTS = [module.NAME for module in READERS]
ENCODED = base64.b64encode(PICTURE.body).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"


@pytest.fixture
async def served(model_server: ScriptedModel, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with an agent of every SDK, all of which use the scripted model."""
    model_server.plan(*(says(word) for _ in AGENTS for word in ("A cat.", "Black.")))
    built: dict[str, Any] = {
        module.NAME: module.build(model_server.url, [], api="chat", timeout=PATIENT) for module in READERS
    }
    async with serving(Turnwire(agents=built, store="memory", settings=quick_settings(tmp_path))) as server:
        yield server


def check_requests(model_server: ScriptedModel) -> None:
    """Check what the model got of two messages to each agent."""
    assert len(model_server.bodies) == 2 * len(AGENTS)
    for number, body in enumerate(model_server.bodies):
        picture, *rest = user_messages(body)
        assert (texts(picture), files(picture)) == (["What is it?"], [("image", PICTURE.body)])
        assert [texts(content) for content in rest] == ([["Which colour?"]] if number % 2 else [])


@pytest.mark.parametrize("client", ["ai5", "ai6", "ai7", "ag_ui", "responses", "completions"])
async def test_picture_of_a_node_client_reaches_the_model_through_every_sdk(
    served: Served, run: Run, model_server: ScriptedModel, client: str
) -> None:
    async with run("files.mjs", served.url, client, ENCODED, *AGENTS) as script:
        for _ in AGENTS:
            assert await script.next() == "ready"
        await script.ended()
    check_requests(model_server)


async def test_picture_of_the_python_client_reaches_the_model_through_every_sdk(
    served: Served, model_server: ScriptedModel
) -> None:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for agent in AGENTS:
            content: Any = [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": DATA_URL},
            ]
            sent: Any = [{"role": "user", "content": content}]
            first = await within(client.responses.create(model=agent, input=sent))
            await within(client.responses.create(model=agent, input="Which colour?", previous_response_id=first.id))
    check_requests(model_server)
