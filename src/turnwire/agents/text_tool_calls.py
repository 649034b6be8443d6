"""Tool calls that a model writes out as text.

Small local models often know no other way: the whole reply is a JSON object such as
`{"name": "weather", "arguments": {"city": "Oslo"}}`, or ends with one in a ```` ```json ```` fence. What may become
such a call is held back until it is known, so that nobody reads half of one as the answer; everything else
passes at once. Only a call of a tool that was offered is one: any other JSON is text.
"""

import re
from collections.abc import Collection
from typing import Any, cast

import msgspec

from turnwire.core.ids import new_id
from turnwire.models.contract import ToolWish

_LONGEST = 8_000
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_KEYS = (*_NAMES, *_ARGUMENTS, "tool_calls", "type", "id")
_BRACKET = re.compile(r"\s*[{\[]")
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_OPENING = re.compile(r"[ \t]*```(\w*)[ \t]*(?:\n|\Z)")
_HALF_FENCE = re.compile(r"^[ \t]*`{0,2}\Z", re.MULTILINE)
_BEGINNING = re.compile(r'[\s\[]*(?:\{\s*(?:"(\w*)("?))?)?')


class TextToolCalls:
    """Reads one reply. `feed` gives what may be shown of it; `end` the rest, or the calls that it was."""

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
        while place := self._candidate():
            start, marker = place
            if _may_be_call(self._held[start:]):
                return shown + self._show(start)
            shown += self._show(marker)
        if not self._has_shown and not self._held.strip():
            return shown
        half = _HALF_FENCE.search(self._held)
        return shown + self._show(half.start() if half and self._is_line(half.start()) else len(self._held))

    def end(self) -> tuple[str, list[ToolWish]]:
        place = self._candidate() if self._tools else None
        if place and (wishes := _read(self._held[place[0] :], self._tools)):
            return self._show(place[0]), wishes
        return self._show(len(self._held)), []

    def _candidate(self) -> tuple[int, int] | None:
        """Where something begins that may be a call, and where the sign of that ends."""
        if not self._has_shown and (bracket := _BRACKET.match(self._held)):
            return 0, bracket.end()
        for fence in _FENCE.finditer(self._held):
            if self._is_line(fence.start()):
                return fence.span()
        return None

    def _is_line(self, place: int) -> bool:
        return place > 0 or self._at_line_start

    def _show(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        if shown:
            self._at_line_start = shown.endswith("\n")
            self._has_shown = self._has_shown or bool(shown.strip())
        return shown


def _may_be_call(text: str) -> bool:
    """Whether this could still turn out to be nothing but a call."""
    if len(text) > _LONGEST:
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
    begun = _BEGINNING.match(body)
    if begun is None or (begun[1] is None and body[begun.end() :].strip()):
        return False
    if begun[1] is None:
        return True
    return begun[1] in _KEYS if begun[2] else any(key.startswith(begun[1]) for key in _KEYS)


def _read(text: str, tools: Collection[str]) -> list[ToolWish]:
    """The calls that a text is, none if it is anything else."""
    text = text.strip()
    if text.startswith("```"):
        text = re.sub(r"^```\w*|```$", "", text)
    try:
        said: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []
    if isinstance(said, dict) and "tool_calls" in said:
        said = cast("dict[str, Any]", said)["tool_calls"]
    entries: list[Any] = cast("list[Any]", said) if isinstance(said, list) else [said]
    wishes = [_wish(entry, tools) for entry in entries]
    return [wish for wish in wishes if wish] if all(wishes) else []


def _wish(entry: Any, tools: Collection[str]) -> ToolWish | None:
    if not isinstance(entry, dict):
        return None
    call = cast("dict[str, Any]", entry)
    if isinstance(call.get("function"), dict):
        call = cast("dict[str, Any]", call["function"])
    name = next((call[key] for key in _NAMES if key in call), None)
    arguments = next((call[key] for key in _ARGUMENTS if key in call), None)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict | str | None):
        return None
    told = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return ToolWish(f"call_{new_id()}", name, told)
