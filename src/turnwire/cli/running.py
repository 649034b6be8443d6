"""How commands find the server that is using a data folder, and speak to it."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from turnwire.cli.options import fail

_NAME = "server.json"


def announce(data: Path, url: str, control_token: str) -> None:
    """Leaves word of this server for who may read the folder: the token lets them manage keys."""
    # With the logs in a database, this may be the first that is written here.
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data / _NAME
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "pid": os.getpid(), "control_token": control_token}, file)


def withdraw(data: Path) -> None:
    (data / _NAME).unlink(missing_ok=True)


def find(data: Path) -> dict[str, Any] | None:
    """The `url` and `control_token` of the server that said it was here; None if none did."""
    try:
        return json.loads((data / _NAME).read_text())
    except (OSError, ValueError):
        return None


def call(data: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Asks the running server, as its operator."""
    server = find(data)
    if server is None:
        fail(f"a server is using {data}, but {data / _NAME} does not say where; restart it, or stop it first")
    request = urllib.request.Request(
        server["url"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {server['control_token']}",
            "Content-Type": "application/json",
            # Always allowed, whatever name or address the server listens on.
            "Host": "localhost",
        },
    )
    # Never through a proxy: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        fail(told(error))
    except OSError as error:
        fail(f"the server at {server['url']} does not answer: {error}")


def told(error: urllib.error.HTTPError) -> str:
    try:
        return json.load(error)["error"]["message"]
    except (ValueError, KeyError):
        return f"the server answered {error.code} {error.reason}"
