"""A client's model options as settings of LlamaIndex's LLMs.

Turnwire's own LLM takes all of them. On any other LLM, an option is set if the LLM has a field for it.
"""

from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent

from turnwire.agents.llama_index.llm import OpenAICompatibleLLM
from turnwire.core.log.model_options import OPTION_NAMES, ModelOptions
from turnwire.models.openai_shared import sampling_options

_FIELDS = ("temperature", "top_p", "max_tokens", "stop")


def possible_options(agent: Any) -> frozenset[str]:
    """Return the model options that an agent, or all agents of a workflow of agents, can be run with."""
    match agent:
        case AgentWorkflow():
            agents = [*agent.agents.values()]
        case BaseWorkflowAgent():
            agents = [agent]
        case _:
            return frozenset()
    possible = frozenset(OPTION_NAMES).intersection(*map(_options_of, agents))
    formats_itself = any(each.output_cls or each.structured_output_fn for each in (agent, *agents))
    return possible - {"response_format"} if formats_itself else possible


def _options_of(agent: Any) -> frozenset[str]:
    names = {"instructions", *_options_of_llm(agent.llm)}
    if not isinstance(agent, FunctionAgent):
        # Other agents write their calls and their answer in the SDK's own text format, which these options would break.
        names -= {"tool_choice", "response_format", "stop"}
    return frozenset(names)


def _options_of_llm(llm: Any) -> set[str]:
    if isinstance(llm, OpenAICompatibleLLM):
        return {name for name in OPTION_NAMES if name != "stop" or llm.api == "chat"}
    fields: dict[str, Any] = llm.__class__.model_fields
    fixed: dict[str, Any] = getattr(llm, "additional_kwargs", None) or {}
    return {name for name in _FIELDS if name in fields and name not in fixed}


def with_options(llm: Any, options: ModelOptions) -> Any:
    """Return an LLM for one call, with a client's options, but not its instructions."""
    if not options.names:
        return llm
    if isinstance(llm, OpenAICompatibleLLM):
        return llm.with_options(options)
    return llm.model_copy(update=update) if (update := sampling_options(options)) else llm
