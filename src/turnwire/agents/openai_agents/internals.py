"""The internals of the SDK that this package uses, checked when an agent is built."""

from typing import Any

from agents import FunctionTool, Handoff, Model
from agents.agent import AgentBase
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel

from turnwire.agents.sdk_internals import wrap

SDK = "openai-agents"
_SHARED = "agents.models._openai_shared"
_FETCH = "self, system_instructions, input, model_settings, tools, output_schema, handoffs, span, tracing, stream"


def check_internals() -> None:
    """Raise RuntimeError for a version of the SDK that differs."""
    wrap(SDK, Model, "_cleanup_on_run_end", "self, owner")
    wrap(SDK, OpenAIChatCompletionsModel, "_fetch_response", _FETCH)
    wrap(SDK, AgentBase, "get_all_tools", "self, run_context")
    wrap(SDK, FunctionTool, "_is_agent_tool")
    wrap(SDK, Handoff, "_agent_ref")
    wrap(SDK, invoker_class(), "__agents_bind_function_tool__", "self, function_tool")
    has_default_key()


def invoker_class() -> Any:
    """Return the class of the SDK's own invokers of function tools."""
    return wrap(SDK, "agents.tool", "_FailureHandlingFunctionToolInvoker")


def has_default_key() -> bool:
    """Return True if the application has given the SDK a key or a client of its own."""
    find_key = wrap(SDK, _SHARED, "get_default_openai_key", "")
    find_client = wrap(SDK, _SHARED, "get_default_openai_client", "")
    return bool(find_key() or find_client())
