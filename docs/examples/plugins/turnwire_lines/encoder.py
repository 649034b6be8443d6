import json
from collections.abc import Mapping
from typing import Any

from turnwire import DoneEvent, ErrorEvent, ToolCallEvent
from turnwire.core.contracts.wires import Encoder
from turnwire.core.log.codec import LoggedEvent
from turnwire.wires.frames import BaseEncoder, StatefulWire, answer_json
from turnwire.wires.turn_view import TurnView


class Lines(StatefulWire):
    name = "lines"
    media_type = "application/x-ndjson"
    heartbeat = b"\n"

    def __init__(self, *, tools: bool = True) -> None:
        self.tools = tools
        self.key = f"lines tools={tools}"  # Readers of wires with the same key share their bytes.

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "Lines":
        return cls(tools=query.get("tools") != "false")

    def encoder(self) -> Encoder:
        return LinesEncoder(self.tools)


class LinesEncoder(BaseEncoder):
    def __init__(self, tools: bool) -> None:
        self.tools = tools
        self.turn = TurnView()

    def frame(self, logged: LoggedEvent) -> bytes:
        if text := answer_json(logged.body):
            return b'{"text": %b}\n' % text  # Nearly every event is a token, so its JSON is used as it is.
        match self.turn.read(logged):
            case ToolCallEvent() as call if self.tools:
                return line({"tool": call.tool, "args": call.args})
            case ErrorEvent() as failure:
                return line({"error": failure.error})
            case DoneEvent() as done:
                return line({"done": done.outcome, "turn_id": done.turn_id})
            case _:
                return b""


def line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
