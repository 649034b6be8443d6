"""The JSON schemas of questions, limited to what a form can show, and the text form of a question.

A question asks for one value (text, a number, a yes or no, a choice, several choices) or for a flat object of such
values. This is what MCP's elicitation allows. Every keyword that is not listed here is refused when the question is
asked, so that a value is checked against all of its schema.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, cast

_NOTES = {"title", "description", "default", "examples", "$schema"}
_KEYWORDS = {
    "string": {"enum", "enumNames", "oneOf", "const", "minLength", "maxLength", "format"},
    "number": {"enum", "const", "minimum", "maximum"},
    "integer": {"enum", "const", "minimum", "maximum"},
    "boolean": {"const"},
    "array": {"items", "minItems", "maxItems", "uniqueItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_LIMITS = {"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"}
_ITEM_KEYWORDS = {"type", "enum", "enumNames", "oneOf", "anyOf"}
_FORMATS = {"email": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"), "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")}
_NAMES = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError unless a schema is that of a value or a flat object of values."""
    _check(schema, "schema", ("object", "array", "string", "number", "integer", "boolean"))


def _check(schema: Any, where: str, kinds: Sequence[str]) -> None:
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where}: a JSON schema is an object")
    fields = cast("Mapping[str, Any]", schema)
    kind = _kind(fields)
    if kind not in kinds:
        raise ValueError(f"{where}: its type must be one of {', '.join(kinds)}")
    if unknown := sorted(set(fields) - _KEYWORDS[kind] - _NOTES - {"type"}):
        raise ValueError(f"{where}: a form cannot show {unknown[0]!r}; use plain values with limits or choices")
    for name in fields.keys() & _LIMITS:
        if isinstance(fields[name], bool) or not isinstance(fields[name], int | float):
            raise ValueError(f"{where}.{name}: a number is needed")
    if not isinstance(fields.get("format", ""), str):
        raise ValueError(f"{where}.format: a text is needed")
    _check_lists(fields, where)
    choices = _choices(fields)
    if choices is not None and not any(_is_kind(kind, choice) for choice in choices):
        raise ValueError(f"{where}: its type is {kind}, and none of its choices is {_NAMES[kind]}")
    if kind == "array":
        items = fields.get("items")
        if not isinstance(items, Mapping) or not ({"enum", "oneOf", "anyOf"} & items.keys()):
            raise ValueError(f"{where}.items: a list must have choices; give them as `enum`")
        items = cast("Mapping[str, Any]", items)
        if unknown := sorted(items.keys() - _ITEM_KEYWORDS - _NOTES):
            raise ValueError(f"{where}.items: a form cannot show {unknown[0]!r} in a list of choices")
        _check_lists(items, f"{where}.items")
    if kind == "object":
        properties = fields.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise ValueError(f"{where}.properties: an object needs at least one")
        for name, part in cast("Mapping[str, Any]", properties).items():
            _check(part, f"{where}.properties.{name}", ("array", "string", "number", "integer", "boolean"))
        for name in fields.get("required", ()):
            if not isinstance(name, str) or name not in properties:
                raise ValueError(f"{where}.required: there is no property {name!r}")


def _check_lists(schema: Mapping[str, Any], where: str) -> None:
    for name in ("enum", "oneOf", "anyOf", "enumNames", "required"):
        if name in schema and not (isinstance(schema[name], list) and schema[name]):
            raise ValueError(f"{where}.{name}: a list that is not empty is needed")
    for option in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if not isinstance(option, Mapping) or "const" not in option:
            raise ValueError(f"{where}: each choice needs a `const`, and may have a `title`")


def _kind(schema: Mapping[str, Any]) -> str:
    kind: object = schema.get("type")
    if isinstance(kind, str):
        return kind if kind in _KEYWORDS else ""
    if kind is None:
        return "object" if "properties" in schema else "string" if {"enum", "oneOf", "const"} & schema.keys() else ""
    return ""


def find_problem(schema: Mapping[str, Any], value: Any, where: str = "value") -> tuple[str, str] | None:
    """Return the field of a value that does not fit the schema, and what is wrong with it; None if all fits."""
    kind = _kind(schema)
    if not _is_kind(kind, value):
        return where, f"this must be {_NAMES[kind]}"
    if kind == "object":
        return _object_problem(schema, value, where)
    if (choices := _choices(schema)) is not None and value not in choices:
        return where, f"this must be one of {', '.join(map(str, choices))}"
    match value:
        case str():
            problem = _text_problem(schema, value)
        case bool():
            problem = None
        case int() | float():
            problem = _range_problem(schema, value, "minimum", "maximum", "this")
        case _:
            problem = _list_problem(schema, value)
    return None if problem is None else (where, problem)


def _is_kind(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "number": (int, float),
        "integer": int,
        "array": list,
        "object": dict,
    }
    return isinstance(value, kinds.get(kind, ())) or (
        kind == "integer" and isinstance(value, float) and value.is_integer()
    )


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("oneOf") or schema.get("anyOf")
    return [option["const"] for option in options] if options else schema.get("enum")


def _object_problem(schema: Mapping[str, Any], value: dict[str, Any], where: str) -> tuple[str, str] | None:
    properties: Mapping[str, Any] = schema["properties"]
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where}.{name}", "this is missing"
    for name, part in value.items():
        if name not in properties:
            return f"{where}.{name}", "there is no such field"
        if problem := find_problem(properties[name], part, f"{where}.{name}"):
            return problem
    return None


def _text_problem(schema: Mapping[str, Any], value: str) -> str | None:
    if problem := _range_problem(schema, len(value), "minLength", "maxLength", "its length"):
        return problem
    kind = schema.get("format")
    if kind in _FORMATS and not _FORMATS[kind].fullmatch(value):
        return f"this is no {kind}"
    if kind in ("date", "date-time"):
        try:
            (date if kind == "date" else datetime).fromisoformat(value)
        except ValueError:
            return f"this is no {kind} (ISO 8601)"
    return None


def _list_problem(schema: Mapping[str, Any], value: list[Any]) -> str | None:
    choices = _choices(schema["items"]) or []
    if any(item not in choices for item in value):
        return f"each must be one of {', '.join(map(str, choices))}"
    if schema.get("uniqueItems") and any(item in value[:index] for index, item in enumerate(value)):
        return "no choice may be there twice"
    return _range_problem(schema, len(value), "minItems", "maxItems", "the number of choices")


def _range_problem(schema: Mapping[str, Any], value: float, least: str, most: str, what: str) -> str | None:
    if least in schema and value < schema[least]:
        return f"{what} must be at least {schema[least]}"
    if most in schema and value > schema[most]:
        return f"{what} must be at most {schema[most]}"
    return None


def check_parameters(schema: Mapping[str, Any]) -> None:
    """Raise ValueError unless a schema can be that of a tool's arguments: an object with named properties.

    The client that declares the tool checks its arguments; so the rest of the schema is only passed to the model.
    """
    if schema.get("type") != "object":
        raise ValueError("the schema of arguments needs the type `object`")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(
        isinstance(part, Mapping | bool) for part in cast("Mapping[str, Any]", properties).values()
    ):
        raise ValueError("`properties` must be an object of JSON schemas")
    required: object = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in cast("list[Any]", required)):
        raise ValueError("`required` must be a list of names")


class TextForm:
    """The form of one question as text, for channels and clients that have no forms.

    Each line that a person writes is the value of the next field. `values` are those of the first fields of an object,
    `done` of them, which were answered before.
    """

    def __init__(
        self,
        prompt: str,
        schema: Mapping[str, Any] | None,
        values: Mapping[str, Any] | None = None,
        done: int = 0,
    ) -> None:
        self._prompt = prompt
        self._schema: Mapping[str, Any] = schema or {"type": "string"}
        properties: Mapping[str, Any] | None = self._schema.get("properties")
        self._is_object = properties is not None
        self._fields = list((properties or {"": self._schema}).items())[done:]
        self._values: dict[str, Any] = dict(values or {})

    @property
    def is_complete(self) -> bool:
        return not self._fields

    @property
    def value(self) -> Any:
        return self._values if self._is_object else self._values.get("")

    @property
    def label(self) -> str:
        """Return the prompt of the next field, with what may be answered."""
        hint = "/".join(text for text, _ in self.choices)
        notes = ", ".join(filter(None, (hint, "optional" if self.is_optional else "")))
        title = f" {self.title}" if self.title else ""
        return f"{self._prompt}{title}{f' [{notes}]' if notes else ''}"

    @property
    def title(self) -> str:
        """Return the name of the next field of an object; the only value of another schema has none."""
        name, schema = self._fields[0]
        return str(schema.get("title") or name) if self._is_object else ""

    @property
    def is_optional(self) -> bool:
        """Return True if the next field may be left out."""
        return self._is_object and self._fields[0][0] not in self._schema.get("required", ())

    @property
    def has_default(self) -> bool:
        return "default" in self._fields[0][1]

    @property
    def takes_one_choice(self) -> bool:
        """Return True if the value of the next field is one of its choices."""
        return bool(self.choices) and self._fields[0][1].get("type") != "array"

    @property
    def choices(self) -> list[tuple[str, Any]]:
        """Return the choices of the next field, as a person sees them and as they are."""
        schema: Mapping[str, Any] = self._fields[0][1]
        if schema.get("type") == "boolean" and "const" not in schema:
            return [("yes", True), ("no", False)]
        schema = schema.get("items", schema)
        if titled := schema.get("oneOf") or schema.get("anyOf"):
            return [(str(option.get("title") or option["const"]), option["const"]) for option in titled]
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        return [(str(value), value) for value in values]

    def take(self, text: str) -> str | None:
        """Take the value of the next field; return what is wrong with it, None if it is right."""
        schema, text = self._fields[0][1], text.strip()
        if text or not (self.has_default or self.is_optional):
            return self.put(self._read(schema, text))
        if self.has_default:
            return self.put(schema["default"])
        del self._fields[0]
        return None

    def put(self, value: Any) -> str | None:
        """Take the value of the next field as it is; return what is wrong with it, None if it is right."""
        name, schema = self._fields[0]
        problem = find_problem(schema, value)
        if problem is None:
            self._values[name] = value
            del self._fields[0]
        return problem and problem[1]

    def _read(self, schema: Mapping[str, Any], text: str) -> Any:
        """Return the value that a text stands for; the text itself if it stands for none."""
        kind, choices = schema.get("type"), self.choices
        if kind == "array":
            return [_choice(choices, part.strip()) for part in text.split(",") if part.strip()]
        if kind == "boolean":
            return True if text.lower() in _YES else False if text.lower() in _NO else text
        if choices:
            return _choice(choices, text)
        if kind in ("integer", "number"):
            try:
                return int(text) if kind == "integer" else float(text)
            except ValueError:
                return text
        return text


def _choice(choices: list[tuple[str, Any]], text: str) -> Any:
    """Return the choice of this name or number."""
    named = next((value for name, value in choices if name.lower() == text.lower()), None)
    if named is None and text.isdecimal() and 0 < int(text) <= len(choices):
        return choices[int(text) - 1][1]
    return text if named is None else named
