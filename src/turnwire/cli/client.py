"""Discovery of the server that uses a data folder, and requests to it from commands that are not async.

The HTTP client is loaded when a command calls it, so that `--help` is quick.
"""

import asyncio
import json
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwire.cli.options import fail

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnwire.client import AsyncClient, ServerAddress

_ANNOUNCEMENT = "server.json"


def announce(data: Path, url: str, control_token: str, *, has_database: bool = False) -> None:
    """Write the server's address into the data folder; the token lets its readers manage keys.

    A server on a database does not replace the address of a running server that has its logs in this folder.
    """
    from turnwire.stores.sqlite.disk import is_locked

    # With the logs in a database, this may be the first file in the folder.
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data / _ANNOUNCEMENT
    if has_database and path.exists() and is_locked(data):
        return
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "pid": os.getpid(), "control_token": control_token}, file)


def withdraw(data: Path) -> None:
    """Remove the address that this process has written, and no other."""
    path = data / _ANNOUNCEMENT
    with suppress(OSError, ValueError, LookupError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


def announced_server(data: Path, key: str | None = None) -> "ServerAddress":
    """Return the address in the data folder, with `key` or the control token. Raise HostError if there is none."""
    from turnwire.cli.server_errors import HostError
    from turnwire.client import ServerAddress

    try:
        announcement = json.loads((data / _ANNOUNCEMENT).read_text())
        return ServerAddress(announcement["url"], key or announcement["control_token"], is_local=True)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HostError(
            f"a server is using {data}, but {data / _ANNOUNCEMENT} has no address; restart it, or stop it first"
        ) from error


def find_server(data: Path, url: str | None, key: str | None) -> "ServerAddress | None":
    """Return the server at `url`, or the running server that uses the data folder; None if there is neither."""
    from turnwire.cli.server_errors import HostError
    from turnwire.client import ServerAddress
    from turnwire.stores.sqlite.disk import is_locked

    if url is not None:
        return ServerAddress(url.rstrip("/"), key)
    if not data.exists() or not is_locked(data):
        return None
    try:
        return announced_server(data, key)
    except HostError:
        return None


def needed_server(data: Path, url: str | None, key: str | None) -> "ServerAddress":
    """Return the server like `find_server`. Without one, end the command and say how to start it."""
    server = find_server(data, url, key)
    if server is None:
        fail("no server uses the data folder; start one with `turnwire serve`, or give --url")
    return server


def request(server: "ServerAddress", method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one JSON request and return the response. Raise HostError."""

    async def send() -> dict[str, Any]:
        async with connected(server) as client:
            return await client.request(method, path, body)

    return asyncio.run(send())


@asynccontextmanager
async def connected(server: "ServerAddress") -> "AsyncGenerator[AsyncClient]":
    """Open a client that fails at once if no server answers, with a HostError for the person at the terminal."""
    from turnwire.cli.server_errors import host_errors
    from turnwire.client import AsyncClient, ReconnectLimits

    with host_errors():
        async with AsyncClient(server, limits=ReconnectLimits(request_seconds=0)) as client:
            yield client
