"""A client's model options as settings of the OpenAI Agents SDK."""

from typing import Any

from agents import Agent, AgentOutputSchema, AgentOutputSchemaBase, ModelSettings

from turnwire.core.log.model_options import ModelOptions, NamedTool
from turnwire.models.chat_completions import chat_options
from turnwire.models.openai_shared import sampling_options
from turnwire.models.responses import responses_options


def run_settings(options: ModelOptions) -> ModelSettings:
    """Return the settings of a run. The SDK resets a choice of tools when one was called."""
    choice = options.tool_choice
    choice_name = choice.name if isinstance(choice, NamedTool) else choice
    return ModelSettings(**sampling_options(options, stop=None), tool_choice=choice_name)


def request_settings(options: ModelOptions, *, is_chat: bool) -> ModelSettings:
    """Return the settings of a request for options that the SDK has no setting for."""
    fields = chat_options(options, is_openai=False) if is_chat else responses_options(options)
    extra = {name: fields[name] for name in ("stop", "response_format", "text") if name in fields}
    return ModelSettings(extra_args=extra or None)


def declared_schema(agent: Agent[Any]) -> dict[str, Any] | None:
    """Return the JSON schema of an agent's output type; None if it answers with text."""
    kind: Any = agent.output_type
    if kind in (None, str):
        return None
    schema = kind if isinstance(kind, AgentOutputSchemaBase) else AgentOutputSchema(kind)
    return None if schema.is_plain_text() else schema.json_schema()
