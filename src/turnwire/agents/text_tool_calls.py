"""Parser for tool calls that a model writes as text.

Small local models often do that: the whole reply is a JSON object such as
`{"name": "weather", "arguments": {"city": "Oslo"}}`, or the reply ends with such an object in a ```` ```json ````
fence. Text that may become a call is held back until that is certain, so that no reader sees half of a call as the
answer; other text passes at once. Only a call of an offered tool counts: any other JSON is text.
"""

import re
from collections.abc import Collection
from typing import Any, cast

import msgspec

from turnwire.core.ids import new_id
from turnwire.models.contract import ToolCallRequest

_MAX_CALL_LENGTH = 8_000
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_KEYS = (*_NAMES, *_ARGUMENTS, "tool_calls", "type", "id")
_BRACKET = re.compile(r"\s*[{\[]")
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_OPENING = re.compile(r"[ \t]*```(\w*)[ \t]*(?:\n|\Z)")
_HALF_FENCE = re.compile(r"^[ \t]*`{0,2}\Z", re.MULTILINE)
_BEGINNING = re.compile(r'[\s\[]*(?:\{\s*(?:"(\w*)("?))?)?')


class TextToolCalls:
    """Parser of one reply. `feed` returns the text that can be shown; `end` returns the rest and the tool calls."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._held = ""
        self._has_shown = False
        self._at_line_start = True

    def feed(self, piece: str) -> str:
        self._held += piece
        if not self._tools:
            return self._show(len(self._held))
        shown = ""
        while candidate := self._candidate():
            start, marker = candidate
            if _may_be_call(self._held[start:]):
                return shown + self._show(start)
            shown += self._show(marker)
        if not self._has_shown and not self._held.strip():
            return shown
        half = _HALF_FENCE.search(self._held)
        return shown + self._show(half.start() if half and self._is_line_start(half.start()) else len(self._held))

    def end(self) -> tuple[str, list[ToolCallRequest]]:
        candidate = self._candidate() if self._tools else None
        if candidate and (calls := _parse_calls(self._held[candidate[0] :], self._tools)):
            return self._show(candidate[0]), calls
        return self._show(len(self._held)), []

    def _candidate(self) -> tuple[int, int] | None:
        """Return the start of text that may be a call, and the end of the marker that suggests it."""
        if not self._has_shown and (bracket := _BRACKET.match(self._held)):
            return 0, bracket.end()
        for fence in _FENCE.finditer(self._held):
            if self._is_line_start(fence.start()):
                return fence.span()
        return None

    def _is_line_start(self, offset: int) -> bool:
        return offset > 0 or self._at_line_start

    def _show(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        if shown:
            self._at_line_start = shown.endswith("\n")
            self._has_shown = self._has_shown or bool(shown.strip())
        return shown


def _may_be_call(text: str) -> bool:
    """Return True while the whole text may still turn out to be a tool call."""
    if len(text) > _MAX_CALL_LENGTH:
        return False
    body = text
    if opening := _OPENING.match(text):
        if not "json".startswith(opening[1]):
            return False
        body, closed, after = text[opening.end() :].partition("\n```")
        if closed and after.strip():
            return False
    elif text.lstrip().startswith("```"):
        return False
    start = _BEGINNING.match(body)
    if start is None or (start[1] is None and body[start.end() :].strip()):
        return False
    if start[1] is None:
        return True
    return start[1] in _KEYS if start[2] else any(key.startswith(start[1]) for key in _KEYS)


def _parse_calls(text: str, tools: Collection[str]) -> list[ToolCallRequest]:
    """Return the calls that the text consists of, or an empty list if it is anything else."""
    text = text.strip()
    if text.startswith("```"):
        text = re.sub(r"^```\w*|```$", "", text)
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    if isinstance(value, dict) and "tool_calls" in value:
        value = cast("dict[str, Any]", value)["tool_calls"]
    entries: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls = [_parse_call(entry, tools) for entry in entries]
    return [call for call in calls if call] if all(calls) else []


def _parse_call(entry: Any, tools: Collection[str]) -> ToolCallRequest | None:
    if not isinstance(entry, dict):
        return None
    call = cast("dict[str, Any]", entry)
    if isinstance(call.get("function"), dict):
        call = cast("dict[str, Any]", call["function"])
    name = next((call[key] for key in _NAMES if key in call), None)
    arguments = next((call[key] for key in _ARGUMENTS if key in call), None)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict | str | None):
        return None
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return ToolCallRequest(f"call_{new_id()}", name, text)
