"""The state that an agent shares with its clients: a JSON value that changes while the turn runs.

In the log it is a `custom` event named `turnwire.state`, whose data is `{"snapshot": value}` or `{"delta": patch}`, a
JSON Patch (RFC 6902) of the value before. The first one of a turn, and after a restart, is a snapshot.
`TurnState.shared_state` is their fold.
"""

from typing import Any, cast

import msgspec
from msgspec import Struct

from turnwire.core.log.codec import clean_json
from turnwire.core.log.events import CustomEvent

SHARED_STATE = "turnwire.state"
Patch = list[dict[str, Any]]


def state_event(before: Any, state: Any) -> CustomEvent | None:
    """Return the event that changes the state; None if it stays as it is. Raises TypeError if it is not JSON.

    The event is a patch if there is a state before, unless the whole state is shorter.
    """
    value = _as_json(state)
    if value is None:
        raise TypeError("the state is None; share an empty object instead")
    if before is None:
        return CustomEvent(SHARED_STATE, {"snapshot": value})
    patch = make_patch(before, value)
    if not patch:
        return None
    is_short = len(msgspec.json.encode(patch)) < len(msgspec.json.encode(value))
    return CustomEvent(SHARED_STATE, {"delta": patch} if is_short else {"snapshot": value})


class StateChange(Struct, frozen=True):
    """The data of an event: the whole state, or a patch."""

    snapshot: Any = None
    delta: Patch | None = None


def state_change(event: CustomEvent) -> StateChange | None:
    """Return the change of the shared state in an event; None for an application's own event."""
    if event.name != SHARED_STATE:
        return None
    try:
        change = msgspec.convert(event.data, StateChange)
    except msgspec.ValidationError:
        return None
    return None if change == StateChange() else change


def apply_state(before: Any, event: CustomEvent) -> Any:
    """Return the state after an event. An event that `state_event` did not make leaves it as it is."""
    change = state_change(event)
    if change is None:
        return before
    if change.snapshot is not None:
        return change.snapshot
    try:
        return apply_patch(before, change.delta or [])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return before


def _as_json(value: Any) -> Any:
    def convert(other: Any) -> Any:
        if callable(dump := getattr(other, "model_dump", None)):  # A model of Pydantic.
            return dump(mode="json")
        raise TypeError(f"a {type(other).__name__} is not JSON")

    # As the log keeps it, so that the next patch fits it.
    return clean_json(msgspec.to_builtins(value, str_keys=True, enc_hook=convert))


# JSON Patch


def make_patch(before: Any, after: Any, path: str = "") -> Patch:
    """Return the operations that turn one JSON value into another."""
    if isinstance(before, dict) and isinstance(after, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        patch: Patch = [{"op": "remove", "path": _join(path, key)} for key in old if key not in new]
        for key, value in new.items():
            if key not in old:
                patch.append({"op": "add", "path": _join(path, key), "value": value})
            else:
                patch += make_patch(old[key], value, _join(path, key))
        return patch
    if isinstance(before, list) and isinstance(after, list):
        return _list_patch(cast("list[Any]", before), cast("list[Any]", after), path)
    # `1` equals `True` in Python, and is another value in JSON.
    if before == after and isinstance(before, bool) == isinstance(after, bool):
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _list_patch(before: list[Any], after: list[Any], path: str) -> Patch:
    """Return the operations for a list: items are compared by their index, and the rest is added or removed."""
    patch: Patch = []
    for index in range(min(len(before), len(after))):
        patch += make_patch(before[index], after[index], f"{path}/{index}")
    patch += [{"op": "remove", "path": f"{path}/{index}"} for index in range(len(before) - 1, len(after) - 1, -1)]
    patch += [{"op": "add", "path": f"{path}/-", "value": value} for value in after[len(before) :]]
    return patch


def apply_patch(value: Any, patch: Patch) -> Any:
    """Return the value after the operations of `make_patch`; the value itself is not changed."""
    for operation in patch:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in operation["path"].split("/")[1:]]
        value = _changed(value, keys, operation["op"], operation.get("value"))
    return value


def _changed(target: Any, keys: list[str], op: str, value: Any) -> Any:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(target, list):
        items = list(cast("list[Any]", target))
        index = len(items) if key == "-" else int(key)
        if rest:
            items[index] = _changed(items[index], rest, op, value)
        elif op == "add":
            items.insert(index, value)
        elif op == "remove":
            del items[index]
        else:
            items[index] = value
        return items
    fields = dict(cast("dict[str, Any]", target))
    if rest:
        fields[key] = _changed(fields[key], rest, op, value)
    elif op == "remove":
        del fields[key]
    else:
        fields[key] = value
    return fields


def _join(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
