"""Agents that declare an output type: a client may ask for JSON of that type, and for no other."""

import json
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agno.agent import Agent as AgnoSdkAgent
from google.adk.agents import LlmAgent
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import NativeOutput

from tests.contracts.agent_cases import agno, google_adk, langgraph, openai_agents, pydantic_ai
from tests.contracts.agents import PATIENT
from tests.contracts.test_agent import outcome, text
from tests.contracts.test_agent_options import format_of
from tests.core.desk import Desk, open_actor_desk
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core.errors import ModelOptionNotTakenError
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


# As `parse()` of an OpenAI client sends it.
SCHEMA = {
    "title": "Weather",
    "type": "object",
    "properties": {"city": {"title": "City", "type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {"town": {"type": "string"}}}
PIECES = ('{"city": "Os', 'lo", "degrees": -3}')


def wanted(schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return {"response_format": {"type": "json_object"}}
    answer_schema = {"name": "Weather", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": answer_schema}}


async def check(desk: Desk, server: ScriptedModel, *, knows_schema: bool = True) -> None:
    """Check that the declared schema, or any object, can be schemas for, and that another schema is refused."""
    schemas = [None, SCHEMA] if knows_schema else [None]
    for schema in schemas:
        turn = await desk.start("How is Oslo?", options=wanted(schema))
        events = await desk.events(turn)
        assert outcome(events) == ("completed", None)
        assert json.loads(text(events)) == {"city": "Oslo", "degrees": -3}
    assert len(server.bodies) == len(schemas)
    with pytest.raises(ModelOptionNotTakenError, match="JSON of another schema"):
        await desk.start("How is Oslo?", options=wanted(OTHER))


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_output_type_of_the_openai_agents_sdk(model_server: ScriptedModel, api: Any) -> None:
    model_server.plan(says(*PIECES), says(*PIECES))
    model = openai_agents.sdk_model(model_server.url, api=api, timeout=PATIENT)
    agent = OpenAIAgent(name="Helper", model=model, output_type=Weather)
    async with open_actor_desk(MemoryStore(), agent) as desk:
        await check(desk, model_server)
    assert all(set(format_of(body)["properties"]) == {"city", "degrees"} for body in model_server.bodies)
    await openai_agents.close(agent)


@pytest.mark.parametrize("is_native", [True, False])
async def test_output_type_of_pydantic_ai(model_server: ScriptedModel, is_native: bool) -> None:
    call = calls(("final_result", {"city": "Oslo", "degrees": -3}))
    model_server.plan(*[says(*PIECES) if is_native else call] * 2)
    built = pydantic_ai.build(model_server.url, [], api="chat", timeout=PATIENT)
    output: Any = NativeOutput(Weather) if is_native else Weather
    agent: PydanticAgent[Any, Any] = PydanticAgent(built.model, output_type=output)
    async with open_actor_desk(MemoryStore(), agent) as desk:
        await check(desk, model_server)
    await pydantic_ai.close(built)


async def test_output_schema_of_agno(model_server: ScriptedModel) -> None:
    model_server.plan(says(*PIECES), says(*PIECES))
    agent = AgnoSdkAgent(model=agno.sdk_model(model_server.url, PATIENT), output_schema=Weather)
    async with open_actor_desk(MemoryStore(), agent) as desk:
        await check(desk, model_server)
    await agno.close(agent)


async def test_output_schema_of_google_adk(model_server: ScriptedModel) -> None:
    model_server.plan(says(*PIECES), says(*PIECES))
    agent = LlmAgent(name="Helper", model=google_adk.sdk_model(model_server.url, PATIENT), output_schema=Weather)
    async with open_actor_desk(MemoryStore(), agent) as desk:
        await check(desk, model_server)
    await google_adk.close(agent)


async def test_structured_response_of_langgraph(model_server: ScriptedModel) -> None:
    model_server.plan(says(*PIECES), says(*PIECES))
    built = langgraph.build(model_server.url, [], api="chat", timeout=PATIENT)
    graph: Any = create_agent(built.model, response_format=ProviderStrategy(Weather))
    async with open_actor_desk(MemoryStore(), graph) as desk:
        # A graph does not tell the schema of its response.
        await check(desk, model_server, knows_schema=False)
    await langgraph.close(built)


async def test_function_may_declare_its_schema() -> None:
    async def answer(turn: Any) -> str:
        return "".join(PIECES)

    answer.output_schema = Weather.model_json_schema()  # type: ignore[attr-defined]
    async with open_actor_desk(MemoryStore(), answer) as desk:
        turn = await desk.start("How is Oslo?", options=wanted(SCHEMA))
        assert json.loads(text(await desk.events(turn))) == {"city": "Oslo", "degrees": -3}
        with pytest.raises(ModelOptionNotTakenError, match="JSON of another schema"):
            await desk.start("How is Oslo?", options=wanted(OTHER))
