"""Answers of a scripted model, as the server-sent events of OpenAI's two APIs, of Gemini's and of Anthropic's.

`chat`, `responses`, `gemini` and `messages` yield the events that the real servers send for an answer, and the gates
(`asyncio.Event`) at which the answer waits. `scripted_server` has the helpers that make answers, and the server.
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
    """A piece of reasoning; `field` is its field in a chat chunk."""

    text: str
    field: Literal["reasoning_content", "reasoning"] = "reasoning_content"


@dataclass(frozen=True)
class Call:
    """A tool call with its arguments cut into pieces. The id is None for a server that sends none."""

    tool: str
    arguments: tuple[str, ...]
    id: str | None

    @property
    def whole(self) -> str:
        return "".join(self.arguments)


@dataclass(frozen=True)
class Calls:
    """Tool calls of one answer. `whole`: each in one chunk. `woven`: their pieces are interleaved."""

    calls: tuple[Call, ...]
    whole: bool = False
    woven: bool = False


Ending = Literal["finished", "length", "content_filter", "unfinished", "cut", "silence", "failed", "error"]
Piece = str | Thought | Calls | asyncio.Event | bytes
"""`bytes` are sent unchanged as the data of one event."""


@dataclass(frozen=True)
class ScriptedAnswer:
    pieces: tuple[Piece, ...] = ()
    ending: Ending = "finished"
    usage: dict[str, int] | None = field(default_factory=lambda: {"input": 11, "output": 7})
    error: dict[str, Any] = field(default_factory=dict[str, Any])


Wire = Callable[[ScriptedAnswer, dict[str, Any]], Iterator[bytes | asyncio.Event]]


def sse(data: Any, event: str | None = None) -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + body + b"\n\n"


def rounds(calls: Calls) -> Iterator[tuple[int, Call, int]]:
    """Yield the pieces of arguments in order: index of the call, the call, index of the piece."""
    steps = [(index, call, piece) for index, call in enumerate(calls.calls) for piece in range(len(call.arguments))]
    return iter(sorted(steps, key=lambda step: step[2])) if calls.woven else iter(steps)


# Chat Completions


def chat(answer: ScriptedAnswer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """Yield the events of `POST /v1/chat/completions` with `stream`."""
    options: dict[str, Any] = request.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**frame, "choices": [choice], **({"usage": None} if include_usage else {})})

    has_calls = False
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
                has_calls = True
                yield from map(chunk, _chat_calls(piece))
    if answer.ending in ("failed", "error"):
        yield sse({"error": answer.error})
    finish = {"finished": "tool_calls" if has_calls else "stop", "length": "length", "content_filter": "content_filter"}
    if answer.ending in finish:
        yield chunk({}, finish[answer.ending])
        if include_usage and answer.usage is not None:
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
    ids = {"id": call.id} if call.id is not None else {}
    return {"index": index, **ids, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


def chat_completion(answer: ScriptedAnswer, request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer to `POST /v1/chat/completions` without `stream`."""
    calls = [call for piece in answer.pieces if isinstance(piece, Calls) for call in piece.calls]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(p for p in answer.pieces if isinstance(p, str))}
    if calls:
        message["tool_calls"] = [_chat_call(index, call, call.whole) for index, call in enumerate(calls)]
    finish = {"length": "length", "content_filter": "content_filter"}
    reason = finish.get(answer.ending, "tool_calls" if calls else "stop")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    usage = {} if answer.usage is None else {"usage": chat_usage(answer.usage)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        **usage,
    }


def chat_usage(usage: dict[str, int]) -> dict[str, Any]:
    details: dict[str, Any] = {
        "prompt_tokens": usage["input"],
        "completion_tokens": usage["output"],
        "total_tokens": usage["input"] + usage["output"],
    }
    if "cached" in usage:
        details["prompt_tokens_details"] = {"cached_tokens": usage["cached"]}
    if "reasoning" in usage:
        details["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return details


# Responses


def responses(answer: ScriptedAnswer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """Yield the events of `POST /v1/responses` with `stream`."""
    writer = _Responses()
    yield writer.event("response.created", response=writer.response("in_progress"))
    yield writer.event("response.in_progress", response=writer.response("in_progress"))
    for piece in answer.pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case bytes():
                yield sse(piece)
            case str():
                yield from writer.text(piece)
            case Thought(text):
                yield from writer.thought(text)
            case Calls():
                yield from writer.close()
                yield from writer.calls(piece)
    if answer.ending in ("finished", "length", "content_filter"):
        yield from writer.close()
    match answer.ending:
        case "finished":
            yield writer.event("response.completed", response=writer.response("completed", usage=answer.usage))
        case "length" | "content_filter":
            reason = "max_output_tokens" if answer.ending == "length" else "content_filter"
            details = writer.response("incomplete", usage=answer.usage, incomplete_details={"reason": reason})
            yield writer.event("response.incomplete", response=details)
        case "failed":
            yield writer.event("response.failed", response=writer.response("failed", error=answer.error))
        case "error":
            yield writer.event("error", code=answer.error["code"], message=answer.error["message"], param=None)
        case _:
            pass


def response_object(answer: ScriptedAnswer, request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer to `POST /v1/responses` without `stream`."""
    *_, last = [event for event in responses(answer, request) if isinstance(event, bytes)]
    return json.loads(last.partition(b"data: ")[2])["response"]


class _Responses:
    """The state of one response: the event number, the output, and the open item that grows."""

    def __init__(self) -> None:
        # Unique, as the real server's: clients that track a conversation by ids would merge two answers.
        self._id = f"resp_{next(_ids)}"
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def response(self, status: str, usage: dict[str, int] | None = None, **fields: Any) -> dict[str, Any]:
        plain = {"id": self._id, "object": "response", "created_at": 1, "model": MODEL, "error": None}
        rest: dict[str, Any] = {
            "incomplete_details": None,
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        }
        details = responses_usage(usage) if usage is not None else None
        return {**plain, **rest, "status": status, "output": self._output, "usage": details, **fields}

    def text(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self.close()
            item: dict[str, Any] = {
                "id": f"msg_{len(self._output)}",
                "type": "message",
                "role": "assistant",
                "content": [],
            }
            yield from self._begin(item)
            yield self._item_event(item, "response.content_part.added", content_index=0, part=_text_part(""))
        assert self._open is not None
        self._open["content"] = self._open["content"] or [_text_part("")]
        self._open["content"][0]["text"] += text
        yield self._item_event(self._open, "response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def thought(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "reasoning":
            yield from self.close()
            item: dict[str, Any] = {"id": f"rs_{len(self._output)}", "type": "reasoning", "summary": []}
            yield from self._begin(item)
            yield self._item_event(
                item, "response.reasoning_summary_part.added", summary_index=0, part=_summary_part("")
            )
        assert self._open is not None
        self._open["summary"] = self._open["summary"] or [_summary_part("")]
        self._open["summary"][0]["text"] += text
        yield self._item_event(self._open, "response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def calls(self, calls: Calls) -> Iterator[bytes]:
        """Yield the calls one after the other, as the real server does; woven calls all begin before the first ends."""
        for together in [calls.calls] if calls.woven else [(call,) for call in calls.calls]:
            yield from self._calls(Calls(together, calls.whole, calls.woven))

    def _calls(self, calls: Calls) -> Iterator[bytes]:
        items: list[dict[str, Any]] = []
        for call in calls.calls:
            ids = {"call_id": call.id} if call.id is not None else {}
            item = {"id": f"fc_{len(self._output)}", "type": "function_call", "name": call.tool, **ids}
            items.append(item)
            self._output.append({**item, "arguments": "", "status": "in_progress"})
            yield self._item_event(item, "response.output_item.added", item=self._output[-1])
        for index, call, piece in () if calls.whole else rounds(calls):
            kind = "response.function_call_arguments.delta"
            yield self._item_event(items[index], kind, delta=call.arguments[piece])
        for item, call in zip(items, calls.calls, strict=True):
            done = {**item, "arguments": call.whole, "status": "completed"}
            yield self._item_event(item, "response.function_call_arguments.done", arguments=call.whole, name=call.tool)
            yield self._item_event(item, "response.output_item.done", item=done)
            self._output[self._index(item)] = done

    def close(self) -> Iterator[bytes]:
        """End the open item as the real server does, repeating its whole text."""
        item, self._open = self._open, None
        if item is None:
            return
        if item["type"] == "message":
            part = item["content"][0]
            yield self._item_event(item, "response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._item_event(item, "response.content_part.done", content_index=0, part=part)
        else:
            part = item["summary"][0]
            yield self._item_event(item, "response.reasoning_summary_text.done", summary_index=0, text=part["text"])
            yield self._item_event(item, "response.reasoning_summary_part.done", summary_index=0, part=part)
        item["status"] = "completed"
        yield self._item_event(item, "response.output_item.done", item=item)

    def _begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._open = {**item, "status": "in_progress"}
        self._output.append(self._open)
        yield self._item_event(item, "response.output_item.added", item=self._open)

    def _item_event(self, item: dict[str, Any], kind: str, /, **fields: Any) -> bytes:
        item_id = {} if "item" in fields else {"item_id": item["id"]}
        return self.event(kind, output_index=self._index(item), **item_id, **fields)

    def _index(self, item: dict[str, Any]) -> int:
        return next(index for index, item_at in enumerate(self._output) if item_at["id"] == item["id"])


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def responses_usage(usage: dict[str, int]) -> dict[str, Any]:
    details: dict[str, Any] = {
        "input_tokens": usage["input"],
        "output_tokens": usage["output"],
        "total_tokens": usage["input"] + usage["output"],
    }
    if "cached" in usage:
        details["input_tokens_details"] = {"cached_tokens": usage["cached"]}
    if "reasoning" in usage:
        details["output_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return details


# Gemini


def gemini(answer: ScriptedAnswer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """Yield the events of `POST /v1beta/models/…:streamGenerateContent?alt=sse`."""
    finish = {"finished": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(answer.ending)
    for piece in answer.pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case bytes():
                yield sse(piece)
            case str():
                yield sse(_candidate([{"text": piece}]))
            case Thought(text):
                yield sse(_candidate([{"text": text, "thought": True}]))
            case Calls():
                if (parts := _gemini_calls(piece)) is not None:
                    yield sse(_candidate(parts))
                elif finish:
                    finish = "MALFORMED_FUNCTION_CALL"
    if answer.ending in ("failed", "error"):
        yield sse(gemini_error_body(500, answer.error))
    if finish:
        usage = {} if answer.usage is None else {"usageMetadata": gemini_usage(answer.usage)}
        yield sse(_candidate([{"text": ""}] if finish == "STOP" else [], finish) | usage)


def _candidate(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    reason = {} if finish is None else {"finishReason": finish}
    return {"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0, **reason}], "modelVersion": MODEL}


def _gemini_calls(calls: Calls) -> list[dict[str, Any]] | None:
    """Return the parts of calls, or None if the arguments of one are no object: the server sends none of them then."""
    parts: list[dict[str, Any]] = []
    for call in calls.calls:
        try:
            args = json.loads(call.whole)
        except ValueError:
            return None
        if not isinstance(args, dict):
            return None
        ids = {"id": call.id} if call.id is not None else {}
        parts.append({"functionCall": {"name": call.tool, "args": args, **ids}})
    return parts


def gemini_response(answer: ScriptedAnswer, request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer to `POST /v1beta/models/…:generateContent`."""
    events = [json.loads(each[len(b"data: ") :]) for each in gemini(answer, request) if isinstance(each, bytes)]
    candidates = [event["candidates"][0] for event in events]
    parts = [part for each in candidates for part in each["content"]["parts"] if part != {"text": ""}]
    return {**events[-1], "candidates": [{**candidates[-1], "content": {"role": "model", "parts": parts}}]}


def gemini_usage(usage: dict[str, int]) -> dict[str, int]:
    details = {
        "promptTokenCount": usage["input"],
        "candidatesTokenCount": usage["output"] - usage.get("reasoning", 0),
        "totalTokenCount": usage["input"] + usage["output"],
    }
    if "cached" in usage:
        details["cachedContentTokenCount"] = usage["cached"]
    if "reasoning" in usage:
        details["thoughtsTokenCount"] = usage["reasoning"]
    return details


def gemini_error_body(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in Google's form; only its message says that a conversation is too long."""
    names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
    names |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
    message = error.get("message", "")
    if error.get("code") == "context_length_exceeded":
        message = f"The input token count (1200000) exceeds the maximum number of tokens allowed 1048576. {message}"
    return {"error": {"code": status, "message": message, "status": names.get(status, "UNKNOWN")}}


# Messages


def messages(answer: ScriptedAnswer, request: dict[str, Any]) -> Iterator[bytes | asyncio.Event]:
    """Yield the events of `POST /v1/messages` with `stream`."""
    writer = _Messages()
    yield writer.begin(request.get("model", MODEL), answer.usage)
    for piece in answer.pieces:
        match piece:
            case asyncio.Event():
                yield piece
            case bytes():
                yield sse(piece, "content_block_delta")
            case str():
                yield from writer.delta({"type": "text", "text": ""}, {"type": "text_delta", "text": piece})
            case Thought(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                yield from writer.delta(block, {"type": "thinking_delta", "thinking": text})
            case Calls():
                yield from writer.calls(piece)
    if answer.ending in ("failed", "error"):
        yield sse(messages_error(500, answer.error), "error")
    reasons = {"finished": "tool_use" if writer.has_calls else "end_turn", "length": "max_tokens"}
    reason = (reasons | {"content_filter": "refusal"}).get(answer.ending)
    if reason is not None:
        yield from writer.close()
        usage = {} if answer.usage is None else {"usage": {"output_tokens": answer.usage["output"]}}
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield sse({"type": "message_delta", "delta": delta, **usage}, "message_delta")
        yield sse({"type": "message_stop"}, "message_stop")


class _Messages:
    """The state of one message: the number of its content blocks, and the open one that grows."""

    def __init__(self) -> None:
        self.has_calls = False
        self._blocks = 0
        self._open: str | None = None

    def begin(self, model: str, usage: dict[str, int] | None) -> bytes:
        message: dict[str, Any] = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": model}
        message |= {"content": [], "stop_reason": None, "stop_sequence": None}
        if usage is not None:
            message["usage"] = messages_usage(usage) | {"output_tokens": 1}
        return sse({"type": "message_start", "message": message}, "message_start")

    def delta(self, block: dict[str, Any], delta: dict[str, Any]) -> Iterator[bytes]:
        if self._open != block["type"]:
            yield from self.close()
            yield from self._begin(block)
        yield self._event("content_block_delta", delta=delta)

    def calls(self, calls: Calls) -> Iterator[bytes]:
        """Yield the calls one after the other: a block ends before the next one begins."""
        self.has_calls = True
        for number, call in enumerate(calls.calls):
            yield from self.close()
            yield from self._begin(
                {"type": "tool_use", "id": call.id or f"toolu_{number}", "name": call.tool, "input": {}}
            )
            for piece in [call.whole] if calls.whole else call.arguments:
                yield self._event("content_block_delta", delta={"type": "input_json_delta", "partial_json": piece})

    def close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._event("content_block_delta", delta={"type": "signature_delta", "signature": "c2lnbmVk"})
        yield self._event("content_block_stop")
        self._open = None

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        self._open, self._blocks = block["type"], self._blocks + 1
        yield self._event("content_block_start", content_block=block)
        if self._blocks == 1:
            yield sse({"type": "ping"}, "ping")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "index": self._blocks - 1, **fields}, kind)


def message_object(answer: ScriptedAnswer, request: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer to `POST /v1/messages` without `stream`."""
    message: dict[str, Any] = {}
    for event in messages(answer, request):
        if not isinstance(event, bytes):
            continue
        data: dict[str, Any] = json.loads(event.partition(b"data: ")[2])
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                message["content"].append(data["content_block"])
            case "content_block_delta":
                _grow(message["content"][-1], data["delta"])
            case "message_delta":
                message |= data["delta"]
                message["usage"] = message.get("usage", {}) | data.get("usage", {})
            case _:
                pass
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial", "{}"))
    return message


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case _:
            block["partial"] = block.get("partial", "") + delta["partial_json"]


def messages_usage(usage: dict[str, int]) -> dict[str, int]:
    """Return the usage in Anthropic's form: what was read from the cache is not part of the input."""
    cached = usage.get("cached", 0)
    counts = {"input_tokens": usage["input"] - cached, "output_tokens": usage["output"]}
    return {**counts, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}


def messages_error(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in Anthropic's form; only its message says that a conversation is too long."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= {429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
    message = error.get("message", "")
    if error.get("code") == "context_length_exceeded":
        message = f"prompt is too long: 1200000 tokens > 200000 maximum. {message}"
    return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}
