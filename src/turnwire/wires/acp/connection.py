"""JSON-RPC 2.0 between an editor and its agent: one message a line, requests in both directions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import msgspec

from turnwire.core.log.codec import ascii_json
from turnwire.wires.frames import as_object

logger = logging.getLogger("turnwire.wires.acp")

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
RESOURCE_NOT_FOUND = -32002
MAX_LINE = 64 * 1024 * 1024


class RpcError(Exception):
    """An error of a request, as it is answered."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class LineWriter(Protocol):
    """Writes lines to the editor. `asyncio.StreamWriter` does."""

    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...


Handler = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Answers a request or takes a notification, by its method and parameters. Raises RpcError."""


class RpcConnection:
    """One connection. Requests of the editor are answered concurrently, in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: LineWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._sent: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    async def run(self) -> None:
        """Read messages until the editor closes its end."""
        try:
            while line := await self._reader.readline():
                if line.strip():
                    await self._take(line)
        finally:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for future in self._sent.values():
                future.cancel()

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the editor, and return its result. Raises RpcError."""
        self._number += 1
        number = self._number
        self._sent[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await self._sent[number]
        finally:
            del self._sent[number]

    async def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            await self._answer_error(None, RpcError(PARSE_ERROR, "the line is not JSON"))
            return
        if not isinstance(message, dict):
            await self._answer_error(None, RpcError(INVALID_REQUEST, "the line is not one message of JSON-RPC"))
            return
        fields = cast("dict[str, Any]", message)
        if isinstance(fields.get("method"), str):
            task = asyncio.create_task(self._handle(fields))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._settle(fields)

    def _settle(self, message: dict[str, Any]) -> None:
        """Take the answer to a request of ours."""
        number: Any = message.get("id")
        future = self._sent.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            return
        error: Any = message.get("error")
        if error is not None:
            known = as_object(error)
            code = known.get("code")
            code = code if isinstance(code, int) else INTERNAL_ERROR
            future.set_exception(RpcError(code, str(known.get("message", "failed"))))
        else:
            future.set_result(message.get("result"))

    async def _handle(self, message: dict[str, Any]) -> None:
        is_request, method = "id" in message, message["method"]
        params: Any = message.get("params") or {}
        try:
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "params: must be an object")
            result = await self._handler(method, cast("dict[str, Any]", params))
        except RpcError as error:
            if is_request:
                await self._answer_error(message["id"], error)
            return
        except Exception:
            logger.exception("%s failed", method)
            if is_request:
                await self._answer_error(message["id"], RpcError(INTERNAL_ERROR, "an unexpected error occurred"))
            return
        if is_request:
            await self._write({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _answer_error(self, request_id: Any, error: RpcError) -> None:
        body: dict[str, Any] = {"code": error.code, "message": str(error)}
        if error.data is not None:
            body["data"] = error.data
        await self._write({"jsonrpc": "2.0", "id": request_id, "error": body})

    async def _write(self, message: dict[str, Any]) -> None:
        self._writer.write(ascii_json(message) + b"\n")
        await self._writer.drain()
