"""Declaring a tool: its description and the check of its arguments."""

from datetime import date
from typing import Annotated, Any

import pytest
from inline_snapshot import snapshot
from pydantic import BaseModel, Field

from turnwire.tools import Tool, read_arguments, tool
from turnwire.tools.declaration import BadArgumentsError, as_tool


class Place(BaseModel):
    city: str
    country: str = "NO"


@tool
def weather(
    place: Place,
    day: date,
    units: Annotated[str, Field(description="C or F", max_length=1)] = "C",
    *,
    tags: Any = None,
) -> str:
    """Return the weather.

    On one day, in one place.
    """
    return f"{place.city} {day.isoformat()} {units} {tags}"


def test_tool_is_described_by_name_docstring_and_hints() -> None:
    assert weather.name == "weather"
    assert weather.description == "Return the weather.\n\nOn one day, in one place."
    assert weather.parameters == snapshot(
        {
            "$defs": {
                "Place": {
                    "properties": {"city": {"type": "string"}, "country": {"default": "NO", "type": "string"}},
                    "required": ["city"],
                    "title": "Place",
                    "type": "object",
                }
            },
            "additionalProperties": False,
            "properties": {
                "place": {"$ref": "#/$defs/Place"},
                "day": {"format": "date", "type": "string"},
                "units": {"default": "C", "description": "C or F", "maxLength": 1, "type": "string"},
                "tags": {"default": None},
            },
            "required": ["place", "day"],
            "type": "object",
        }
    )


def test_tool_options_override_the_description() -> None:
    @tool(name="forecast", description="Tomorrow.", timeout=3, max_output=10)
    async def guess() -> str:
        """Never read."""
        return ""

    assert (guess.name, guess.description, guess.timeout, guess.max_output) == ("forecast", "Tomorrow.", 3, 10)
    assert guess.parameters["properties"] == {}


def test_tool_can_be_called_as_the_function() -> None:
    assert weather(Place(city="Oslo"), date(2026, 11, 16)) == "Oslo 2026-11-16 C None"


def test_tool_is_frozen() -> None:
    with pytest.raises(AttributeError):
        weather.timeout = 9  # type: ignore[misc]


def test_callable_object_and_method_are_tools() -> None:
    class Counter:
        """Counts."""

        def __call__(self, number: int) -> int:
            """Counts on."""
            return number + 1

        def back(self, number: int) -> int:
            """Counts back."""
            return number - 1

    counter = Counter()
    assert as_tool(counter).name == "Counter"
    assert as_tool(counter).parameters["properties"] == {"number": {"type": "integer"}}
    assert as_tool(counter.back).name == "back"
    assert as_tool(counter.back).parameters["required"] == ["number"]


def test_as_tool_returns_a_tool_unchanged() -> None:
    assert as_tool(weather) is weather


def test_arguments_are_converted_to_the_parameter_types() -> None:
    checked = weather.arguments.check({"place": {"city": "Oslo"}, "day": "2026-11-16"})
    assert checked == {"place": Place(city="Oslo"), "day": date(2026, 11, 16)}


@pytest.mark.parametrize("name", ["json", "schema", "copy", "model_config", "_private", "self", "cls"])
def test_parameter_can_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def function({name}: int) -> int:\n    return {name}", scope)
    made = tool(scope["function"])
    assert made.parameters["required"] == [name]
    assert made.arguments.check({name: "3"}) == {name: 3}


def test_each_wrong_argument_is_reported_without_its_value() -> None:
    with pytest.raises(BadArgumentsError) as caught:
        weather.arguments.check({"place": {"town": "swordfish"}, "units": "Celsius", "more": 1})
    result = str(caught.value)
    assert "place.city: Field required" in result
    assert "day: Field required" in result
    assert "units: String should have at most 1 character" in result
    assert "more: " in result
    assert "swordfish" not in result
    assert "https://" not in result


@pytest.mark.parametrize(
    "function", [lambda *numbers: numbers, lambda **named: named, lambda number, /: number], ids=["*", "**", "/"]
)
def test_unnamed_parameters_are_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="need names"):
        tool(name="count")(function)


@pytest.mark.parametrize("name", ["<lambda>", "two words", "x" * 65, "wetter.heute"])
def test_invalid_tool_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a tool cannot be called"):
        tool(name=name)(lambda: None)


def test_parameters_without_json_type_are_refused() -> None:
    class Connection:
        pass

    def query(connection: Connection) -> str:
        return ""

    with pytest.raises(TypeError, match="'query' has a parameter that JSON cannot hold"):
        tool(query)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ("", {}),
        ("  \n", {}),
        ("[1]", None),
        ("null", None),
        ('{"city": "Os', None),
        ("{'city': 1}", None),
        ("[" * 100_000, None),
        ('{"\ud800": 1}', None),
    ],
    ids=str,
)
def test_read_arguments_accepts_a_json_object_only(text: str, read: Any) -> None:
    assert read_arguments(text) == read


def test_tool_has_its_properties() -> None:
    assert isinstance(weather, Tool)
