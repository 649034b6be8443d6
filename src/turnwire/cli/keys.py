"""`turnwire keys`: manage API keys through the running server, or in the store if no server runs."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from turnwire.cli.client import announced_server, request
from turnwire.cli.options import (
    Data,
    HelpfulCommand,
    HelpfulGroup,
    complete_id,
    fail,
    load_settings,
    print_table,
    terminal_width,
)

if TYPE_CHECKING:
    from turnwire.server.auth import KeyRing

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, cls=HelpfulGroup)

_SCOPES = ("read", "write", "approve", "operate")
_DEFAULT_SCOPES = _SCOPES[:3]
_WIDE = 76
"""The columns that all facts about a key need."""


@app.command(cls=HelpfulCommand)
def create(
    principal: Annotated[str, typer.Argument(help="The owner of the key, who sees only their own sessions.")],
    data: Data,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="<scope>", help="read, write, approve or operate; by default the first three."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0, max=36_500, help="Days until it expires; by default never.")
    ] = None,
) -> None:
    """Create a key and print it once."""
    # The same check as the server's.
    if not re.fullmatch(r"[A-Za-z0-9._:@-]{1,128}", principal):
        fail("principal: use 1 to 128 letters, digits and . _ : @ -")
    scopes = scope or list(_DEFAULT_SCOPES)
    if unknown := set(scopes) - set(_SCOPES):
        fail(f"--scope: there is no {', '.join(sorted(unknown))}; choose from {', '.join(_SCOPES)}")
    expires = None if days is None else int((datetime.now(UTC) + timedelta(days=days)).timestamp() * 1000)

    async def act(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.auth import key_json

        key, text = await ring.create(principal, scopes, expires)  # pyright: ignore[reportArgumentType]
        return {**key_json(key), "key": text}

    body = {"principal": principal, "scopes": scopes, "expires_at": expires}
    created = _call_server_or_store(data, act, "POST", "/v1/keys", body)
    typer.echo(created["key"])
    typer.secho(
        f"Key {created['id']} for {principal}. It is not shown again. From now on every request needs a key.", err=True
    )


@app.command("list", cls=HelpfulCommand)
def list_keys(data: Data) -> None:
    """List the keys. Their secrets are not stored. In a pipe, fields are separated by tabs."""
    keys = _read_keys(data)
    if not keys:
        typer.echo("There are no API keys. Create one with: turnwire keys create NAME", err=True)
        return
    rows = [(key["id"], key["principal"], ",".join(key["scopes"]), key["created_at"], _state(key)) for key in keys]
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    columns = ("key", "principal", "scopes", "created", "state")
    tones = {"valid": "green", "revoked": "dim"}
    cells = [
        [key_id, principal, scopes.replace(",", " "), created[:10], (state[:18], tones.get(state, "yellow"))]
        for key_id, principal, scopes, created, state in rows
    ]
    if terminal_width() < _WIDE:
        columns, cells = ("key", "principal", "state"), [[row[0], row[1], row[4]] for row in cells]
    print_table(columns, cells, "principal")


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"]:
        return "revoked"
    return f"expires {key['expires_at']}" if key["expires_at"] else "valid"


def _read_keys(data: Path) -> list[dict[str, Any]]:
    async def act(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.auth import key_json

        return {"keys": [key_json(key) for key in ring.all()]}

    return _call_server_or_store(data, act, "GET", "/v1/keys")["keys"]


@app.command(cls=HelpfulCommand)
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning, from `turnwire keys list`.")],
    data: Data,
) -> None:
    """Revoke a key and close its open streams."""
    key_id = complete_id(key_id, [key["id"] for key in _read_keys(data)])

    async def act(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.auth import key_json

        return key_json(await ring.revoke(key_id))

    revoked = _call_server_or_store(data, act, "DELETE", f"/v1/keys/{quote(key_id, safe='')}")
    typer.echo(f"Key {revoked['id']} of {revoked['principal']} is revoked.")


def _call_server_or_store(
    data: Path,
    act: "Callable[[KeyRing], Awaitable[dict[str, Any]]]",
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    from turnwire.stores.sqlite.disk import is_locked

    if is_locked(data):
        return request(announced_server(data), method, path, body)
    return asyncio.run(_act_on_store(data, act))


async def _act_on_store(data: Path, act: "Callable[[KeyRing], Awaitable[dict[str, Any]]]") -> dict[str, Any]:
    from turnwire.assembly import build_store
    from turnwire.server.auth import KeyRing

    settings = load_settings(data=data)
    store = build_store("sqlite" if settings.database_url is None else "postgres", settings)
    await store.open()
    try:
        ring = KeyRing(store)
        await ring.open()
        return await act(ring)
    finally:
        await store.close()
