"""Questions as text, one field at a time, for channels and clients that have no forms."""

from collections.abc import Mapping
from typing import Any

from turnwire.core.schemas import find_problem

_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


class TextForm:
    """The form of one question. Each line that a person writes is the value of the next field.

    `values` are those of the first fields of an object, `done` of them, which were answered before.
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
