"""What a scripted model says, and how it looks on the two wires of the OpenAI API.

`chat` and `responses` turn an `Answer` into the server-sent events that the real servers send, one by one.
Between them stand the gates (`asyncio.Event`) at which the answer waits. `tests/scripted_model.py` has the
helpers that make answers, and the server that sends them.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

MODEL = "scripted"
_ids = count(1)


@dataclass(frozen=True)
class Thought:
    """A piece of reasoning; `field` is what a chat server calls it."""

    text: str
    field: Literal["reasoning_content", "reasoning"] = "reasoning_content"


@dataclass(frozen=True)
class Call:
    """A tool call, its arguments already cut into pieces. One without an id is a server's that sends none."""

    tool: str
    arguments: tuple[str, ...]
    id: str | None

    @property
    def whole(self) -> str:
        return "".join(self.arguments)


@dataclass(frozen=True)
class Calls:
    """Tool calls of one answer. `whole`: each in one chunk. `woven`: their pieces come in turns."""

    calls: tuple[Call, ...]
    whole: bool = False
    woven: bool = False


Ending = Literal["finished", "length", "content_filter", "unfinished", "cut", "silence", "failed", "error"]
Piece = str | Thought | Calls | asyncio.Event | bytes
"""`bytes` are put on the wire as the data of one event, whatever they are."""


@dataclass(frozen=True)
class Answer:
    pieces: tuple[Piece, ...] = ()
    ending: Ending = "finished"
    usage: dict[str, int] | None = field(default_factory=lambda: {"input": 11, "output": 7})
    error: dict[str, Any] = field(default_factory=dict)


Wire = Callable[[Answer, dict[str, Any]], Iterator[bytes | asyncio.Event]]


def sse(data: Any, event: str | None = None) -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + body + b"\n\n"


def rounds(calls: Calls) -> Iterator[tuple[int, Call, int]]:
    """The order in which pieces of arguments go out: index of the call, the call, index of the piece."""
    places = [(index, call, piece) for index, call in enumerate(calls.calls) for piece in range(len(call.arguments))]
    return iter(sorted(places, key=lambda place: place[2])) if calls.woven else iter(places)


# Chat Completions


def chat(answer: Answer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """The events of `POST /v1/chat/completions` with `stream`."""
    told_usage = bool((request.get("stream_options") or {}).get("include_usage"))
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**frame, "choices": [choice], **({"usage": None} if told_usage else {})})

    called = False
    yield chunk({"role": "assistant", "content": ""})
    for piece in answer.pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case bytes():
                yield sse(piece)
            case str():
                yield chunk({"content": piece})
            case Thought(text, name):
                yield chunk({name: text})
            case Calls():
                called = True
                yield from map(chunk, _chat_calls(piece))
    if answer.ending in ("failed", "error"):
        yield sse({"error": answer.error})
    finish = {"finished": "tool_calls" if called else "stop", "length": "length", "content_filter": "content_filter"}
    if answer.ending in finish:
        yield chunk({}, finish[answer.ending])
        if told_usage and answer.usage is not None:
            yield sse({**frame, "choices": [], "usage": chat_usage(answer.usage)})
    if answer.ending not in ("cut", "silence", "failed", "error"):
        yield sse(b"[DONE]")


def _chat_calls(calls: Calls) -> Iterator[dict[str, Any]]:
    if calls.whole:
        for index, call in enumerate(calls.calls):
            yield {"tool_calls": [_chat_call(index, call, call.whole)]}
        return
    begun: set[int] = set()
    for index, call, piece in rounds(calls):
        if index not in begun:
            begun.add(index)
            yield {"tool_calls": [_chat_call(index, call, "")]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments[piece]}}]}


def _chat_call(index: int, call: Call, arguments: str) -> dict[str, Any]:
    named = {"id": call.id} if call.id is not None else {}
    return {"index": index, **named, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


def chat_usage(usage: dict[str, int]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": usage["input"],
        "completion_tokens": usage["output"],
        "total_tokens": usage["input"] + usage["output"],
    }
    if "cached" in usage:
        told["prompt_tokens_details"] = {"cached_tokens": usage["cached"]}
    if "reasoning" in usage:
        told["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return told


# Responses


def responses(answer: Answer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """The events of `POST /v1/responses` with `stream`."""
    teller = _Responses()
    yield teller.event("response.created", response=teller.response("in_progress"))
    yield teller.event("response.in_progress", response=teller.response("in_progress"))
    for piece in answer.pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case bytes():
                yield sse(piece)
            case str():
                yield from teller.text(piece)
            case Thought(text):
                yield from teller.thought(text)
            case Calls():
                yield from teller.close()
                yield from teller.calls(piece)
    if answer.ending in ("finished", "length", "content_filter"):
        yield from teller.close()
    match answer.ending:
        case "finished":
            yield teller.event("response.completed", response=teller.response("completed", usage=answer.usage))
        case "length" | "content_filter":
            reason = "max_output_tokens" if answer.ending == "length" else "content_filter"
            told = teller.response("incomplete", usage=answer.usage, incomplete_details={"reason": reason})
            yield teller.event("response.incomplete", response=told)
        case "failed":
            yield teller.event("response.failed", response=teller.response("failed", error=answer.error))
        case "error":
            yield teller.event("error", code=answer.error["code"], message=answer.error["message"], param=None)
        case _:
            pass


class _Responses:
    """Numbers the events, and keeps the one open item that text or thoughts go to."""

    def __init__(self) -> None:
        # Of its own, as the real server's: who keeps a conversation by ids would take two answers for one.
        self._id = f"resp_{next(_ids)}"
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def response(self, status: str, usage: dict[str, int] | None = None, **fields: Any) -> dict[str, Any]:
        plain = {"id": self._id, "object": "response", "created_at": 1, "model": MODEL, "error": None}
        rest = {"incomplete_details": None, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        told = responses_usage(usage) if usage is not None else None
        return {**plain, **rest, "status": status, "output": self._output, "usage": told, **fields}

    def text(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self.close()
            item = {"id": f"msg_{len(self._output)}", "type": "message", "role": "assistant", "content": []}
            yield from self._begin(item)
            yield self._about(item, "response.content_part.added", content_index=0, part=_text_part(""))
        assert self._open is not None
        self._open["content"] = self._open["content"] or [_text_part("")]
        self._open["content"][0]["text"] += text
        yield self._about(self._open, "response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def thought(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self.close()
            item = {"id": f"rs_{len(self._output)}", "type": "reasoning", "summary": []}
            yield from self._begin(item)
            yield self._about(item, "response.reasoning_summary_part.added", summary_index=0, part=_summary_part(""))
        assert self._open is not None
        self._open["summary"] = self._open["summary"] or [_summary_part("")]
        self._open["summary"][0]["text"] += text
        yield self._about(self._open, "response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def calls(self, calls: Calls) -> Iterator[bytes]:
        """One after the other, as the real server does; woven, they are all begun before the first one ends."""
        for together in [calls.calls] if calls.woven else [(call,) for call in calls.calls]:
            yield from self._calls(Calls(together, calls.whole, calls.woven))

    def _calls(self, calls: Calls) -> Iterator[bytes]:
        items: list[dict[str, Any]] = []
        for call in calls.calls:
            named = {"call_id": call.id} if call.id is not None else {}
            item = {"id": f"fc_{len(self._output)}", "type": "function_call", "name": call.tool, **named}
            items.append(item)
            self._output.append({**item, "arguments": "", "status": "in_progress"})
            yield self._about(item, "response.output_item.added", item=self._output[-1])
        for index, call, piece in () if calls.whole else rounds(calls):
            kind = "response.function_call_arguments.delta"
            yield self._about(items[index], kind, delta=call.arguments[piece])
        for item, call in zip(items, calls.calls, strict=True):
            done = {**item, "arguments": call.whole, "status": "completed"}
            yield self._about(item, "response.function_call_arguments.done", arguments=call.whole, name=call.tool)
            yield self._about(item, "response.output_item.done", item=done)
            self._output[self._place(item)] = done

    def close(self) -> Iterator[bytes]:
        """Ends the open item as the real server does, with everything said once more."""
        item, self._open = self._open, None
        if item is None:
            return
        if item["type"] == "message":
            part = item["content"][0]
            yield self._about(item, "response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._about(item, "response.content_part.done", content_index=0, part=part)
        else:
            part = item["summary"][0]
            yield self._about(item, "response.reasoning_summary_text.done", summary_index=0, text=part["text"])
            yield self._about(item, "response.reasoning_summary_part.done", summary_index=0, part=part)
        item["status"] = "completed"
        yield self._about(item, "response.output_item.done", item=item)

    def _begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._open = {**item, "status": "in_progress"}
        self._output.append(self._open)
        yield self._about(item, "response.output_item.added", item=self._open)

    def _about(self, item: dict[str, Any], kind: str, /, **fields: Any) -> bytes:
        of = {} if "item" in fields else {"item_id": item["id"]}
        return self.event(kind, output_index=self._place(item), **of, **fields)

    def _place(self, item: dict[str, Any]) -> int:
        return next(index for index, one in enumerate(self._output) if one["id"] == item["id"])


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def responses_usage(usage: dict[str, int]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "input_tokens": usage["input"],
        "output_tokens": usage["output"],
        "total_tokens": usage["input"] + usage["output"],
    }
    if "cached" in usage:
        told["input_tokens_details"] = {"cached_tokens": usage["cached"]}
    if "reasoning" in usage:
        told["output_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return told
