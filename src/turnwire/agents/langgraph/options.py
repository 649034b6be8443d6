"""A client's model options as arguments of LangChain's models.

A graph's models are fixed when it is made, so the options are added to each call of the graph's own agent.
"""

from typing import Any, cast

from langchain_core.language_models import BaseChatModel

from turnwire.core.errors import AgentError, ModelOptionNotTakenError
from turnwire.core.log.model_options import ModelOptions, NamedTool

POSSIBLE = ("temperature", "top_p", "max_tokens", "stop", "tool_choice")
_FIELDS = ("temperature", "top_p", "max_tokens")


def add_to_call(
    options: ModelOptions, model: BaseChatModel, arguments: dict[str, Any], *, has_called: bool
) -> dict[str, Any]:
    """Return the arguments of a model call with the client's options; `stop` is one of them.

    Raises AgentError for an option that this model does not have.
    """
    added: dict[str, Any] = {name: value for name in _FIELDS if (value := getattr(options, name)) is not None}
    for name in added:
        if name not in type(model).model_fields:
            raise _not_taken(model, name)
    if options.stop:
        if getattr(model, "use_responses_api", None):
            raise _not_taken(model, "stop")
        added["stop"] = list(options.stop)
    tools = cast("list[Any]", arguments.get("tools") or [])
    choice = options.tool_choice
    if choice is not None and tools and (choice == "none" or not has_called):
        named = choice.name if isinstance(choice, NamedTool) else choice
        try:
            added["tool_choice"] = cast("Any", model.bind_tools(tools, tool_choice=named)).kwargs["tool_choice"]
        except (KeyError, NotImplementedError, TypeError, ValueError):
            raise _not_taken(model, "tool_choice") from None
    return {**arguments, **added}


def _not_taken(model: BaseChatModel, name: str) -> AgentError:
    return AgentError(
        f"The model {type(model).__name__} of the agent does not take {name!r}; send the message without it.",
        code=ModelOptionNotTakenError.code,
    )
