"""A client's model options as fields of agno's models and arguments of their calls.

Every provider's model has its own fields. Only OpenAI's, of which most providers are subclasses, take a choice of tools
and any schema of the answer.
"""

from copy import copy
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.message import Message
from agno.team import Team

from turnwire.core.errors import AgentError, ModelOptionNotTakenError
from turnwire.core.log.model_options import OPTION_NAMES, ModelOptions
from turnwire.models.chat_completions import chat_options
from turnwire.models.openai_shared import sampling_options
from turnwire.models.responses import responses_options

_FIELDS = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "stop": ("stop", "stop_sequences"),
}


def possible_options(agent: Agent | Team, *, has_format: bool) -> list[str]:
    """Return the model options that an agent can be run with. `has_format` is True if its runs have an output type."""
    model = agent.model if isinstance(agent.model, Model) else None
    formats_itself = any(getattr(agent, name, None) for name in ("output_schema", "parser_model", "output_model"))
    impossible = {"response_format"} if has_format or formats_itself else set[str]()
    return [name for name in OPTION_NAMES if name not in impossible and model is not None and _has(model, name)]


def _has(model: Model, name: str) -> bool:
    """Return True if a model has an option, and the operator has not set it in another way that takes precedence."""
    if name == "instructions":
        return True
    if name not in _FIELDS:
        return _api(model) is not None
    fixed: dict[str, Any] = getattr(model, "request_params", None) or {}
    return any(hasattr(model, field) for field in _FIELDS[name]) and not any(field in fixed for field in _FIELDS[name])


def _api(model: Model) -> str | None:
    """Return the API of OpenAI that a model speaks, `chat` or `responses`; None if it speaks another one."""
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return "chat" if "OpenAIChat" in kinds else "responses" if "OpenAIResponses" in kinds else None


def add_to_call(
    options: ModelOptions, has_called: bool, model: Model, arguments: dict[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """Return the model and the arguments of a call with the client's options; the agent's own are left as they are.

    Raises AgentError for an option that this model, which need not be the agent's first one, does not have.
    """
    if not options.names:
        return model, arguments
    for name in options.names:
        if not _has(model, name):
            raise AgentError(
                f"The model {model.id!r} of the agent does not take {name!r}; send the message without it.",
                code=ModelOptionNotTakenError.code,
            )
    sent = options.for_call(has_tools=bool(arguments.get("tools")), has_called=has_called)
    fields = chat_options(sent, is_openai=False)
    added = dict[str, Any]()
    if sent.response_format is not None:
        added["response_format"] = fields["response_format"]  # The SDK converts it for the Responses API.
    if sent.tool_choice is not None:
        added["tool_choice"] = (fields if _api(model) == "chat" else responses_options(sent))["tool_choice"]
    if sent.instructions:
        added["messages"] = _extended(sent, arguments["messages"])
    return _changed(model, sent), {**arguments, **added}


def _changed(model: Model, options: ModelOptions) -> Model:
    values = sampling_options(options)
    if not values:
        return model
    open_client = getattr(model, "get_async_client", None)
    if open_client is not None:
        open_client()  # It is kept by the model, and so shared by its copies.
    made = copy(model)
    for name, value in values.items():
        setattr(made, _field(model, name), value)
    return made


def _field(model: Model, name: str) -> str:
    """Return the model's field for an option: if it has several, the one that is set, or that the server knows."""
    own = [field for field in _FIELDS[name] if hasattr(model, field)]
    if (used := next((field for field in own if getattr(model, field) is not None), None)) is not None:
        return used
    # Only OpenAI's own server has another name for the limit in this API.
    is_openai = name == "max_tokens" and _api(model) == "chat" and getattr(model, "base_url", None) is None
    return "max_completion_tokens" if is_openai else own[0]


def _extended(options: ModelOptions, messages: list[Message]) -> list[Message]:
    """Return the messages of a call with the client's instructions after the agent's own."""
    first = messages[0] if messages and messages[0].role in ("system", "developer") else None
    if first is None:
        return [Message(role="system", content=options.instructions), *messages]
    return [first.model_copy(update={"content": options.extend(str(first.content or ""))}), *messages[1:]]
