"""What a function takes, as a JSON schema for the model and as a check of what the model wrote."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

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
