"""One HTTP request over one connection, to an address that is known already.

A client library would look the host up a second time, follow redirects by itself and ask the environment for a proxy;
each of them leads past the check of the address. So this is HTTP/1.1 by hand: one GET, no encoding, no connection kept.
"""

import asyncio
import http.client
import io
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from typing import NamedTuple

from turnwire.core.errors import ToolError
from turnwire.tools.addresses import Address

CONNECT_SECONDS = 5.0
_LINE_BYTES = 64 * 1024
_INTERIM_RESPONSES = 5
_ACCEPTED = "text/html, text/plain, application/json, application/xml;q=0.9, text/*;q=0.8"


class Request(NamedTuple):
    """`host` is as a certificate names it, `authority` as a Host header does, `target` is ASCII without spaces."""

    https: bool
    host: str
    port: int
    authority: str
    target: str


class BadResponseError(Exception):
    """What came is not the HTTP that was asked for; the message follows the name of the host."""


class Response:
    def __init__(self, status: int, headers: Message, reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def body(self, limit: int) -> bytes:
        """Raises BadResponseError if there is more of it than `limit` bytes, or less than was promised."""
        if self.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise BadResponseError("sends it compressed, although it was asked not to")
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        if coding not in ("", "identity", "chunked"):
            raise BadResponseError("sends it in a way that is not understood")
        length = self.headers.get("content-length")
        if coding == "chunked":
            return await self._chunks(limit)
        if length is None:
            return await self._rest(limit)
        size = _number(length, 10)
        _check_size(size, limit)
        return await self._reader.readexactly(size)

    async def _chunks(self, limit: int) -> bytes:
        body = bytearray()
        while size := _number((await self._reader.readuntil(b"\r\n")).partition(b";")[0].decode("latin-1"), 16):
            _check_size(len(body) + size, limit)
            body += await self._reader.readexactly(size)
            if await self._reader.readexactly(2) != b"\r\n":
                raise BadResponseError("sent chunks that are broken")
        return bytes(body)

    async def _rest(self, limit: int) -> bytes:
        body = bytearray()
        while piece := await self._reader.read(_LINE_BYTES):
            body += piece
            _check_size(len(body), limit)
        return bytes(body)


@asynccontextmanager
async def get(request: Request, addresses: Sequence[Address]) -> AsyncGenerator[Response]:
    """The response to one GET. Raises ToolError, also for what goes wrong while its body is read."""
    reader, writer = await _connect(request, addresses)
    try:
        writer.write(_spell(request))
        await writer.drain()
        yield await _head(reader)
    except BadResponseError as error:
        raise ToolError(f"{request.host!r} {error}") from None
    except (asyncio.LimitOverrunError, http.client.HTTPException, ValueError):
        raise ToolError(f"{request.host!r} does not speak HTTP as it should") from None
    except (asyncio.IncompleteReadError, OSError):
        raise ToolError(f"{request.host!r} broke off before all of it had come; trying again may help") from None
    finally:
        # Not closed politely: whoever is at the other end could take as long for that as they like.
        writer.transport.abort()


async def _connect(request: Request, addresses: Sequence[Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    # Made in a thread, because the certificates that this machine trusts are read from its disk.
    context = await asyncio.to_thread(ssl.create_default_context) if request.https else None
    name = request.host if request.https else None
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(
                    str(address), request.port, ssl=context, server_hostname=name, limit=_LINE_BYTES
                )
        except ssl.SSLCertVerificationError as error:
            raise ToolError(f"the certificate of {request.host!r} is not valid: {error.verify_message}") from None
        except ssl.SSLError:
            raise ToolError(f"no secure connection to {request.host!r} could be made") from None
        except OSError:
            continue
    raise ToolError(f"{request.host!r} cannot be reached on port {request.port}; trying again later may help")


def _spell(request: Request) -> bytes:
    lines = (
        f"GET {request.target} HTTP/1.1",
        f"Host: {request.authority}",
        "User-Agent: turnwire",
        f"Accept: {_ACCEPTED}",
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


async def _head(reader: asyncio.StreamReader) -> Response:
    for _ in range(_INTERIM_RESPONSES):
        first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        version, status, *_ = [*first.decode("latin-1").split(" ", 2), ""]
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadResponseError("does not speak HTTP")
        code = _number(status, 10)
        if code >= 200:
            return Response(code, http.client.parse_headers(io.BytesIO(rest)), reader)
    raise BadResponseError("never comes to its answer")


def _number(text: str, base: int) -> int:
    text = text.strip()
    # Stricter than int(), which takes signs and underscores.
    if not text.isascii() or not text.isalnum() or len(text) > 16:
        raise BadResponseError("does not speak HTTP as it should")
    return int(text, base)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise BadResponseError(f"sends more than the {limit:,} bytes that may be fetched")
