"""Questions as text, one field at a time, for channels that have no forms."""

from collections.abc import Mapping
from typing import Any

from turnwire.core.schemas import find_problem

_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


class TextForm:
    """The form of one question. Each line that a person writes is the value of the next field."""

    def __init__(self, prompt: str, schema: Mapping[str, Any] | None) -> None:
        self._prompt = prompt
        self._schema: Mapping[str, Any] = schema or {"type": "string"}
        properties: Mapping[str, Any] | None = self._schema.get("properties")
        self._is_object = properties is not None
        self._fields = list((properties or {"": self._schema}).items())
        self._values: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        return not self._fields

    @property
    def value(self) -> Any:
        return self._values if self._is_object else self._values.get("")

    @property
    def label(self) -> str:
        """Return the prompt of the next field, with what may be answered."""
        name, schema = self._fields[0]
        title = f" {schema.get('title') or name}" if self._is_object else ""
        hint = "yes/no" if schema.get("type") == "boolean" else "/".join(text for text, _ in self.choices)
        optional = "optional" if self._is_object and name not in self._schema.get("required", ()) else ""
        notes = ", ".join(filter(None, (hint, optional)))
        return f"{self._prompt}{title}{f' [{notes}]' if notes else ''}"

    @property
    def choices(self) -> list[tuple[str, Any]]:
        """Return the choices of the next field, as a person sees them and as they are."""
        schema: Mapping[str, Any] = self._fields[0][1]
        schema = schema.get("items", schema)
        if titled := schema.get("oneOf") or schema.get("anyOf"):
            return [(str(option.get("title") or option["const"]), option["const"]) for option in titled]
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        return [(str(value), value) for value in values]

    def take(self, text: str) -> str | None:
        """Take the value of the next field; return what is wrong with it, None if it is right."""
        name, schema = self._fields[0]
        text = text.strip()
        if not text and "default" in schema:
            value = schema["default"]
        elif not text and self._is_object and name not in self._schema.get("required", ()):
            del self._fields[0]
            return None
        else:
            value = self._read(schema, text)
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
        if choices:
            return _choice(choices, text)
        if kind == "boolean":
            return True if text.lower() in _YES else False if text.lower() in _NO else text
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
