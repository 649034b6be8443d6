"""A client's model options as settings and output types of Pydantic AI."""

from dataclasses import replace
from typing import Any, cast

from pydantic_ai import NativeOutput, PromptedOutput, StructuredDict
from pydantic_ai.settings import ModelSettings

from turnwire.core.log.model_options import AnswerFormat, ModelOptions, NamedTool
from turnwire.models.openai_shared import sampling_options

# Models of OpenAI's Responses API, which has no `stop`; the SDK drops it silently.
_WITHOUT_STOP = ("openai:", "openai-responses:")


def run_settings(options: ModelOptions) -> ModelSettings:
    """Return the settings of a run, without the choice of tools: the SDK refuses one for a whole run."""
    return cast("ModelSettings", sampling_options(options, stop="stop_sequences"))


def with_tool_choice(options: ModelOptions, has_called: bool, request: Any) -> Any:
    """Return a model request with the client's choice of tools, which holds until the model has called one."""
    choice = options.for_call(has_tools=True, has_called=has_called).tool_choice
    if choice is None:
        return request
    named = [choice.name] if isinstance(choice, NamedTool) else choice
    return replace(request, model_settings={**(request.model_settings or {}), "tool_choice": named})


def output_of(form: AnswerFormat) -> Any:
    """Return the output type of a run whose answer is JSON, written as text."""
    if form.schema is None:
        return PromptedOutput(StructuredDict({"type": "object"}, form.name))
    return NativeOutput(StructuredDict(form.schema, form.name), strict=form.strict)


def has_stop(model: Any) -> bool:
    """Return True if a model takes stop sequences."""
    if isinstance(model, str):
        return not model.startswith(_WITHOUT_STOP)
    return "Responses" not in type(model).__name__
