"""A reader of UI message streams, as strict as the AI SDK's own: a chunk that is fatal there fails here."""

import json
from typing import Any

from tests.wires.sse import parse

_COMMON = {
    "start": {"messageId"},
    "start-step": set(),
    "finish-step": set(),
    "text-start": {"id"},
    "text-delta": {"id", "delta"},
    "text-end": {"id"},
    "reasoning-start": {"id"},
    "reasoning-delta": {"id", "delta"},
    "reasoning-end": {"id"},
    "tool-input-start": {"toolCallId", "toolName"},
    "tool-input-available": {"toolCallId", "toolName", "input"},
    "tool-output-available": {"toolCallId", "output"},
    "tool-output-error": {"toolCallId", "errorText"},
    "source-url": {"sourceId", "url"},
    "source-document": {"sourceId", "mediaType", "title"},
    "message-metadata": {"messageMetadata"},
    "finish": {"finishReason"},
    "abort": set(),
    "error": {"errorText"},
}
_ADDED = {
    5: {},
    6: {"tool-approval-request": {"approvalId", "toolCallId"}, "tool-output-denied": {"toolCallId"}},
}
_ADDED[7] = {**_ADDED[6], "tool-approval-response": {"approvalId", "approved"}}
# Only these fields may be null.
_NULLABLE = {"input", "output", "data", "messageMetadata"}
_REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "other"}


class UIMessage:
    """The message that a client builds from chunks. Tool parts, and data parts with an id, change in place.

    An `error` ends the message: later chunks are ignored. `transient` are the data parts that a client does not keep.
    """

    def __init__(self, version: int = 6) -> None:
        self.required_fields = _COMMON | _ADDED[version]
        self.id: str | None = None
        self.metadata: dict[str, Any] = {}
        self.parts: list[dict[str, Any]] = []
        self.transient: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.aborted = False
        self.error: str | None = None
        self.is_done = False
        self._open: dict[str, dict[str, Any]] = {}

    def read(self, body: bytes) -> "UIMessage":
        """Read a stream; `is_done` tells if it was complete."""
        assert body.isascii()
        for frame in parse(body):
            assert frame.id is frame.event is frame.retry is None
            self.is_done = frame.data == "[DONE]"
            if not self.is_done and self.error is None:
                self.take(json.loads(frame.data))
        return self

    def take(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        if not kind.startswith("data-"):
            assert kind in self.required_fields, f"fatal: an unknown chunk {kind!r}"
            assert self.required_fields[kind] <= set(chunk), f"fatal: {chunk} lacks a field"
        for name, value in chunk.items():
            assert value is not None or name in _NULLABLE, f"fatal: {name} is null in {chunk}"
        self.finish_reason = None if kind == "start" else self.finish_reason
        if kind.startswith("data-"):
            self._data(chunk)
        elif kind.startswith(("text-", "reasoning-")):
            self._text(chunk, *kind.split("-"))
        elif kind.startswith("tool-"):
            self._tool(chunk)
        elif kind.startswith("source-"):
            self.parts.append(chunk)
        else:
            self._message(chunk)

    def _message(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        self.metadata |= chunk.get("messageMetadata", {})
        if kind == "start":
            assert self.id in (None, chunk["messageId"])
            self.id = chunk["messageId"]
        elif kind == "start-step":
            self.parts.append({"type": "step-start"})
        elif kind == "finish-step":
            assert not self._open, "a part is open at the end of a step"
        elif kind == "finish":
            assert chunk["finishReason"] in _REASONS
            self.finish_reason = chunk["finishReason"]
        elif kind == "abort":
            self.aborted = True
        elif kind == "error":
            self.error = chunk["errorText"]

    def _text(self, chunk: dict[str, Any], kind: str, phase: str) -> None:
        if phase == "start":
            assert chunk["id"] not in self._open
            self._open[chunk["id"]] = {"type": kind, "text": ""}
            self.parts.append(self._open[chunk["id"]])
            return
        assert chunk["id"] in self._open, f"fatal: {chunk} before its start"
        if phase == "delta":
            self._open[chunk["id"]]["text"] += chunk["delta"]
        else:
            del self._open[chunk["id"]]

    def _tool(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        if kind == "tool-input-start":
            call, name = chunk["toolCallId"], chunk["toolName"]
            # The client's own tools and questions are of a known type; those of the server are dynamic.
            is_dynamic = chunk.get("dynamic", False)
            state = "input-streaming"
            self.parts.append({"type": "tool", "id": call, "tool": name, "state": state, "dynamic": is_dynamic})
            return
        call_id = chunk.get("toolCallId") or chunk["approvalId"]
        part = next((p for p in reversed(self.parts) if p["type"] == "tool" and p["id"] == call_id), None)
        assert part is not None, f"fatal: {chunk} names no call"
        if kind in ("tool-input-available", "tool-output-available", "tool-output-error"):
            assert chunk.get("dynamic", False) is part["dynamic"], f"fatal: {chunk} is of another type than its call"
        part["state"] = {
            "tool-input-available": "input-available",
            "tool-output-available": "output-available",
            "tool-output-error": "output-error",
            "tool-output-denied": "output-denied",
            "tool-approval-request": "approval-requested",
            "tool-approval-response": "approval-responded",
        }[kind]
        fields = {"input": "input", "output": "output", "errorText": "error", "approvalId": "approval"}
        part |= {name: chunk[field] for field, name in fields.items() if field in chunk}
        if chunk.get("preliminary"):
            part["preliminary"] = True
        else:
            part.pop("preliminary", None)

    def _data(self, chunk: dict[str, Any]) -> None:
        assert "data" in chunk
        if chunk.get("transient"):
            self.transient.append(chunk)
            return
        same = [p for p in self.parts if "id" in chunk and (p["type"], p.get("id")) == (chunk["type"], chunk["id"])]
        if same:
            same[0]["data"] = chunk["data"]
        else:
            self.parts.append(dict(chunk))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [part for part in self.parts if part["type"] == kind]

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.of("text"))

    @property
    def last_step(self) -> list[dict[str, Any]]:
        starts = [index for index, part in enumerate(self.parts) if part["type"] == "step-start"]
        return self.parts[starts[-1] + 1 :]

    @property
    def sends_by_itself(self) -> bool:
        """Return True if a client that sends when all tools have ended would send a request now."""
        calls = [part for part in self.last_step if part["type"] == "tool"]
        ended = ("output-available", "output-error")
        return bool(calls) and all(part["state"] in ended and "preliminary" not in part for part in calls)
