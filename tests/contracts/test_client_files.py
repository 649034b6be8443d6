"""Pictures sent by real clients: they reach the model through every SDK, byte for byte, and again in the next turn."""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import AI_SDKS, Run, node, run
from tests.contracts.agents import MODULES, PATIENT
from tests.contracts.test_agent_files import PICTURE, files, texts, user_messages
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, model_server, says
from tests.serving import Served, quick_settings, serving, within
from turnwire import Turnwire
from turnwire.client import AsyncClient, attachment

__all__ = ["lost_connections_are_collected", "model_server", "node", "run"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.node, IGNORED]

READERS = [module for module in MODULES if "files" not in module.CANNOT]
AGENTS = [module.NAME for module in READERS]
ENCODED = base64.b64encode(PICTURE.body).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"


@pytest.fixture
async def served(model_server: ScriptedModel, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with an agent of every SDK, all of which use the scripted model."""
    settings = quick_settings(tmp_path)
    async with serving(Turnwire(agents=reading_agents(model_server), store="memory", settings=settings)) as server:
        yield server


def reading_agents(model_server: ScriptedModel, modules: Sequence[ModuleType] = READERS) -> dict[str, Any]:
    """Return an agent of every SDK that takes files, and plan the answers to two messages to each."""
    model_server.plan(*(says(word) for _ in modules for word in ("A cat.", "Black.")))
    return {module.NAME: module.build(model_server.url, [], api="chat", timeout=PATIENT) for module in modules}


def check_requests(model_server: ScriptedModel, count: int = len(READERS)) -> None:
    """Check what the model got of two messages to each agent."""
    assert len(model_server.bodies) == 2 * count
    for number, body in enumerate(model_server.bodies):
        picture, *rest = user_messages(body)
        assert (texts(picture), files(picture)) == (["What is it?"], [("image", PICTURE.body)])
        assert [texts(content) for content in rest] == ([["Which colour?"]] if number % 2 else [])


@pytest.mark.parametrize(
    "client",
    [
        *(*AI_SDKS, "ag_ui", "responses", "completions"),
        *("provider_responses", "provider_completions"),  # The AI SDK as a client of OpenAI's APIs.
    ],
)
async def test_picture_of_a_node_client_reaches_the_model_through_every_sdk(
    served: Served, run: Run, model_server: ScriptedModel, client: str
) -> None:
    async with run("files.mjs", served.url, client, ENCODED, *AGENTS) as script:
        for _ in AGENTS:
            assert await script.next() == "ready"
        await script.ended()
    check_requests(model_server)


# Python clients: each sends a picture, then a second message in the way that it continues a conversation


async def send_responses(client: AsyncOpenAI, agent: str) -> None:
    content: Any = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": DATA_URL}]
    sent: Any = [{"role": "user", "content": content}]
    first = await client.responses.create(model=agent, input=sent)
    await client.responses.create(model=agent, input="Which colour?", previous_response_id=first.id)


async def send_completions(client: AsyncOpenAI, agent: str) -> None:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": DATA_URL}}]
    messages: Any = [{"role": "user", "content": content}]
    first = await client.chat.completions.create(model=agent, messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "Which colour?"}]
    await client.chat.completions.create(model=agent, messages=messages)


async def send_langchain(client: AsyncOpenAI, agent: str) -> None:
    async with httpx.AsyncClient() as http:
        model = ChatOpenAI(model=agent, base_url=str(client.base_url), api_key="none", http_async_client=http)  # type: ignore[arg-type]
        image: Any = {"type": "image", "base64": ENCODED, "mime_type": "image/png"}
        messages: list[Any] = [HumanMessage([{"type": "text", "text": "What is it?"}, image])]
        messages += [await model.ainvoke(messages), HumanMessage("Which colour?")]
        await model.ainvoke(messages)


async def send_agents_sdk(client: AsyncOpenAI, agent: str) -> None:
    front = Agent(name="front", model=OpenAIResponsesModel(model=agent, openai_client=client))
    content: Any = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": DATA_URL}]
    sent: Any = [{"role": "user", "content": content}]
    config = RunConfig(tracing_disabled=True)
    first = await Runner.run(front, sent, run_config=config)
    following: Any = {"role": "user", "content": "Which colour?"}
    await Runner.run(front, [*first.to_input_list(), following], run_config=config)


async def send_pydantic_ai(client: AsyncOpenAI, agent: str) -> None:
    front = PydanticAgent(OpenAIChatModel(agent, provider=OpenAIProvider(openai_client=client)))
    first = await front.run(["What is it?", BinaryContent(PICTURE.body, media_type="image/png")])
    await front.run("Which colour?", message_history=first.all_messages())


async def send_turnwire(client: AsyncOpenAI, agent: str) -> None:
    async with AsyncClient(str(client.base_url).removesuffix("/v1/")) as ours:
        picture = attachment(PICTURE.body, "cat.png")
        turn = await ours.start("What is it?", agent=agent, attachments=[picture])
        await turn.result()
        await (await ours.start("Which colour?", agent=agent, session_id=turn.session_id)).result()


@pytest.mark.parametrize(
    "send",
    [send_responses, send_completions, send_langchain, send_agents_sdk, send_pydantic_ai, send_turnwire],
    ids=lambda send: send.__name__.removeprefix("send_"),
)
async def test_picture_of_a_python_client_reaches_the_model_through_every_sdk(
    served: Served, model_server: ScriptedModel, send: Callable[[AsyncOpenAI, str], Awaitable[None]]
) -> None:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for agent in AGENTS:
            await within(send(client, agent))
    check_requests(model_server)
