"""Model options: what a client may say about how the model answers its message.

They are options of a turn like any other, under the names in `OPTION_NAMES`, so that an agent that is a function reads
them as it always has. `ModelOptions` is their typed value, for the agents that hand them to a model. Which of them an
agent takes is its operator's decision (`takes_model_options`): a client cannot change the instructions of an agent that
does not allow it.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from turnwire.core.errors import ModelOptionNotTakenError

OPTION_NAMES = ("instructions", "temperature", "top_p", "max_tokens", "stop", "tool_choice", "response_format")
SAFE_OPTIONS = tuple(name for name in OPTION_NAMES if name != "instructions")
"""The options that adapters take by default, as far as their SDK can: all that cannot change what the agent is for."""
UNDECLARED_OPTIONS = ("instructions", "temperature", "top_p", "max_tokens", "stop")
"""The options that are passed to an agent that declares nothing. It reads them in `turn.options`, or does not."""
# The names that OpenAI's two APIs have for `max_tokens`.
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_MAX_DEPTH = 32
_NOT_COMPARED = ("title", "description", "default", "examples", "$schema", "additionalProperties", "required")


class NamedTool(Struct, frozen=True):
    """The one tool that the model has to call."""

    name: str


ToolChoice = Literal["none", "required"] | NamedTool


class AnswerFormat(Struct, frozen=True):
    """JSON as the form of the answer: a value of the schema, or any object without one."""

    schema: dict[str, Any] | None = None
    name: str = "answer"
    strict: bool | None = None


class ModelOptions(Struct, frozen=True, kw_only=True):
    """The model options of a turn. Those that are None or empty were not sent.

    `instructions` follow those of the agent. A `tool_choice` other than `none` holds until the model has called a tool.
    """

    instructions: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    response_format: AnswerFormat | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the options that were sent."""
        return [name for name in OPTION_NAMES if getattr(self, name) not in (None, ())]

    def for_call(self, *, has_tools: bool, has_called: bool) -> "ModelOptions":
        """Return the options of one model call. `has_called` is True if the model has called a tool in this turn."""
        choice = self.tool_choice
        if choice is None or (has_tools and (choice == "none" or not has_called)):
            return self
        return msgspec.structs.replace(self, tool_choice=None)

    def extend(self, instructions: str) -> str:
        """Return the agent's instructions, followed by the client's."""
        return "\n\n".join(filter(None, (instructions, self.instructions)))


_SENT_NAMES = frozenset((*OPTION_NAMES, *_MAX_TOKENS))
_NO_OPTIONS = ModelOptions()


def model_options(options: Mapping[str, Any]) -> ModelOptions:
    """Return the model options among the options of a turn."""
    if options.keys().isdisjoint(_SENT_NAMES):
        return _NO_OPTIONS
    stop = options.get("stop") or ()
    return ModelOptions(
        instructions=options.get("instructions") or None,
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        max_tokens=next((options[name] for name in _MAX_TOKENS if options.get(name) is not None), None),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        tool_choice=_tool_choice(options.get("tool_choice")),
        response_format=_answer_format(options.get("response_format")),
    )


def _tool_choice(value: Any) -> ToolChoice | None:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        name = fields.get("name") or cast("dict[str, Any]", fields.get("function") or {}).get("name")
        return NamedTool(name) if isinstance(name, str) else None
    return value if value in ("none", "required") else None


def _answer_format(value: Any) -> AnswerFormat | None:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    match fields.get("type"):
        case "json_object":
            return AnswerFormat()
        case "json_schema":
            return msgspec.convert(fields["json_schema"], AnswerFormat)
        case _:
            return None


def declared_options(agent: object) -> frozenset[str] | None:
    """Return the names of the model options that an agent takes; None if it declares nothing about them."""
    taken: bool | Collection[str] | None = getattr(agent, "takes_model_options", None)
    return None if taken is None else chosen_options(taken, OPTION_NAMES)


def output_schema(agent: object) -> dict[str, Any] | None:
    """Return the JSON schema of the value that the agent always answers with; None if it answers with text."""
    schema: object = getattr(agent, "output_schema", None)
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else None


def chosen_options(choice: bool | Collection[str], possible: Collection[str]) -> frozenset[str]:
    """Return the options of an operator's choice that an adapter can hand on. Raises ValueError for an unknown name."""
    if isinstance(choice, bool):
        return frozenset(possible if choice else ())
    if unknown := next((name for name in choice if name not in OPTION_NAMES), None):
        raise ValueError(f"takes_model_options: {unknown!r} is not one of {', '.join(OPTION_NAMES)}")
    return frozenset(choice) & frozenset(possible)


def check_model_options(name: str, agent: object, sent: ModelOptions) -> None:
    """Raise ModelOptionNotTakenError if a turn has a model option that the agent does not take."""
    if sent is _NO_OPTIONS:
        return
    is_undeclared = (declared_names := declared_options(agent)) is None
    taken = frozenset(UNDECLARED_OPTIONS) if declared_names is None else declared_names
    for option in sent.names:
        # With `none`, the client's tools were left out, which is enough for an agent that declares nothing.
        if option in taken or (is_undeclared and sent.tool_choice == "none" and option == "tool_choice"):
            continue
        if option == "response_format" and sent.response_format is not None and (declared := output_schema(agent)):
            if _is_alike(sent.response_format.schema, declared):
                continue
            raise ModelOptionNotTakenError(name, option, "always answers with JSON of another schema")
        raise ModelOptionNotTakenError(name, option)


def _is_alike(schema: dict[str, Any] | None, declared: dict[str, Any]) -> bool:
    """Return True if every value of the declared schema fits the one that a client wants, as far as can be told."""
    return schema is None or _shape(schema, schema) == _shape(declared, declared)


def _shape(schema: Any, root: dict[str, Any], depth: int = 0) -> Any:
    """Return a schema for comparison: without the keywords in `_NOT_COMPARED`, and with its references resolved."""
    if isinstance(schema, list):
        return [_shape(item, root, depth) for item in cast("list[Any]", schema)]
    node = cast("dict[str, Any]", schema) if isinstance(schema, dict) and depth < _MAX_DEPTH else None
    if node is None:
        return cast("Any", schema)
    if isinstance(reference := node.get("$ref"), str) and reference.startswith("#/$defs/"):
        return _shape(root.get("$defs", {}).get(reference.removeprefix("#/$defs/")), root, depth + 1)
    if isinstance(properties := node.get("properties"), dict):
        fields = {key: _shape(value, root, depth + 1) for key, value in cast("dict[str, Any]", properties).items()}
        return {"type": "object", "properties": fields}
    return {key: _shape(value, root, depth + 1) for key, value in node.items() if key not in (*_NOT_COMPARED, "$defs")}
