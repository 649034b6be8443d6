"""Changes that tools make to the object that an SDK passes to all of them: `context` or `deps`.

A tool that has finished does not run again after a crash, so its changes are recorded with its result, and made again
when the result is taken from the journal. That is possible for attributes with plain JSON values, of a dictionary, a
dataclass, a pydantic model or the default context. Other objects, such as a connection pool, are left alone.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct
from pydantic import BaseModel


class ContextChanges:
    """The recorder of one object for one run of a turn."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._known = dict(_plain_attributes(value))
        self._last_number = 0
        self._restored_numbers: dict[str, int] = {}

    def take(self) -> dict[str, Any] | None:
        """Return the values that are new or changed since the last call and the names that are gone, or None.

        `number` orders these records.
        """
        current, present = dict(_plain_attributes(self.value)), _attributes(self.value)
        changed = {name: json.loads(text) for name, text in current.items() if self._known.get(name) != text}
        removed = [name for name in self._known if name not in present]
        self._known = current
        if not changed and not removed:
            return None
        self._last_number += 1
        return {"number": self._last_number, "values": changed} | ({"removed": removed} if removed else {})

    def restore(self, recorded: dict[str, Any] | None) -> None:
        """Make recorded changes again. Parallel tools may be repeated in another order than they ended in."""
        if not recorded:
            return
        number, attributes = recorded["number"], _attributes(self.value)
        values, removed = recorded["values"], recorded.get("removed", ())
        for name in (*values, *removed):
            if number > self._restored_numbers.get(name, 0):
                self._restored_numbers[name] = number
                if name in values:
                    attributes[name] = values[name]  # Not `setattr`: a frozen object may have a list that changes.
                else:
                    attributes.pop(name, None)
        self._last_number = max(self._last_number, number)
        self._known = dict(_plain_attributes(self.value))


def _plain_attributes(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the names and JSON texts of the attributes that JSON gives back unchanged."""
    for name, item in _attributes(value).items():
        if isinstance(name, str) and is_plain(item):
            yield name, json.dumps(item)


def _attributes(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value)
    if isinstance(value, BaseModel | Struct) or dataclasses.is_dataclass(value):
        return getattr(value, "__dict__", {})
    return {}


def is_plain(value: Any) -> bool:
    """Return True if JSON gives back the same value, of the same type."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return all(type(key) is str for key in items) and all(map(is_plain, items.values()))
    if isinstance(value, list):
        return all(map(is_plain, cast("list[Any]", value)))
    return value is None or type(value) in (str, bool, int, float)
