"""A client's model options as the configuration of a request of the SDK.

Only Gemini gets all of them: the SDK's models of other providers ignore parts of the configuration, so they get only
the client's instructions.
"""

from collections.abc import Sequence
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.models.apigee_llm import ApigeeLlm
from google.adk.models.gemma_llm import Gemma
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from turnwire.agents.sdk_agent import model_schema
from turnwire.core.log.model_options import OPTION_NAMES, ModelOptions, NamedTool
from turnwire.models.openai_shared import sampling_options

_MODES = {
    "none": types.FunctionCallingConfigMode.NONE,
    "required": types.FunctionCallingConfigMode.ANY,
}


def possible_options(root: Any, agents: Sequence[BaseAgent]) -> list[str]:
    """Return the model options that an agent can be run with. A workflow has no model that they could be meant for."""
    if not isinstance(root, LlmAgent):
        return []
    if not all(_is_gemini(agent) for agent in agents if isinstance(agent, LlmAgent)):
        return ["instructions"]
    return [name for name in OPTION_NAMES if name != "response_format" or root.output_schema is None]


def _is_gemini(agent: LlmAgent) -> bool:
    try:
        model = agent.canonical_model
    except ValueError:
        return False  # The SDK does not know the model's name, as the first turn will say.
    # Subclasses of Gemini that use another API cannot send all of the options.
    return isinstance(model, Gemini) and not isinstance(model, ApigeeLlm | Gemma) and not model.use_interactions_api


def add_to_request(options: ModelOptions, request: LlmRequest) -> None:
    """Add the client's options to a request; its instructions follow the agent's."""
    if options.instructions:
        request.append_instructions([options.instructions])
    choice, form = options.tool_choice, options.response_format
    fields = sampling_options(options, max_tokens="max_output_tokens", stop="stop_sequences")
    if choice is not None:
        mode, names = (_MODES["required"], [choice.name]) if isinstance(choice, NamedTool) else (_MODES[choice], None)
        calling = types.FunctionCallingConfig(mode=mode, allowed_function_names=names)
        own = request.config.tool_config or types.ToolConfig()
        fields["tool_config"] = own.model_copy(update={"function_calling_config": calling})
    if form is not None:
        fields |= {"response_mime_type": "application/json", "response_json_schema": form.schema}
    request.config = request.config.model_copy(update=fields)


def declared_schema(root: Any) -> dict[str, Any] | None:
    """Return the JSON schema of an agent's output type; None if it answers with text."""
    return model_schema(root.output_schema if isinstance(root, LlmAgent) else None)
