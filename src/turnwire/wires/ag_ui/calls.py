"""How the tool calls of a turn stand.

A client keeps the calls of all turns of a thread in one list, and models use their ids again; so a call has the turn's
id before its own, and a second one of the same id has its position behind.
"""

from typing import Any

import msgspec

from turnwire.wires.ag_ui.frames import Told, told
from turnwire.wires.ag_ui.voices import Path

_UNANSWERED = '{"error":"The turn ended before this tool did."}'


class Calls:
    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._given: set[str] = set()
        self._open: dict[str, Path] = {}

    def id_of(self, call_id: str) -> str | None:
        return self._ids.get(call_id)

    def is_open(self, call_id: str) -> bool:
        return self._ids.get(call_id) in self._open

    def name(self, turn_id: str, call_id: str, path: Path, position: int) -> str:
        """The id of a call that begins here."""
        call = f"{turn_id}:{call_id}"
        while call in self._given:
            call += f"-{position}"
        self._given.add(call)
        self._ids[call_id] = call
        self._open[call] = path
        return call

    def end(self, call_id: str) -> str:
        """The id of a call that was told of, and has ended."""
        call = self._ids[call_id]
        self._open.pop(call, None)
        return call

    def unanswered(self) -> list[tuple[str, Path]]:
        """Calls that have not ended, and whose they are."""
        return list(self._open.items())


def call_events(call: str, tool: str, args: dict[str, Any], parent: str, agent: str | None) -> Told:
    of = {"toolCallId": call, "subagentRunId": agent}
    return [
        told("TOOL_CALL_START", **of, toolCallName=tool, parentMessageId=parent),
        told("TOOL_CALL_ARGS", **of, delta=msgspec.json.encode(args).decode()),
        told("TOOL_CALL_END", **of),
    ]


def result_event(message_id: str, call: str, content: str, agent: str | None) -> bytes:
    fields = {"messageId": message_id, "toolCallId": call, "content": content}
    return told("TOOL_CALL_RESULT", **fields, role="tool", subagentRunId=agent)


def unanswered(call: str, agent: str | None) -> bytes:
    """The result of a call that nobody has answered: a client would show it as running for ever."""
    return result_event(f"{call}:unanswered", call, _UNANSWERED, agent)


def result_text(success: bool, result: Any) -> str:
    """What came of a call. The protocol's result is text and has no word for failure, so that is `{"error": …}`."""
    if not success:
        return msgspec.json.encode({"error": "The tool failed." if result in (None, "") else result}).decode()
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()
