"""What the load client is asked to do."""

from dataclasses import dataclass
from uuid import uuid4

UNIQUE = "@unique@"
"""In a body: a name that no other request has."""


@dataclass(frozen=True)
class Job:
    port: int
    path: str
    marker: str
    """The text that stands in every token's frame, once."""
    streams: int
    """How many are open at a time."""
    tokens: int
    """How many each must deliver."""
    body: str | None = None
    """Posted when there is one; otherwise the path is read with GET."""
    seconds: float = 0
    """A stream that ends is followed by another until this time has passed; 0 opens each once."""
    stamped: bool = False
    """The tokens are stamps: report their age."""
    hold: bool = False
    """Wait for a line when all streams are open."""
    go: str | None = None
    """A path to POST after that wait."""
    leave: bool = False
    """Go away after that wait, without reading on."""
    core: int | None = None
    paths: tuple[str, ...] = ()
    """One for each stream, instead of `path`."""

    def request(self) -> bytes:
        method = "GET" if self.body is None else "POST"
        # A loopback name: a server may refuse a Host it was not told of.
        start = f"{method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        if self.body is None:
            return f"{start}\r\n".encode()
        body = self.body.replace(UNIQUE, uuid4().hex).encode()
        return f"{start}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
