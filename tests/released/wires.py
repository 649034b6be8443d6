"""Every request that streams or answers a turn, and the record of a scene through each of them."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import websockets.asyncio.client

from tests.released.recording import Recorder, steady, until, visible
from tests.released.scenes import DECISIONS, PATIENCE, SCENES
from turnwire import WaitForApproval

_MESSAGE = "Hello"


@dataclass(frozen=True)
class Ask:
    """A request that starts a turn. One with `ends` opens a WebSocket and sends the body there."""

    title: str
    path: str
    body: dict[str, Any]
    is_stream: bool = True
    ends: tuple[str, ...] = ()
    """On a socket: texts of which the last message contains one."""
    is_plain: bool = False
    """Whether the stream shows the text of an answer alone, and approval requests at most at its end."""


def asks(name: str) -> list[Ask]:
    """All of them, for a session, chat or thread of this name each."""
    numbers = count(1)

    def session() -> str:
        return f"{name}-{next(numbers)}"

    def chat(**more: Any) -> dict[str, Any]:
        message = {"id": "message-1", "role": "user", "parts": [{"type": "text", "text": _MESSAGE}]}
        return {"id": session(), "messages": [message], "trigger": "submit-message", **more}

    def run(**more: Any) -> dict[str, Any]:
        thread, messages = session(), [{"id": "message-1", "role": "user", "content": _MESSAGE}]
        empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": thread, "runId": f"run-{thread}", "messages": messages, **empty, **more}

    messages = [{"role": "user", "content": _MESSAGE}]
    response = {"model": "turnwire", "input": _MESSAGE}
    completion = {"model": "turnwire", "messages": messages}
    usage = {"stream_options": {"include_usage": True}}
    completed = ("response.completed", "response.failed", "response.incomplete", '"type":"error"')
    return [
        Ask("POST /chat/stream", "/chat/stream", {"message": _MESSAGE, "session_id": session()}),
        Ask(
            "POST /v1/rag/sessions/{id}/messages/stream",
            f"/v1/rag/sessions/{session()}/messages/stream",
            {"prompt": _MESSAGE},
            is_plain=True,
        ),
        *(
            Ask(f"POST /api/chat?sdk_version={version}", f"/api/chat?sdk_version={version}", chat())
            for version in (5, 6, 7)
        ),
        Ask("POST /api/chat?stream=text", "/api/chat?stream=text", chat(), is_plain=True),
        Ask("POST /ag-ui, before 1.0", "/ag-ui", run()),
        Ask("POST /ag-ui, 1.0", "/ag-ui", run(protocolVersion="1.0")),
        Ask("POST /v1/responses, streamed", "/v1/responses", {**response, "stream": True}),
        Ask("POST /v1/chat/completions, streamed", "/v1/chat/completions", {**completion, "stream": True}),
        Ask(
            "POST /v1/chat/completions, streamed, with usage",
            "/v1/chat/completions",
            {**completion, "stream": True, **usage},
        ),
        Ask(
            "WebSocket /v1/ws",
            "/v1/ws",
            {"type": "start", "id": 1, "message": _MESSAGE, "session_id": session()},
            ends=('"type":"done"',),
        ),
        Ask(
            "WebSocket /api/chat/ws",
            "/api/chat/ws",
            {"type": "send", "requestId": "request-1", **chat()},
            ends=('{"type":"end"', '{"type":"error"'),
        ),
        Ask("WebSocket /v1/responses", "/v1/responses", {"type": "response.create", **response}, ends=completed),
        Ask("POST /chat", "/chat", {"message": _MESSAGE, "session_id": session()}, is_stream=False),
        Ask(
            "POST /v1/rag/sessions/{id}/messages",
            f"/v1/rag/sessions/{session()}/messages",
            {"message": _MESSAGE},
            is_stream=False,
        ),
        Ask("POST /v1/responses", "/v1/responses", response, is_stream=False),
        Ask("POST /v1/chat/completions", "/v1/chat/completions", completion, is_stream=False),
    ]


WIRES = (
    "sse_chat",
    "three_phase_text",
    *(f"ai_sdk&sdk_version={version}" for version in (5, 6, 7)),
    *(f"ag_ui&version={version}" for version in (0, 1)),
    "ag_ui&thread_id=thread-1&run_id=run-1",
    "openai_responses",
    "openai_responses&segment=2",
    "openai_chat",
    "openai_chat&include_usage=true",
    "a2a",
    "a2a&version=0.3",
)


async def record_live(recorder: Recorder, scene: str) -> list[tuple[str, str]]:
    """The scene through every request that starts a turn."""
    return [(ask.title, await run_once(recorder, scene, ask)) for ask in asks(scene)]


async def run_once(recorder: Recorder, scene: str, ask: Ask) -> str:
    """One turn, from its request to its end, whatever it needs from outside in between."""
    stage = recorder.stage
    stage.begin(scene, is_read=ask.is_stream)
    reading = asyncio.create_task(_talk(recorder, ask) if ask.ends else recorder.send("POST", ask.path, json=ask.body))
    if DECISIONS.get(scene) or scene == "approval_cancelled":
        await _decide(recorder, scene, ask, reading)
    elif any(type(step).__name__ == "Hang" for step in SCENES[scene]):
        turn_id = await asyncio.wait_for(stage.hanging.get(), PATIENCE)
        if ask.is_stream:
            await _received(recorder, reading, _last_text(scene))
        await recorder.json(f"/v1/turns/{turn_id}/cancel", "POST")
    text = await reading
    await recorder.phase(stage.turn_id, "ended")
    return text


async def _decide(recorder: Recorder, scene: str, ask: Ask, reading: "asyncio.Task[str]") -> None:
    """Post the decisions, or cancel the turn, once the reader has received all that comes before them."""
    turn_id = await asyncio.wait_for(recorder.stage.waiting.get(), PATIENCE)
    await recorder.phase(turn_id, "waiting")
    if not ask.is_stream:
        await asyncio.wait([reading], timeout=PATIENCE)
    elif ask.is_plain:
        await _received(recorder, reading, _last_text(scene))
    else:
        wait = next(step for step in SCENES[scene] if isinstance(step, WaitForApproval))
        await _received(recorder, reading, f'"approval_request","call_id":"{wait.requests[-1].call_id}"')
    if scene not in DECISIONS:
        await recorder.json(f"/v1/turns/{turn_id}/cancel", "POST")
    for call_id, decision in DECISIONS.get(scene, ()):
        await recorder.json(f"/v1/turns/{turn_id}/approvals/{call_id}", "POST", json=decision)


async def _received(recorder: Recorder, reading: "asyncio.Task[str]", text: str) -> None:
    """Wait until the reader has received this text, or its stream has ended."""
    await until(lambda: reading.done() or text.encode() in recorder.stage.received)


def _last_text(scene: str) -> str:
    return [step for step in SCENES[scene] if isinstance(step, str)][-1]


async def _talk(recorder: Recorder, ask: Ask) -> str:
    """Return what a socket answers to one message, one line for each message."""
    address = recorder.url.replace("http", "ws", 1) + ask.path
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE), websockets.asyncio.client.connect(address, compression=None) as talk:
        await talk.send(json.dumps(ask.body))
        while True:
            message = await talk.recv()
            body = message.encode() if isinstance(message, str) else message
            recorder.stage.received += body
            lines.append(visible(body))
            if any(end.encode() in body for end in ask.ends):
                return "101\n\n" + "\n".join(lines)


async def record_replay(recorder: Recorder, turn_id: str) -> list[tuple[str, str]]:
    """An ended turn on every wire: whole, from its middle, and by each protocol's own way to resume."""
    found: list[tuple[str, str]] = []
    snapshot = await recorder.json(f"/v1/turns/{turn_id}")
    last, session_id = snapshot["last_position"], snapshot["session_id"]
    events, middle = f"/v1/turns/{turn_id}/events", snapshot["last_position"] // 2

    async def add(title: str, path: str, method: str = "GET", **request: Any) -> None:
        found.append((f"{method} {title}", await recorder.send(method, path, **request)))

    for wire in WIRES:
        await add(f"/v1/turns/{{id}}/events?wire={wire}", f"{events}?wire={wire}")
        if wire == "three_phase_text" and b"\x1d" in recorder.body:
            offset = recorder.body.index(b"\x1d") + 1
            await add(f"/v1/turns/{{id}}/events?wire={wire}&offset=<answer>", f"{events}?wire={wire}&offset={offset}")
        await add(f"/v1/turns/{{id}}/events?wire={wire}&after={middle}", f"{events}?wire={wire}&after={middle}")
    for wire in ("sse_chat", "ag_ui", "a2a"):
        for cursor in ("3", "4.1", "2.7"):
            if wire == "sse_chat" or "." not in cursor:
                title = f"/v1/turns/{{id}}/events?wire={wire}, Last-Event-ID: {cursor}"
                await add(title, f"{events}?wire={wire}", headers={"Last-Event-ID": cursor})
    for after in (last, last + 1000):
        await add(f"/v1/turns/{{id}}/events?after={after}", f"{events}?after={after}")
    await add("/v1/turns/{id}/events?wait=0&after=3", f"{events}?wait=0&after=3")
    for index in ("0", "3", "-2"):
        await add(f"/api/chat/{{run}}/stream?startIndex={index}", f"/api/chat/{turn_id}/stream?startIndex={index}")
    await add("/api/chat/{session}/stream", f"/api/chat/{session_id}/stream")
    await add("/ag-ui?runId={turn}&offset=3", f"/ag-ui?runId={turn_id}&offset=3")
    await add("/ag-ui?threadId={session}", f"/ag-ui?threadId={session_id}")
    response = f"/v1/responses/resp_{turn_id}"
    await add("/v1/responses/{id}", response)
    await add("/v1/responses/{id}?stream=true&starting_after=3", f"{response}?stream=true&starting_after=3")
    await add("/v1/responses/{id}/input_items", f"{response}/input_items")
    await add("/v1/turns/{id}", f"/v1/turns/{turn_id}")
    await add("/v1/turns/{id}/log.jsonl", f"/v1/turns/{turn_id}/log.jsonl")
    await add("/v1/sessions/{id}", f"/v1/sessions/{session_id}")
    await add("/v1/sessions/{id}/export", f"/v1/sessions/{session_id}/export")
    await add("/v1/sessions/{id}/events", f"/v1/sessions/{session_id}/events", until=_has_done)
    return found


def _has_done(body: bytes) -> bool:
    return b'"type":"done"' in body and body.endswith(b"\n\n")


def sections(found: list[tuple[str, str]], own_texts: tuple[str, ...]) -> str:
    """One text of all recordings. A body that an earlier one has in full is named, not repeated."""
    bodies: dict[str, str] = {}
    lines: list[str] = []
    for title, recorded in found:
        text = steady(recorded, own_texts)
        head, _, body = text.partition("\n\n")
        earlier = bodies.setdefault(body, title) if body else title
        lines.append(f"=== {title}\n{head}\n\n{body if earlier == title else f'(the body of: {earlier})'}\n")
    return "\n".join(lines)


def strings_of(value: Any, take: Callable[[str], None]) -> None:
    """Calls `take` with every text in a value."""
    if isinstance(value, str):
        take(value)
    elif isinstance(value, dict):
        for part in value.values():
            strings_of(part, take)
    elif isinstance(value, list | tuple):
        for part in value:
            strings_of(part, take)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            strings_of(getattr(value, name), take)


def texts_of(scene: str) -> tuple[str, ...]:
    """The words of a scene, which golden files keep."""
    found: list[str] = [_MESSAGE]
    for step in SCENES[scene]:
        if isinstance(step, Exception):
            if hasattr(step, "code"):
                found.append(str(step))
            strings_of(list(getattr(step, "requests", ())), found.append)
        else:
            strings_of(step, found.append)
    for _, decision in DECISIONS.get(scene, ()):
        strings_of(decision, found.append)
    return tuple(found)
