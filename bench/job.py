"""The job of the load client."""

from dataclasses import dataclass
from uuid import uuid4

UNIQUE = "@unique@"
"""A placeholder in a body, replaced by a unique name in each request."""


@dataclass(frozen=True)
class Job:
    """A number of streams to open and read."""

    port: int
    path: str
    marker: str
    """The text that every token's frame has once."""
    streams: int
    """The number of streams open at a time."""
    tokens: int
    """The number of tokens that each stream must deliver."""
    body: str | None = None
    """The body of a POST request; without one, the request is a GET."""
    seconds: float = 0
    """Open a new stream after each that ends, for this long; with 0 each is opened once."""
    stamped: bool = False
    """Whether the tokens are stamps, whose age is reported."""
    hold: bool = False
    """Whether to wait for a line when all streams are open."""
    go: str | None = None
    """A path to POST after that wait."""
    leave: bool = False
    """Whether to close the streams after that wait."""
    core: int | None = None
    paths: tuple[str, ...] = ()
    """One path per stream, instead of `path`."""

    def request(self) -> bytes:
        method = "GET" if self.body is None else "POST"
        # A loopback name, because a server may refuse others.
        start = f"{method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        if self.body is None:
            return f"{start}\r\n".encode()
        body = self.body.replace(UNIQUE, uuid4().hex).encode()
        return f"{start}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
