"""Problems of agents are reported when the server starts, not by the first turn that fails."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, handoff
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent

from turnwire import Turnwire
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.agents.loader import as_agent
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.agents.pydantic_ai import PydanticAIAgent
from turnwire.cli.serve import find_notes
from turnwire.core.contracts.agents import problems_of


@dataclass
class Deps:
    user: str


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_missing_key_is_noticed_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OpenAIChatCompletionsModel("small", AsyncOpenAI(base_url="http://localhost:1", api_key="none"))
    keyless = Agent(name="Keyless", model="gpt-5-mini")
    front = Agent(name="Front", model=own, handoffs=[handoff(keyless)])
    for agent in (keyless, front, Agent(name="Keyless"), Agent(name="Keyless", model="openai/gpt-5-mini")):
        (problem,) = problems_of(as_agent(agent))
        assert "'Keyless' calls OpenAI's service, and there is no key" in problem
    assert problems_of(as_agent(Agent(name="Own", model=own))) == []
    assert problems_of(as_agent(Agent(name="Other", model="litellm/other"))) == []
    assert problems_of(OpenAIAgentsAgent(keyless, run_config=RunConfig(model=own))) == []
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    assert problems_of(as_agent(keyless)) == []


def test_missing_dependencies_and_context_are_noticed() -> None:
    agent = PydanticAgent("test", deps_type=Deps)
    (problem,) = problems_of(as_agent(agent))
    assert "`deps` of type Deps" in problem
    assert "to_deps=" in problem
    assert problems_of(PydanticAIAgent(agent, to_deps=lambda turn: Deps("ann"))) == []
    assert problems_of(PydanticAIAgent(agent, deps=Deps("ann"))) == []
    assert problems_of(as_agent(PydanticAgent("test"))) == []
    graph: Any = create_agent(ChatOpenAI(model="small", api_key="none"), [], context_schema=Deps)  # type: ignore[arg-type]
    (problem,) = problems_of(as_agent(graph))
    assert "a context of type Deps" in problem
    assert problems_of(LangGraphAgent(graph, to_context=lambda turn: Deps("ann"))) == []
    assert problems_of(as_agent(create_agent(ChatOpenAI(model="small", api_key="none"), []))) == []  # type: ignore[arg-type]


def test_problems_are_lines_of_the_welcome_and_never_keep_a_server_from_starting(tmp_path: Path) -> None:
    class Broken:
        async def answer(self, turn: Any) -> str:
            return "x"

        def find_problems(self) -> list[str]:
            raise KeyError("no")

    turnwire = Turnwire(agents={"helper": Agent(name="Keyless"), "other": Broken()}, store="memory")
    (line,) = find_notes(turnwire)
    assert "The agent helper may fail:" in line
    assert "OPENAI_API_KEY" in line
