"""`@tool`: a function with type hints and a docstring is all that a tool is."""

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

# What a function takes, as a JSON schema for the model and as a check of what the model wrote.


# Those that can be given by their names.
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class BadArgumentsError(Exception):
    """The model's arguments do not fit the tool; the message is for the model."""


class Arguments:
    """The parameters of one function. Raises TypeError for those that a model could not give."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
        fields: dict[str, Any] = {}
        for number, parameter in enumerate(parameters):
            if parameter.kind not in _NAMED:
                raise TypeError(f"a tool's parameters need names, and {parameter} in {function!r} has none")
            default = ... if parameter.default is parameter.empty else parameter.default
            # A field is called by a number: a parameter may have a name that pydantic keeps for itself.
            fields[f"p{number}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
        self._names = {f"p{number}": parameter.name for number, parameter in enumerate(parameters)}
        config = ConfigDict(extra="forbid")
        try:
            self._model: type[BaseModel] = create_model("Arguments", __config__=config, **fields)
            self.schema = self._model.model_json_schema(schema_generator=_WithoutTitles)
        except PydanticUserError as error:
            name = getattr(function, "__name__", repr(function))
            raise TypeError(f"{name!r} takes something that JSON cannot hold: {error.message}") from error
        del self.schema["title"]

    def check(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them. Raises BadArgumentsError."""
        try:
            checked = self._model.model_validate(given)
        except ValidationError as error:
            told = error.errors(include_url=False, include_context=False, include_input=False)
            raise BadArgumentsError("; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in told)) from None
        # What was not given is left to the function's own defaults.
        return {self._names[field]: getattr(checked, field) for field in checked.model_fields_set}


class GivenArguments:
    """Those of a tool that runs elsewhere: whoever told its schema checks them."""

    def check(self, given: dict[str, Any]) -> dict[str, Any]:
        return given


class _WithoutTitles(GenerateJsonSchema):
    """Titles only repeat the names, and every one of them is paid for."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "arguments"


def read_arguments(text: str) -> dict[str, Any] | None:
    """A model's own text for the arguments. None if it is not a JSON object."""
    try:
        return msgspec.json.decode(text.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


logger = logging.getLogger("turnwire.tools")

Function = Callable[..., Any]
NeedsApproval = bool | Callable[[dict[str, Any]], bool]
NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
"""What all model providers take as the name of a tool."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that a model may call. `timeout` is in seconds, `max_output` in characters.

    With `needs_approval` a person is asked before it runs; a function of the arguments says for which calls. One that
    is `idempotent` may be run again when it is not known whether it has run: twice does no more than once. The
    default for `max_output` is what fits into one event whatever the characters are.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Function
    arguments: Arguments | GivenArguments
    timeout: float = 60.0
    max_output: int = 20_000
    needs_approval: NeedsApproval = False
    idempotent: bool = False

    def asks(self, args: dict[str, Any]) -> bool:
        """Whether a person must allow a call with these arguments. Those that do not fit will not run anyway."""
        try:
            self.arguments.check(args)
        except BadArgumentsError:
            return False
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return self.needs_approval(args)
        except Exception:
            # Who cannot say that it is harmless has not said so.
            logger.exception("whether %s needs approval cannot be told; a person is asked", self.name)
            return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had never been made a tool."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = 20_000,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = 20_000,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Makes a tool of a function, sync or async. Its docstring tells the model what it is for.

    Raises TypeError for parameters that cannot be given by name, or of a type that JSON cannot hold, and ValueError
    for a name that model providers do not take.
    """

    def declare(function: Function) -> Tool:
        called = name or getattr(function, "__name__", type(function).__name__)
        if not NAME.fullmatch(called):
            raise ValueError(f"a tool cannot be called {called!r}: use letters, digits, _ and -, at most 64; name=...")
        arguments = Arguments(function)
        return Tool(
            name=called,
            description=inspect.cleandoc(description or inspect.getdoc(function) or ""),
            parameters=arguments.schema,
            function=function,
            arguments=arguments,
            timeout=timeout,
            max_output=max_output,
            needs_approval=needs_approval,
            idempotent=idempotent,
        )

    return declare if function is None else declare(function)


def as_tool(given: Tool | Function) -> Tool:
    return given if isinstance(given, Tool) else tool(given)


# Tools that come from somewhere else, and may be others tomorrow: those of an MCP server, say.


@runtime_checkable
class Toolset(Protocol):
    """Where an agent gets tools from while it runs. One toolset may serve many turns, and several agents, at once."""

    name: str

    async def open(self) -> Sequence[Tool]:
        """The tools as they are now; connects first if that is needed. Asked at the beginning of every turn.

        Raises AgentError, in words that a user may read, if there are none to be had.
        """
        ...

    async def close(self) -> None:
        """Lets go of what `open` made; safe to call again. What is opened after it is connected anew."""
        ...


async def open_toolsets(tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> dict[str, Tool]:
    """All tools by their names; the agent's own keep theirs. Raises AgentError.

    A tool whose name is taken gets the name of its toolset before it, so that nobody can stand in for another.
    """
    found = dict(tools)
    for toolset, offered in zip(toolsets, await asyncio.gather(*(one.open() for one in toolsets)), strict=True):
        for tool in offered:
            name = tool.name if tool.name not in found else f"{toolset.name}_{tool.name}"
            if name in found or not NAME.fullmatch(name):
                logger.warning("the tool %r of %r is left out: its name is taken", tool.name, toolset.name)
                continue
            found[name] = tool if name == tool.name else structs.replace(tool, name=name)
    return found
