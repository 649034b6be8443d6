"""The schemas of questions: what a form can show is accepted, and values are checked against all of it."""

from typing import Any

import pytest

from turnwire.core.people.schemas import check_parameters, check_schema, find_problem

FORM: dict[str, Any] = {
    "type": "object",
    "title": "Booking",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 5, "description": "Who travels"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
        "price": {"type": "number", "maximum": 99.5},
        "window": {"type": "boolean"},
        "class": {"type": "string", "oneOf": [{"const": "1", "title": "First"}, {"const": "2", "title": "Second"}]},
        "meals": {"type": "array", "items": {"enum": ["tea", "cake"]}, "maxItems": 2, "uniqueItems": True},
        "mail": {"type": "string", "format": "email"},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["name"],
}
PLAIN: list[dict[str, Any]] = [
    {"type": "string"},
    {"enum": ["red", "blue"]},
    {"type": "integer", "enum": [1, 2]},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string", "enum": ["a"]}},
    {"type": "array", "items": {"type": "integer", "enum": [1]}},
    {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
]


@pytest.mark.parametrize("schema", [FORM, *PLAIN])
def test_schema_of_a_form_is_accepted(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": True}},
        {"type": "string", "pattern": "(a+)+"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "string", "enum": []},
        {"type": "string", "oneOf": [{"title": "no value"}]},
        {"type": "array", "items": {"anyOf": [{"type": "string"}]}},
        {"type": "array", "items": {"oneOf": [{"title": "no value"}]}},
        {"type": "array", "items": {"enum": "abc"}},
        {"type": "array", "items": {"enum": ["a"], "pattern": "(a+)+"}},
        {"type": "array", "items": {"enum": ["a"]}, "maxItems": "3"},
        {"type": "string", "minLength": "3"},
        {"type": "string", "maxLength": True},
        {"type": "string", "format": ["date"]},
        {"type": "number", "minimum": None},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [["a"]]},
        {"enum": [1, 2]},
        {"type": "integer", "enum": ["1", "2"]},
        {"const": True},
        {"allOf": [{"type": "string"}]},
        {"$ref": "#/x"},
    ],
)
def test_schema_that_a_form_cannot_show_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^schema"):
        check_schema(schema)


def test_value_that_fits_has_no_problem() -> None:
    assert find_problem(FORM, {"name": "Ann"}) is None
    whole = {"name": "Ann", "seats": 2, "price": 5, "window": False, "class": "1", "meals": ["tea"]}
    assert find_problem(FORM, {**whole, "mail": "a@b.org", "day": "2026-11-17"}) is None
    assert find_problem({"type": "integer"}, 2.0) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "value.name"),
        ({"name": "A"}, "value.name"),
        ({"name": "Annabel"}, "value.name"),
        ({"name": 7}, "value.name"),
        ({"name": "Ann", "seats": 0}, "value.seats"),
        ({"name": "Ann", "seats": 1.5}, "value.seats"),
        ({"name": "Ann", "seats": True}, "value.seats"),
        ({"name": "Ann", "seats": "1"}, "value.seats"),
        ({"name": "Ann", "price": 100}, "value.price"),
        ({"name": "Ann", "window": 1}, "value.window"),
        ({"name": "Ann", "class": "First"}, "value.class"),
        ({"name": "Ann", "meals": ["soup"]}, "value.meals"),
        ({"name": "Ann", "meals": ["tea", "tea"]}, "value.meals"),
        ({"name": "Ann", "meals": "tea"}, "value.meals"),
        ({"name": "Ann", "mail": "nobody"}, "value.mail"),
        ({"name": "Ann", "day": "soon"}, "value.day"),
        ({"name": "Ann", "more": 1}, "value.more"),
    ],
)
def test_wrong_value_is_named_by_its_field(fields: dict[str, Any], field: str) -> None:
    problem = find_problem(FORM, fields)
    assert problem is not None
    assert problem[0] == field


@pytest.mark.parametrize("value", [None, [], "Ann", 3])
def test_value_of_another_kind_is_the_problem_of_the_whole(value: Any) -> None:
    assert find_problem(FORM, value) == ("value", "this must be an object")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "required": "a"},
    ],
)
def test_parameters_that_are_no_object_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`"):
        check_parameters(schema)
    check_parameters({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}})
