"""Tests of TextForm: questions that are answered with lines of text."""

from typing import Any

import pytest

from turnwire.core.people.schemas import TextForm

TITLED = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (None, " tea ", "tea"),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": "boolean"}, "No", False),
        ({"type": "string", "enum": ["red", "blue"]}, "BLUE", "blue"),
        ({"type": "string", "enum": ["red", "blue"]}, "1", "red"),
        (TITLED, "blue", "b"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "a, 3", ["a", "c"]),
        ({"type": "integer", "default": 3}, "", 3),
    ],
)
def test_text_of_each_kind_is_read_as_its_value(schema: dict[str, Any] | None, text: str, value: object) -> None:
    form = TextForm("What?", schema)
    assert form.take(text) is None
    assert (form.is_complete, form.value) == (True, value)


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ({"type": "integer"}, "many", "this must be a whole number"),
        ({"type": "boolean"}, "maybe", "this must be true or false"),
        ({"type": "string", "enum": ["red"]}, "2", "this must be one of red"),
    ],
)
def test_text_that_does_not_fit_is_refused_and_the_field_stays(schema: dict[str, Any], text: str, problem: str) -> None:
    form = TextForm("What?", schema)
    assert form.take(text) == problem
    assert not form.is_complete


def test_fields_of_an_object_come_one_after_the_other_and_optional_ones_may_be_empty() -> None:
    schema = {
        "properties": {"name": {"type": "string", "title": "Name"}, "colour": TITLED, "note": {"type": "string"}},
        "required": ["name", "colour"],
    }
    form = TextForm("Who?", schema)
    labels = [form.label]
    form.take("Ann")
    labels.append(form.label)
    assert form.choices == [("Red", "r"), ("Blue", "b")]
    form.take("red")
    labels.append(form.label)
    form.take("")
    assert labels == ["Who? Name", "Who? colour [Red/Blue]", "Who? note [optional]"]
    assert (form.is_complete, form.value) == (True, {"name": "Ann", "colour": "r"})
