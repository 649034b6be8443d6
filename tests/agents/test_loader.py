"""Objects that a developer gives as an agent are recognised, and no SDK is imported to find out."""

import json
import re
import sys
from collections.abc import AsyncIterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.agents.loader import FunctionAgent, GeneratorAgent, as_agent, kind_of, load_agent
from turnwire.core.log.turns import Turn
from turnwire.plugins import Plugin, installed


def imitation(module: str, name: str) -> Any:
    """An object whose class says that it comes from there."""
    base = type(name, (), {"__module__": module})
    return type("Mine", (base,), {})()


async def generator(turn: Turn) -> AsyncIterator[str]:
    yield "hello"


async def function(turn: Turn) -> str:
    return "hello"


class Called:
    async def __call__(self, turn: Turn) -> str:
        return "hello"


class CalledGenerator:
    async def __call__(self, turn: Turn) -> AsyncIterator[str]:
        yield "hello"


class Answering:
    def answer(self, turn: Turn) -> AsyncIterator[str]:
        return generator(turn)


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (generator, GeneratorAgent),
        (CalledGenerator(), GeneratorAgent),
        (function, FunctionAgent),
        (Called(), FunctionAgent),
        (Answering(), Answering),
    ],
    ids=["generator", "called generator", "function", "called function", "object"],
)
def test_functions_and_objects(target: Any, kind: type) -> None:
    assert isinstance(as_agent(target), kind)


def test_our_own_agent_is_one() -> None:
    agent = ChatCompletionsAgent("small", base_url="http://127.0.0.1:9/v1")
    assert as_agent(agent) is agent


@pytest.mark.parametrize("target", [None, 3, "echo", object()], ids=["None", "number", "text", "object"])
def test_object_that_is_no_agent_is_refused_with_what_is_accepted(target: Any) -> None:
    with pytest.raises(TypeError, match="is not an agent: give a function"):
        as_agent(target)


async def without_turn() -> str:
    return "hello"


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        (Answering, "`Answering` is a class, not an agent: make an instance"),
        (json.dumps, "`dumps` takes more than a turn: write `def dumps\\(turn\\)`"),
        (without_turn, "`without_turn` cannot be called with a turn: write `async def without_turn\\(turn\\)`"),
        (imitation("langchain_core.tools.base", "BaseTool"), "is a LangChain tool, not an agent"),
    ],
    ids=["class", "function with more than a turn", "function without a turn", "LangChain tool"],
)
def test_common_mistake_is_refused_with_the_remedy(target: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        as_agent(target)


@pytest.mark.parametrize(
    ("reference", "content", "advice"),
    [
        ("mistaken.py:agent", "", "names a file; name the module instead: mistaken:agent"),
        ("mistaken_syntax:agent", "x = (\n", "mistaken_syntax.py, line 1: '\\(' was never closed"),
        ("mistaken_failure:agent", "import os\nos.environ['NO_SUCH_KEY']\n", "mistaken_failure.py, line 2: KeyError"),
        ("mistaken_attribute:agent", "import os\nagent = os.nothing\n", "attribute.py, line 2: AttributeError"),
        ("mistaken_name:agent", "agents = 1\n", "'mistaken_name' has no 'agent'"),
    ],
    ids=["file", "syntax", "failure", "attribute", "name"],
)
def test_module_that_cannot_be_used_is_refused_with_the_reason(
    reference: str, content: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tmp_path.joinpath(reference.partition(":")[0].removesuffix(".py") + ".py").write_text(content)
    with pytest.raises(ValueError, match=advice):
        load_agent(reference)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("agents.agent", "Agent", "agents"),
        ("langchain_core.runnables.base", "Runnable", "langchain"),
        ("langgraph.pregel.main", "Pregel", "langchain"),
        ("workflows.workflow", "Workflow", "llama-index"),
        ("pydantic_ai.agent", "Agent", "pydantic-ai"),
        ("pydantic_ai.agent.abstract", "AbstractAgent", "pydantic-ai"),
    ],
)
def test_an_agent_of_an_sdk_is_known_by_its_classes(module: str, name: str, extra: str) -> None:
    found = kind_of(imitation(module, name))
    assert found is not None
    assert found[0].extra == f"turnwire[{extra}]"


@pytest.mark.parametrize(("module", "name"), [("agents.tool", "Tool"), ("my_agents", "Agent"), ("langgraph.x", "Y")])
def test_other_classes_of_theirs_and_ours_are_not(module: str, name: str) -> None:
    assert kind_of(imitation(module, name)) is None


def test_a_package_of_ones_own_may_be_called_agents() -> None:
    mine = type("Agent", (Answering,), {"__module__": "agents"})()
    assert as_agent(mine) is mine


def test_sdk_of_another_version_is_an_error_for_its_agents_and_a_warning_for_functions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delattr(Runner, "run_async")
    assert isinstance(as_agent(function), FunctionAgent)
    assert "there is no Runner.run_async" in caplog.text
    shelf: Any = type(sys)("a_shelf")
    shelf.target = LlmAgent(name="helper")
    monkeypatch.setitem(sys.modules, "a_shelf", shelf)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="is not supported"):
        load_agent("a_shelf:target")


@pytest.mark.parametrize("plugin", [plugin for plugin in installed().values() if plugin.kinds], ids=attrgetter("name"))
def test_a_missing_extra_is_told_with_the_command(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert plugin.extra is not None
    module, name = min(plugin.kinds[0].classes)
    monkeypatch.setitem(sys.modules, plugin.kinds[0].adapter.partition(":")[0], None)
    target = imitation(module, name)
    with pytest.raises(ImportError, match=re.escape(f"pip install '{plugin.extra}'")):
        as_agent(target)
    shelf = type(sys)("a_shelf")
    shelf.target = target  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_shelf", shelf)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="pip install"):
        load_agent("a_shelf:target")
