"""A scripted model: an OpenAI-compatible server on a real socket that answers what a test tells it to.

    async with scripted_model(calls(("search", {"query": "tea"})), says("Green tea.")) as server:
        model = OpenAIModel("any", base_url=server.url)

It serves `POST /v1/chat/completions` and `/v1/responses`, as streams or whole, `/v1/embeddings`, and at `/v1/models`
the names in `server.models`; Anthropic's `POST /v1/messages`; and Gemini's `POST
/v1beta/models/…:streamGenerateContent` and `:generateContent`. The clients of these two get the URL without its `/v1`.
An answer is not tied to an API; answers are served in order, one for each request. An entry of the plan may also be a
function of the `ModelRequest`, for answers that depend on the question.

Answers:
    says("Two words")           text. One string is sent word by word; several are sent as they are cut
    says("One ", gate, "two")   an `asyncio.Event` among them is waited for, on the server's own event loop
    says(thinks("Hm."), "Yes")  a thought is sent as the model's reasoning
    says()                      nothing at all, and a good end
    calls(("tool", args), ...)  tool calls, `args` a dict or the raw text; `text=` goes before them,
                                `whole=True` sends each in one chunk, `woven=True` their pieces in turns,
                                `ids=None` no ids at all (otherwise they are call_1, call_2, ...)
    truncates("text")           the stream ends without a finish reason
    too_long("text")            the model stopped at its limit of tokens
    filtered("text")            a content filter stopped the model
    cuts("text")                the connection breaks in the middle
    silent("text")              nothing more is sent after the text, until the client leaves
    hangs()                     the request is taken, and never answered
    garbles("text")             a chunk that is not JSON
    breaks("text", code=...)    the server reports an error in the middle
    fails(429, retry_after_ms=10)   an HTTP error; also `code=`, `message=`, `headers=`
All that stream take `usage=`: {"input": 11, "output": 7} and perhaps "cached" and "reasoning"; None sends none.

The server knows `server.requests` (each with `path`, `headers`, `body`), `server.aborts` (how many clients left before
their answer was over), `server.connections` (ever made), `server.open_connections` and `server.unused` (answers that
nobody has requested). `await server.request()` waits for the next request, `await server.aborted()` for the next client
that leaves. A request beyond the plan is an error, which leaving the `async with` raises.
"""

import asyncio
import base64
import json
import re
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from turnwire.testing.scripted_wires import (
    Call,
    Calls,
    Piece,
    ScriptedAnswer,
    Thought,
    Wire,
    chat,
    chat_completion,
    gemini,
    gemini_error_body,
    gemini_response,
    message_object,
    messages,
    messages_error,
    response_object,
    responses,
)

_PATIENCE_SECONDS = 60.0


class _Api(NamedTuple):
    """How an API writes a streamed answer, a whole one, and an error."""

    events: Wire
    whole_answer: Callable[[ScriptedAnswer, dict[str, Any]], dict[str, Any]]
    error_body: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda _, error: {"error": error}


# By the pattern of their paths.
_APIS = {
    "/v1/chat/completions": _Api(chat, chat_completion),
    "/v1/responses": _Api(responses, response_object),
    r"/v1/messages(\?.*)?": _Api(messages, message_object, messages_error),
    r"/v1beta/models/[^/:]+:(streamG|g)enerateContent(\?.*)?": _Api(gemini, gemini_response, gemini_error_body),
}


@dataclass(frozen=True)
class Failure:
    """An HTTP error instead of an answer; no status means that nothing is answered."""

    status: int | None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    error: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class ModelRequest:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Reply = ScriptedAnswer | Failure
Plan = Reply | Callable[[ModelRequest], Reply]
Usage = dict[str, int] | None
USAGE: Usage = {"input": 11, "output": 7}


# Answers


def says(*pieces: Piece, usage: Usage = USAGE) -> ScriptedAnswer:
    if len(pieces) == 1 and isinstance(pieces[0], str):
        pieces = words(pieces[0])
    return ScriptedAnswer(pieces, usage=usage)


def thinks(text: str, field: Any = "reasoning_content") -> Thought:
    return Thought(text, field)


def calls(
    *wanted: tuple[str, dict[str, Any] | str],
    text: str = "",
    ids: Sequence[str] | None = (),
    whole: bool = False,
    woven: bool = False,
    usage: Usage = USAGE,
) -> ScriptedAnswer:
    named = [None] * len(wanted) if ids is None else [*ids, *(f"call_{n + 1}" for n in range(len(ids), len(wanted)))]
    made = tuple(Call(tool, _cut(args), name) for (tool, args), name in zip(wanted, named, strict=True))
    return ScriptedAnswer((*words(text), Calls(made, whole, woven)), usage=usage)


def truncates(text: str = "", **how: Any) -> ScriptedAnswer:
    return replace(says(text, **how), ending="unfinished")


def too_long(text: str = "", **how: Any) -> ScriptedAnswer:
    return replace(says(text, **how), ending="length")


def filtered(text: str = "", **how: Any) -> ScriptedAnswer:
    return replace(says(text, **how), ending="content_filter")


def cuts(text: str = "") -> ScriptedAnswer:
    return replace(says(text), ending="cut")


def silent(text: str = "") -> ScriptedAnswer:
    return replace(says(text), ending="silence")


def hangs() -> Failure:
    return Failure(None)


def garbles(text: str = "", chunk: bytes = b'{"choices": [{"del') -> ScriptedAnswer:
    return says(*words(text), chunk)


def breaks(
    text: str = "", code: str = "server_error", message: str = "It broke.", as_event: bool = False
) -> ScriptedAnswer:
    """Return an answer that breaks off with an error; `as_event` sends an `error` event, where the API has one."""
    error = {"code": code, "message": message, "type": code}
    return replace(says(text), ending="error" if as_event else "failed", error=error)


def fails(
    status: int,
    *,
    code: str | None = None,
    message: str = "It did not work.",
    retry_after_ms: int | None = None,
    headers: dict[str, str] | None = None,
) -> Failure:
    later = {} if retry_after_ms is None else {"retry-after-ms": str(retry_after_ms)}
    error = {"message": message, "type": "scripted", "param": None, "code": code}
    return Failure(status, {**later, **(headers or {})}, error)


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", text))


def _cut(args: dict[str, Any] | str) -> tuple[str, ...]:
    """Return arguments in three pieces, as models write them: cut anywhere."""
    text = args if isinstance(args, str) else json.dumps(args)
    third = max(1, len(text) // 3)
    return tuple(piece for piece in (text[:third], text[third : 2 * third], text[2 * third :]) if piece) or ("",)


# The server


class ScriptedModel:
    """The server's plan, and what it has received. `url` is the base URL for an OpenAI client."""

    def __init__(self, plans: Sequence[Plan] = ()) -> None:
        self.url = ""
        self.requests: list[ModelRequest] = []
        self.aborts = 0
        self.unplanned = 0
        self.mistakes: list[Exception] = []
        self.keeps_alive = True
        """False makes clients close their connection after each answer: for clients that nobody closes."""
        self.embed: Callable[[str], list[float]] = toy_embedding
        """The function that makes vectors. The failures in `embedding_failures` are answered first."""
        self.embedding_failures: list[Failure] = []
        self.models: list[str] | Failure = ["small"]
        self.owner = "library"
        self.otherwise: Plan | None = None
        """Answers every request after the planned ones."""
        self.is_strict = False
        """If true, a conversation with a tool call without its results, or the reverse, is a mistake."""
        self._plans = list(plans)
        self._news = asyncio.Condition()
        self._requests_awaited = 0
        self._aborts_awaited = 0
        self._clients: list[_ScriptedProtocol] = []

    @property
    def connections(self) -> int:
        return len(self._clients)

    @property
    def open_connections(self) -> int:
        return sum(not client.gone for client in self._clients)

    @property
    def unused(self) -> int:
        return len(self._plans)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def plan(self, *plans: Plan) -> "ScriptedModel":
        """Add answers after those that are planned already."""
        self._plans.extend(plans)
        return self

    async def request(self) -> ModelRequest:
        """Return the next request, when it has come; each request once."""
        self._requests_awaited += 1
        wanted = self._requests_awaited
        await self._until(lambda: len(self.requests) >= wanted)
        return self.requests[wanted - 1]

    async def aborted(self) -> None:
        """Wait for the next client that leaves before its answer is over."""
        self._aborts_awaited += 1
        wanted = self._aborts_awaited
        await self._until(lambda: self.aborts >= wanted)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS), self._news:
            await self._news.wait_for(holds)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    # Used by connections

    def connected(self, connection: "_ScriptedProtocol") -> None:
        self._clients.append(connection)

    async def answer(self, request: ModelRequest, connection: "_ScriptedProtocol") -> bool:
        """Answer one request. Return False if the connection cannot be used again."""
        self.requests.append(request)
        await self._notify()
        if request.path == "/v1/embeddings":
            return await self._answer_embeddings(request, connection)
        if request.path == "/v1/models":
            return await self._answer_models(connection)
        api = next((api for pattern, api in _APIS.items() if re.fullmatch(pattern, request.path)), None)
        if api is None:
            return await connection.send_failure(fails(404, message=f"There is no {request.path}."))
        reply = self._next_reply(request)
        if isinstance(reply, Failure):
            body = api.error_body(reply.status or 0, reply.error)
            return await self._watched(connection.send_failure(reply, body), connection)
        if not request.body.get("stream") and "streamGenerateContent" not in request.path:
            await connection.send_json(200, {}, api.whole_answer(reply, request.body))
            return True
        return await self._watched(connection.send_answer(reply, api.events, request.body), connection)

    def _next_reply(self, request: ModelRequest) -> Reply:
        if self.is_strict and (problem := unpaired_calls(request.body)):
            self.mistakes.append(AssertionError(f"{problem}: {request.body}"))
            return fails(400, message=problem)
        if not self._plans and self.otherwise is None:
            self.unplanned += 1
            return fails(400, message="Nothing more was planned.")
        plan = self._plans.pop(0) if self._plans else self.otherwise
        assert plan is not None
        return plan if isinstance(plan, ScriptedAnswer | Failure) else plan(request)

    async def _watched(self, sending: Any, connection: "_ScriptedProtocol") -> bool:
        sent = asyncio.ensure_future(sending)
        left = asyncio.ensure_future(connection.left.wait())
        try:
            await asyncio.wait({sent, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sent, left):
                task.cancel()
            await asyncio.wait({sent, left})
        if sent.cancelled():
            self.aborts += 1
            await self._notify()
            return False
        return sent.result()

    async def _answer_models(self, connection: "_ScriptedProtocol") -> bool:
        if isinstance(self.models, Failure):
            return await connection.send_failure(self.models)
        rows = [{"id": name, "object": "model", "owned_by": self.owner} for name in self.models]
        await connection.send_json(200, {}, {"object": "list", "data": rows})
        return True

    async def _answer_embeddings(self, request: ModelRequest, connection: "_ScriptedProtocol") -> bool:
        if self.embedding_failures:
            return await connection.send_failure(self.embedding_failures.pop(0))
        texts = request.body["input"]
        texts = [texts] if isinstance(texts, str) else texts
        packed = request.body.get("encoding_format") == "base64"
        vectors = [_packed(self.embed(text)) if packed else self.embed(text) for text in texts]
        rows = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        await connection.send_json(
            200, {}, {"object": "list", "data": rows, "model": request.body["model"], "usage": usage}
        )
        return True

    def reset(self) -> None:
        """Forget the plan and all requests."""
        self.requests, self.mistakes, self._plans = [], [], []
        self.aborts = self.unplanned = self._requests_awaited = self._aborts_awaited = 0

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.check_plan()

    def check_plan(self) -> None:
        """Raise AssertionError if there were more requests than planned, and what went wrong in a planned function."""
        if self.mistakes:
            raise self.mistakes[0]
        assert not self.unplanned, f"requested {self.unplanned} times more than planned: {self.requests[-1]}"


def unpaired_calls(body: dict[str, Any]) -> str | None:
    """Return what is wrong with the tool calls of a conversation, as the strictest providers see it, or None.

    The results of all calls of a reply follow it at once, and no result comes without its call. The conversation ends
    with a message of the user or with results.
    """
    open_ids: list[str] = []
    kind: str = ""
    items: list[dict[str, Any]] = body.get("messages") or body.get("input") or []
    for item in items:
        kind = item.get("role") or item["type"]
        if kind in ("tool", "function_call_output"):
            call_id: str = item.get("tool_call_id") or item["call_id"]
            if call_id not in open_ids:
                return f"the result of {call_id} has no call"
            open_ids.remove(call_id)
        elif kind == "function_call":
            open_ids.append(item["call_id"])
        elif open_ids:
            return f"the calls {open_ids} have no results"
        else:
            calls: list[dict[str, Any]] = item.get("tool_calls") or []
            open_ids += [call["id"] for call in calls]
    if open_ids:
        return f"the calls {open_ids} have no results"
    return None if kind in ("user", "tool", "function_call_output") else f"the conversation ends with {kind}"


def toy_embedding(text: str) -> list[float]:
    """Return eight numbers that depend on the letters, so that texts with the same letters are alike."""
    counts = [0.0] * 8
    for letter in text.casefold():
        counts[ord(letter) % 8] += 1.0
    length = sum(count * count for count in counts) ** 0.5 or 1.0
    return [count / length for count in counts]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


class _ScriptedProtocol(asyncio.Protocol):
    """The connection of one client: reads HTTP/1.1 requests, and notices at once when the client leaves."""

    def __init__(self, server: ScriptedModel) -> None:
        self.left = asyncio.Event()
        self.gone = False
        self._server = server
        self._received = b""
        self._requests: asyncio.Queue[ModelRequest | None] = asyncio.Queue()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it.
        self._server.connected(self)
        self._task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        if len(rest) >= size:
            self._received = rest[size:]
            self._requests.put_nowait(ModelRequest(first.split()[1], headers, json.loads(rest[:size] or b"{}")))

    def eof_received(self) -> None:
        self.left.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()
        self.gone = True
        self._requests.put_nowait(None)

    async def _serve(self) -> None:
        try:
            while (request := await self._requests.get()) and await self._server.answer(request, self):
                pass
        except Exception as error:
            self._server.mistakes.append(error)
        finally:
            # Not `abort`: what was written must still arrive.
            self._transport.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_PATIENCE_SECONDS)

    # Sending

    async def send_failure(self, failure: Failure, body: dict[str, Any] | None = None) -> bool:
        if failure.status is None:
            await asyncio.Event().wait()
        else:
            await self.send_json(failure.status, failure.headers, body or {"error": failure.error})
        return True

    async def send_json(self, status: int, headers: dict[str, str], body: Any) -> None:
        content = json.dumps(body).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(content)), **headers})
        self._transport.write(content)

    async def send_answer(self, answer: ScriptedAnswer, wire: Wire, request: dict[str, Any]) -> bool:
        self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for step in wire(answer, request):
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                self._transport.write(b"%x\r\n%b\r\n" % (len(step), step))
                # One event is one read of the client's, as far as it can be.
                await asyncio.sleep(0)
        if answer.ending == "silence":
            await asyncio.Event().wait()
        if answer.ending == "cut":
            return False  # The connection ends where a chunk should come.
        self._transport.write(b"0\r\n\r\n")
        return True

    def _head(self, status: int, headers: dict[str, str]) -> None:
        headers = headers if self._server.keeps_alive else {**headers, "connection": "close"}
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


@asynccontextmanager
async def scripted_model(*plans: Plan) -> AsyncGenerator[ScriptedModel]:
    """Serve on a free port until the block ends."""
    server = ScriptedModel(plans)
    listening = await asyncio.get_running_loop().create_server(lambda: _ScriptedProtocol(server), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        await server.close()
