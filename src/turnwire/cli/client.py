"""How commands find the server that is using a data folder, and speak to it."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import typer

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


# Asking a server for JSON, the one that was named or the one that uses a data folder.


_PATIENCE_SECONDS = 30.0


class JsonServer(NamedTuple):
    """A server, and the key that it is asked with."""

    url: str
    key: str | None = None
    is_local: bool = False

    def get(self, path: str) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if self.is_local:
            headers["Host"] = "localhost"  # Always allowed, whatever name or address the server listens on.
        request = urllib.request.Request(self.url.rstrip("/") + path, headers=headers)
        # Never through a proxy to this machine.
        handlers = [urllib.request.ProxyHandler({})] if self.is_local else []
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_PATIENCE_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            fail(told(error))
        except (OSError, ValueError) as error:
            fail(f"the server at {self.url} does not answer: {error}")


def asked_server(url: str | None, key: str | None, data: Path) -> JsonServer | None:
    """The server of this address, or the one that uses the folder; None if none does."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter("not an address that begins with http:// or https://", param_hint="--url")
        return JsonServer(url, key)
    from turnwire.stores.sqlite.disk import is_locked

    if not data.exists() or not is_locked(data) or (told := find(data)) is None:
        return None
    return JsonServer(told["url"], key or told["control_token"], is_local=True)
