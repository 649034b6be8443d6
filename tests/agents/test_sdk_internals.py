"""Another version of an SDK is noticed when an agent is built, not by the first turn that fails."""

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import agents.tool as agents_tool
import pytest
from agents import Agent as OpenAISdkAgent
from agents import FunctionTool, Handoff, OpenAIChatCompletionsModel
from agents import Model as OpenAISdkModel
from agents.agent import AgentBase
from agents.models import _openai_shared
from agno.agent import Agent as AgnoSdkAgent
from agno.models.base import Model as AgnoModel
from agno.team import Team
from agno.tools.function import Function
from claude_agent_sdk import ClaudeAgentOptions
from claude_agent_sdk._internal.transport import subprocess_cli
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.utils import _sync_runner
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from mcp.server.lowlevel import Server
from pydantic_ai import Agent as PydanticSdkAgent

from turnwire.agents.agno import AgnoAgent
from turnwire.agents.claude import ClaudeAgent, claude_tools
from turnwire.agents.google_adk import GoogleADKAgent
from turnwire.agents.llama_index import LlamaIndexAgent, OpenAICompatibleLLM
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.agents.pydantic_ai import PydanticAIAgent
from turnwire.agents.sdk_internals import supported_versions, wrap


def agno() -> Any:
    return AgnoAgent(AgnoSdkAgent())


def google_adk() -> Any:
    return GoogleADKAgent(LlmAgent(name="Desk", model="gemini-3-flash"))


LLM = OpenAICompatibleLLM("small", base_url="http://localhost:1", api_key="none")
LLAMA_AGENT = FunctionAgent(llm=LLM, tools=[])


def llama_index() -> Any:
    return LlamaIndexAgent(LLAMA_AGENT)


def claude() -> Any:
    return ClaudeAgent(ClaudeAgentOptions(mcp_servers={"ours": claude_tools([])}))


def pydantic_ai() -> Any:
    return PydanticAIAgent(PydanticSdkAgent())


def openai_agents() -> Any:
    return OpenAIAgentsAgent(OpenAISdkAgent(name="Desk"))


INVOKER = agents_tool._FailureHandlingFunctionToolInvoker  # pyright: ignore[reportPrivateUsage]
INTERNALS: list[tuple[str, Callable[[], Any], Any, str]] = [
    ("agno", agno, AgnoModel, "aresponse_stream"),
    ("agno", agno, AgnoModel, "aprocess_response_stream"),
    ("agno", agno, AgnoModel, "_aprocess_model_response"),
    ("agno", agno, AgnoModel, "arun_function_call"),
    ("agno", agno, AgnoModel, "get_function_calls_to_run"),
    ("agno", agno, AgnoSdkAgent, "arun"),
    ("agno", agno, Team, "arun"),
    ("agno", agno, Function, "_run_context"),
    ("claude-agent-sdk", claude, subprocess_cli, "SubprocessCLITransport"),
    ("mcp", claude, Server, "get_request_handler"),
    ("mcp", claude, Server, "add_request_handler"),
    ("google-adk", google_adk, Runner, "run_async"),
    ("google-adk", google_adk, Runner, "plugin_manager"),
    ("google-adk", google_adk, _sync_runner, "_use_executor_for_sync_callables"),
    ("llama-index-core", llama_index, BaseWorkflowAgent, "call_tool"),
    ("llama-index-core", llama_index, BaseWorkflowAgent, "_call_tool"),
    ("llama-index-core", llama_index, BaseWorkflowAgent, "take_step"),
    ("llama-index-core", llama_index, BaseWorkflowAgent, "handle_tool_call_results"),
    ("llama-index-core", llama_index, AgentWorkflow, "call_tool"),
    ("llama-index-core", llama_index, AgentWorkflow, "_call_tool"),
    ("llama-index-core", llama_index, BaseWorkflowAgent.call_tool, "_step_config"),
    ("openai-agents", openai_agents, OpenAISdkModel, "_cleanup_on_run_end"),
    ("openai-agents", openai_agents, OpenAIChatCompletionsModel, "_fetch_response"),
    ("openai-agents", openai_agents, AgentBase, "get_all_tools"),
    ("openai-agents", openai_agents, FunctionTool, "_is_agent_tool"),
    ("openai-agents", openai_agents, Handoff, "_agent_ref"),
    ("pydantic-ai-slim", pydantic_ai, PydanticSdkAgent, "_output_validators"),
    ("openai-agents", openai_agents, agents_tool, "_FailureHandlingFunctionToolInvoker"),
    ("openai-agents", openai_agents, INVOKER, "__agents_bind_function_tool__"),
    ("openai-agents", openai_agents, _openai_shared, "get_default_openai_key"),
    ("openai-agents", openai_agents, _openai_shared, "get_default_openai_client"),
]


def _remove(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Take an attribute away from a class or module, also the declaration of a private field."""
    for declared in ("__annotations__", "__private_attributes__"):
        if name in getattr(owner, declared, {}):
            monkeypatch.delitem(getattr(owner, declared), name)
    if name in vars(owner):
        monkeypatch.delattr(owner, name)


@pytest.mark.parametrize(("sdk", "build", "owner", "name"), INTERNALS)
def test_missing_internal_of_an_sdk_fails_the_build_and_names_the_versions(
    monkeypatch: pytest.MonkeyPatch, sdk: str, build: Callable[[], Any], owner: Any, name: str
) -> None:
    build()
    _remove(monkeypatch, owner, name)
    with pytest.raises(RuntimeError) as caught:
        build()
    message = str(caught.value)
    assert message.startswith(f"{sdk} {version(sdk)} is not supported: there is no ")
    assert f".{name}; install {sdk}{supported_versions(sdk)}" in message


def test_llama_index_whose_workflows_keep_their_steps_elsewhere_is_refused() -> None:
    agent = FunctionAgent(llm=LLM, tools=[])
    object.__delattr__(agent, "_broker_config")
    with pytest.raises(RuntimeError, match=r"there is no FunctionAgent\._broker_config; install llama-index-core>="):
        LlamaIndexAgent(agent)


class Phone:
    """A stand-in for a class of an SDK."""

    def call(self, number: str, *, patience: float = 1.0) -> str:
        return f"called {number}"


@pytest.mark.parametrize("signature", ["self", "self, name", "self, number, extra", "number, self", "self, *number"])
def test_function_with_other_parameters_is_refused(signature: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(f"Phone.call does not take ({signature}); install agno>=")):
        wrap("agno", Phone, "call", signature)


def test_function_may_have_more_optional_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Phone.call
    assert wrap("agno", Phone, "call", "self, number") is original
    assert wrap("agno", Phone, "call", "self, number, patience") is original


def test_function_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Phone.call
    monkeypatch.setattr(Phone, "call", original)

    def louder(inner: Any) -> Any:
        def call(phone: Phone, number: str) -> str:
            return f"{inner(phone, number)}!"

        return call

    for _ in range(2):
        assert wrap("agno", Phone, "call", "self, number", louder) is original
    assert Phone().call("112") == "called 112!"


def test_missing_module_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"there is no agno\.gone\.thing"):
        wrap("agno", "agno.gone", "thing")


def test_supported_versions_are_those_of_the_extra() -> None:
    assert supported_versions("agno") == ">=3.1,<4"
    assert supported_versions("pydantic-ai-slim").startswith(">=")
