"""Reading a chat's body, also one that does not say what it is.

The SDK's workflow transport sends JSON as plain text, which any web page could send in the name of somebody who is
logged in, without asking first. So that is taken only from where a call may come: not from a browser, from a page of
this very server, or from an allowed origin.
"""

from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.routes.exchange import read_json
from turnwire.server.streams.connection import Receive

_PLAIN = b"text/plain"
_OWN_SITES = (b"", b"same-origin", b"none")


async def read_chat(receive: Receive, headers: dict[bytes, bytes], added: Headers) -> bytes:
    """Raises HttpError 400 or 415."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == _PLAIN:
        if not _may_be_plain(headers, added):
            raise HttpError(
                415,
                "unsupported_media_type",
                "send the body as `Content-Type: application/json`; plain text is taken from allowed origins alone",
            )
        headers = {**headers, b"content-type": b"application/json"}
    return await read_json(receive, headers)


def _may_be_plain(headers: dict[bytes, bytes], added: Headers) -> bool:
    origin = headers.get(b"origin", b"").lower()
    if not origin:
        return headers.get(b"sec-fetch-site", b"") in _OWN_SITES
    is_allowed = any(name == b"access-control-allow-origin" for name, _ in added)
    return is_allowed or origin.partition(b"://")[2] == headers.get(b"host", b"").lower()
