"""Asking a server for JSON, the one that was named or the one that uses a data folder."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import typer

from turnwire.cli import running
from turnwire.cli.options import fail

_PATIENCE_SECONDS = 30.0


class Asked(NamedTuple):
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
            fail(running.told(error))
        except (OSError, ValueError) as error:
            fail(f"the server at {self.url} does not answer: {error}")


def asked_server(url: str | None, key: str | None, data: Path) -> Asked | None:
    """The server of this address, or the one that uses the folder; None if none does."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter("not an address that begins with http:// or https://", param_hint="--url")
        return Asked(url, key)
    from turnwire.stores.sqlite.disk import is_locked

    if not data.exists() or not is_locked(data) or (told := running.find(data)) is None:
        return None
    return Asked(told["url"], key or told["control_token"], is_local=True)
