"""Answers that are sent in one piece, by the endpoints that are not FastAPI's."""

from turnwire.server.guard import Headers
from turnwire.server.streams.connection import Send


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await respond(send, status, body, json_headers(body, headers))


def json_headers(body: bytes, headers: Headers) -> Headers:
    length = str(len(body)).encode()
    return [*headers, (b"content-type", b"application/json"), (b"content-length", length)]
