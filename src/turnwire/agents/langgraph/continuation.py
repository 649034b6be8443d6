"""Continuation of graphs and runnables: the numbers of recorded model calls, and recorded values.

The graph runs again from its start, and finished calls of models and tools are answered from the journal.
"""

import base64
import importlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic_core import to_jsonable_python

from turnwire.agents.context_changes import is_plain
from turnwire.core.journal.turn_journal import TurnJournal

_serializer = JsonPlusSerializer()


class CallNumbers:
    """Numbers of the model calls of each task; calls at the same time are told apart by their requests."""

    def __init__(self, journal: TurnJournal | None) -> None:
        self._recorded: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._next: defaultdict[str, int] = defaultdict(int)
        for call in journal.recording.calls.values() if journal is not None else ():
            if call.entry.kind == "model":
                place, _, number = call.entry.key.rpartition("#")[0].rpartition("/")
                self._recorded[place][int(number)] = call.entry.fingerprint

    def next(self, place: str, digest: str) -> str:
        """Return the place of the next call: that of a recorded one with this request, or else the first that is free.

        A prompt with a clock in it is another request when the turn is continued, so no call has to match.
        """
        recorded = self._recorded[place]
        number = next((number for number, request in recorded.items() if request == digest), None)
        if number is None:
            number = min(recorded, default=self._next[place])
        recorded.pop(number, None)
        self._next[place] = max(self._next[place], number + 1)
        return f"{place}/{number}"


# Recorded values


def dump_request(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return what messages say, without the ids of the SDK, which differ from run to run."""
    return [to_jsonable_python((each.type, each.content, _calls_in(each)), serialize_unknown=True) for each in messages]


def _calls_in(message: BaseMessage) -> list[Any]:
    return [(call["name"], call["args"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []


def load_reply(data: dict[str, Any]) -> AIMessage:
    return AIMessage(
        **{name: value for name, value in data.items() if name in AIMessage.model_fields and name != "type"}
    )


def dump_result(value: Any) -> dict[str, Any]:
    if is_plain(value):
        return {"value": value}
    try:
        kind, data = _serializer.dumps_typed(value)
        is_same = bool(_serializer.loads_typed((kind, data)) == value)
    except Exception:
        is_same, kind, data = False, "", b""
    if not is_same:
        return {"value": value}  # This is not JSON: the journal notes that it cannot be recorded.
    return {"kind": kind, "data": base64.b64encode(data).decode()}


def load_result(recorded: dict[str, Any]) -> Any:
    if "error" in recorded:
        raise load_error(recorded["error"])
    if "data" in recorded:
        return _serializer.loads_typed((recorded["kind"], base64.b64decode(recorded["data"])))
    return recorded["value"]


def dump_error(error: Exception) -> dict[str, Any]:
    kind = type(error)
    return {
        "module": kind.__module__,
        "class": kind.__qualname__,
        "args": [value if is_plain(value) else str(value) for value in error.args],
        "fields": {name: value for name, value in vars(error).items() if is_plain(value)},
        "text": str(error),
    }


def load_error(recorded: dict[str, Any]) -> Exception:
    """Return an exception of the same class and with the same message, so that the same handlers catch it."""
    with suppress(Exception):  # The class may be local, or need more than its arguments.
        kind: Any = importlib.import_module(recorded["module"])
        for name in recorded["class"].split("."):
            kind = getattr(kind, name)
        error = kind.__new__(kind, *recorded["args"])
        error.args = tuple(recorded["args"])
        error.__dict__.update(recorded["fields"])
        if isinstance(error, Exception) and str(error) == recorded["text"]:
            return error
    return type(recorded["class"].rpartition(".")[2], (RecordedError,), {})(recorded["text"])


class RecordedError(Exception):
    """Stand-in for an exception that was recorded and cannot be made again."""
