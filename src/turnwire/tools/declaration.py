"""Tools: `@tool` makes one of a function with type hints and a docstring; a `Toolset` brings tools from elsewhere."""

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, get_type_hints, overload, runtime_checkable

import msgspec
from msgspec import Struct, structs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

logger = logging.getLogger("turnwire.tools")

Function = Callable[..., Any]
NeedsApproval = bool | Callable[[dict[str, Any]], bool]
NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
"""The tool names that all model providers accept."""
MAX_OUTPUT = 20_000
"""The length at which a result is cut: so many characters fit into one event, whatever they are."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that a model may call. `timeout` is in seconds, `max_output` in characters.

    With `needs_approval` a person must approve a call before it runs; a function of the arguments decides per call. If
    it is `editable`, the person may change the arguments. An `idempotent` tool may run again when it is unknown whether
    it has run.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Function
    arguments: "Arguments | UncheckedArguments"
    timeout: float = 60.0
    max_output: int = MAX_OUTPUT
    needs_approval: NeedsApproval = False
    idempotent: bool = False
    editable: bool = False

    def requires_approval(self, args: dict[str, Any]) -> bool:
        """Return True if a person must approve a call with these arguments; invalid ones fail without approval."""
        try:
            self.arguments.check(args)
        except BadArgumentsError:
            return False
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return self.needs_approval(args)
        except Exception:
            # A call is harmless only if the function says so.
            logger.exception("the needs_approval function of the tool %s failed; approval is required", self.name)
            return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = MAX_OUTPUT,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
    editable: bool = False,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = MAX_OUTPUT,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
    editable: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Declare a function, sync or async, as a tool. Its docstring is the description for the model.

    Raise TypeError for parameters that cannot be passed by name or have no JSON type, and ValueError for a name that
    model providers do not accept.
    """

    def declare(function: Function) -> Tool:
        tool_name = name or getattr(function, "__name__", type(function).__name__)
        if not NAME.fullmatch(tool_name):
            raise ValueError(
                f"a tool cannot be called {tool_name!r}: use letters, digits, _ and -, at most 64; name=..."
            )
        arguments = Arguments(function)
        return Tool(
            name=tool_name,
            description=inspect.cleandoc(description or inspect.getdoc(function) or ""),
            parameters=arguments.schema,
            function=function,
            arguments=arguments,
            timeout=timeout,
            max_output=max_output,
            needs_approval=needs_approval,
            idempotent=idempotent,
            editable=editable,
        )

    return declare if function is None else declare(function)


def as_tool(function: Tool | Function) -> Tool:
    return function if isinstance(function, Tool) else tool(function)


@runtime_checkable
class Toolset(Protocol):
    """A source of tools that may change, such as an MCP server. One toolset may serve many turns and agents at once."""

    name: str

    async def open(self) -> Sequence[Tool]:
        """Return the current tools, connecting first if needed. Called at the beginning of every turn.

        Raise AgentError, with a message for the user, if the tools are not available.
        """
        ...

    async def close(self) -> None:
        """Release what `open` acquired. May be called again; a later `open` connects again."""
        ...


async def open_toolsets(tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> dict[str, Tool]:
    """Return the agent's own tools and those of its toolsets by name. Raise AgentError.

    A tool whose name is taken gets the name of its toolset as a prefix, so that none can replace another.
    """
    by_name = dict(tools)
    opened = await asyncio.gather(*(toolset.open() for toolset in toolsets))
    for toolset, offered in zip(toolsets, opened, strict=True):
        for tool in offered:
            name = tool.name if tool.name not in by_name else f"{toolset.name}_{tool.name}"
            if name in by_name or not NAME.fullmatch(name):
                logger.warning("the tool %r of %r is skipped: its name is taken", tool.name, toolset.name)
                continue
            by_name[name] = tool if name == tool.name else structs.replace(tool, name=name)
    return by_name


# Arguments: a function's parameters as a JSON schema for the model, and as a check of the model's arguments.

_NAMED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class BadArgumentsError(Exception):
    """The model's arguments do not fit the tool; the message is for the model."""


class Arguments:
    """The parameters of one function. Raise TypeError for a parameter that a model cannot pass."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
        fields: dict[str, Any] = {}
        for number, parameter in enumerate(parameters):
            if parameter.kind not in _NAMED_PARAMETERS:
                raise TypeError(f"a tool's parameters need names, and {parameter} in {function!r} has none")
            default = ... if parameter.default is parameter.empty else parameter.default
            # Fields have numbers as names, because pydantic reserves some names that a parameter may have.
            fields[f"p{number}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
        self._names = {f"p{number}": parameter.name for number, parameter in enumerate(parameters)}
        config = ConfigDict(extra="forbid")
        try:
            self._model: type[BaseModel] = create_model("Arguments", __config__=config, **fields)
            self.schema = self._model.model_json_schema(schema_generator=_WithoutTitles)
        except PydanticUserError as error:
            name = getattr(function, "__name__", repr(function))
            raise TypeError(f"{name!r} has a parameter that JSON cannot hold: {error.message}") from error
        del self.schema["title"]

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raise BadArgumentsError."""
        try:
            checked = self._model.model_validate(args)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            message = "; ".join(f"{_location(detail['loc'])}: {detail['msg']}" for detail in details)
            raise BadArgumentsError(message) from None
        # Missing arguments are left to the function's own defaults.
        return {self._names[field]: getattr(checked, field) for field in checked.model_fields_set}


class UncheckedArguments:
    """The arguments of a remote tool, which checks them itself."""

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return args


class _WithoutTitles(GenerateJsonSchema):
    """Schema generator without titles, which only repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _location(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "arguments"


def read_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments that a model wrote as text, or None if they are not a JSON object."""
    try:
        return msgspec.json.decode(text.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
