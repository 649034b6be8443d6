"""One connection to an MCP server, held open by a task of its own.

The SDK must enter and leave a connection in the same task, and the turn that connects ends long before the connection
does. So a task holds it open, and turns call through it. An ended connection is never reopened.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from pydantic import ValidationError

from turnwire.core.errors import AgentError, QuestionDeclinedError, ToolError
from turnwire.core.journal.waits import ask
from turnwire.tools.mcp.server import MAX_TOOLS
from turnwire.tools.mcp.transports import Transport, watch

logger = logging.getLogger("turnwire.tools.mcp")

_MAX_PAGES = 100
_REFRESH_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
_MAX_ERROR_TEXT = 2_000
_MAX_QUESTION_TEXT = 4_000


class McpConnection:
    """A connection that begins to connect at once. `timeout` bounds connecting and listing the tools."""

    def __init__(self, server: str, transport: Transport, timeout: float) -> None:
        self.tools: list[types.Tool] = []
        self._server = server
        self._timeout = timeout
        self._client: Client | None = None
        self._failure = "it was closed"
        self._tried = asyncio.Event()
        self._ended = asyncio.Event()
        self._listed_at = 0.0
        self._questions = _QuestionOrder()
        # In an empty context, because the connection belongs to no turn.
        self.task = asyncio.create_task(self._hold(transport), name=f"mcp-{server}", context=Context())
        # A callback, because a task that is cancelled before it begins never runs.
        self.task.add_done_callback(self._note_end)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    async def ready(self) -> None:
        """Wait until the connection can be used. Raise AgentError, which says why it cannot."""
        await self._tried.wait()
        if self._client is None:
            raise AgentError(
                f"The MCP server {self._server!r} is not available: {self._failure}.",
                code="mcp_unavailable",
                retryable=True,
            )
        if asyncio.get_running_loop().time() > self._listed_at + _REFRESH_SECONDS:
            await self._refresh_tools(self._client)

    async def call(self, tool: str, arguments: dict[str, Any], progress: ProgressFnT) -> Any:
        """Call a tool and return its value; cancelling stops the server too. Raise ToolError for every failure."""
        assert self._client is not None
        try:
            async with _McpCall(self._questions):
                result = await self._client.call_tool(tool, arguments, progress_callback=progress)
        except MCPError as error:
            raise ToolError(self._explain(error)) from error
        except (RuntimeError, ValidationError) as error:
            reason = "broke off" if self.is_over else "answered with something else than it promised"
            raise ToolError(f"the MCP server {self._server!r} {reason}") from error
        return _value_of(result)

    # Elicitation: a server asks the user in the middle of a call

    async def _elicit(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """Ask the user of the turn whose call this belongs to; the turn is suspended until there is a reply."""
        if not isinstance(params, types.ElicitRequestFormParams):
            return types.ElicitResult(action="decline")
        # In the newest protocol this runs in the task of the call. In older ones a request does not name its call.
        call = _running_call.get() or self._find_call()
        if call is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="several calls run, and only one may ask")
        call.begin_question()
        try:
            result = await self._ask(params, call)
            await call.wait_for_room()
            return result
        finally:
            call.end_question()

    async def _ask(
        self, params: types.ElicitRequestFormParams, call: "_McpCall"
    ) -> types.ElicitResult | types.ErrorData:
        prompt = f"{self._server}: {params.message[:_MAX_QUESTION_TEXT]}"
        question = asyncio.create_task(ask(prompt, params.requested_schema), context=call.context)
        try:
            return types.ElicitResult(action="accept", content=await question)
        except QuestionDeclinedError:
            return types.ElicitResult(action="decline")
        except (AgentError, ValueError) as error:
            return types.ErrorData(code=types.INVALID_PARAMS, message=str(error))
        finally:
            question.cancel()

    def _find_call(self) -> "_McpCall | None":
        """Return the only call that is not waiting for an answer; None if there are several, or none."""
        # From now on calls of this server are made one at a time, so that the next question has one owner.
        self._questions.is_expected = True
        calls = [call for call in self._questions.calls if not call.is_asking]
        return calls[0] if len(calls) == 1 else None

    async def close(self) -> None:
        """Close, and wait for the program to end, but not for one that cannot be killed."""
        self._ended.set()
        if not self._tried.is_set():
            self.task.cancel()
        _, unfinished = await asyncio.wait({self.task}, timeout=_CLOSE_SECONDS)
        for task in unfinished:
            task.cancel()

    async def _hold(self, transport: Transport) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout):
                    connecting = Client(
                        watch(transport, self._ended),
                        cache=None,
                        message_handler=self._on_message,
                        elicitation_callback=self._elicit,
                    )
                    client = await stack.enter_async_context(connecting)
                    await self._list_tools(client)
                self._client = client
                self._tried.set()
                await self._ended.wait()
        except Exception as error:
            self._fail(_first(error))

    def _note_end(self, _: object) -> None:
        self._ended.set()
        self._tried.set()

    async def _list_tools(self, client: Client) -> None:
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            # One more than the limit is enough to notice that there are too many.
            if cursor is None or len(tools) > MAX_TOOLS:
                break
        self.tools = tools
        self._listed_at = asyncio.get_running_loop().time()

    async def _refresh_tools(self, client: Client) -> None:
        """List the tools again; after a failure the old list stays."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._list_tools(client)
        except (MCPError, RuntimeError, TimeoutError, ValidationError) as error:
            logger.warning("the MCP server %r did not list its tools again: %s", self._server, type(error).__name__)

    async def _on_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed_at = float("-inf")

    def _explain(self, error: MCPError) -> str:
        if self.is_over or error.code == types.CONNECTION_CLOSED:
            broke_off = "broke off; whether it has done what was asked is not known"
            return f"the connection to the MCP server {self._server!r} {broke_off}"
        if error.code == types.INVALID_REQUEST and "session" in error.message.lower():
            self._ended.set()  # The server has lost the session, so the next call must connect again.
            return f"the MCP server {self._server!r} was restarted; call again"
        return f"the MCP server {self._server!r} refused: {error.message[:_MAX_ERROR_TEXT]}"

    def _fail(self, error: Exception) -> None:
        if self._client is not None:
            logger.debug("the connection to the MCP server %r ended: %s", self._server, type(error).__name__)
            return
        detail = ""
        match error:
            case TimeoutError():
                self._failure = f"it did not answer within {self._timeout:g} seconds"
            case httpx2.HTTPError():
                self._failure = "it cannot be reached"
            case OSError():
                self._failure, detail = "it cannot be started", f" ({error})"
            case MCPError(code=types.CONNECTION_CLOSED):
                self._failure = "it ended before it had listed its tools"
            case MCPError():
                self._failure, detail = "it refused", f" ({error.message[:_MAX_ERROR_TEXT]})"
            case _:
                self._failure, detail = "it does not speak MCP as it should", f" ({type(error).__name__})"
        logger.warning("the MCP server %r is not available: %s%s", self._server, self._failure, detail)


class _QuestionOrder:
    """Lets one call at a time run on a server that asks questions; a call that waits for an answer does not count.

    `calls` are those that the server has.
    """

    def __init__(self) -> None:
        self.is_expected = False
        self.room = asyncio.Lock()
        self.calls: list[_McpCall] = []


_running_call: ContextVar["_McpCall | None"] = ContextVar("turnwire_mcp_call", default=None)


class _McpCall:
    """A call that runs, and the context of its turn."""

    def __init__(self, order: _QuestionOrder) -> None:
        self.is_asking = False
        self.context = copy_context()
        self._order = order
        self._has_room = False

    async def __aenter__(self) -> None:
        await self.wait_for_room()
        self._order.calls.append(self)
        self._token = _running_call.set(self)

    async def __aexit__(self, *_: object) -> None:
        _running_call.reset(self._token)
        self._order.calls.remove(self)
        self._leave()

    async def wait_for_room(self) -> None:
        """Wait until no other call runs, if the server asks questions."""
        if self._order.is_expected:
            await self._order.room.acquire()
            self._has_room = True

    def begin_question(self) -> None:
        self.is_asking = True
        self._leave()

    def end_question(self) -> None:
        self.is_asking = False
        if self not in self._order.calls:  # It was stopped meanwhile.
            self._leave()

    def _leave(self) -> None:
        if self._has_room:
            self._has_room = False
            self._order.room.release()


def _first(error: Exception) -> Exception:
    """Return the first error of a group."""
    return (
        _first(cast("ExceptionGroup[Exception]", error).exceptions[0]) if isinstance(error, ExceptionGroup) else error
    )


# Results: the content that a tool returned, as a value or as a `ToolError`.


def _value_of(result: types.CallToolResult) -> Any:
    """Return the value of a result. Raise ToolError if the tool failed."""
    text = "\n".join(map(_content_text, result.content))
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    structured = result.structured_content
    if structured is not None and (not result.content or _repeats(result.content, structured)):
        return structured
    return text


def _repeats(content: Sequence[types.ContentBlock], structured: Any) -> bool:
    """Return True if the text repeats the structured content, as servers do for old clients."""
    if len(content) != 1 or not isinstance(content[0], types.TextContent):
        return False
    try:
        return json.loads(content[0].text) == structured
    except (ValueError, RecursionError):
        return False


def _content_text(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return f"[{part.type}, {part.mime_type}, {_size(part.data)}, not shown]"
        case types.ResourceLink():
            return f"[resource {part.uri}{f': {part.description}' if part.description else ''}]"
        case types.EmbeddedResource():
            resource = part.resource
            if isinstance(resource, types.TextResourceContents):
                return resource.text
            return f"[resource {resource.uri}, {_size(resource.blob)}, not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"
