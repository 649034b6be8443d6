"""`turnwire keys`: through the running server if there is one, never beside it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from turnwire.cli import client
from turnwire.cli.options import Data, fail

if TYPE_CHECKING:
    from turnwire.server.auth import KeyRing

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

_SCOPES = ("read", "write", "approve", "operate")
_DEFAULT_SCOPES = _SCOPES[:3]


@app.command()
def create(
    principal: Annotated[str, typer.Argument(help="Whose key it is; their sessions are theirs alone.")],
    data: Data,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write, approve or operate; the first three by default.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0, max=36_500, help="How long it is valid; for ever by default.")
    ] = None,
) -> None:
    """Make a key and show it, once."""
    # The same as over HTTP, where the server checks it.
    if not re.fullmatch(r"[A-Za-z0-9._:@-]{1,128}", principal):
        fail("principal: only letters, digits and . _ : @ - are allowed, and no more than 128 of them")
    scopes = scope or list(_DEFAULT_SCOPES)
    if unknown := set(scopes) - set(_SCOPES):
        fail(f"--scope: there is no {', '.join(sorted(unknown))}; there is {', '.join(_SCOPES)}")
    expires = None if days is None else int((datetime.now(UTC) + timedelta(days=days)).timestamp() * 1000)

    async def directly(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.payloads import key_json

        key, text = await ring.create(principal, scopes, expires)  # pyright: ignore[reportArgumentType]
        return {**key_json(key), "key": text}

    body = {"principal": principal, "scopes": scopes, "expires_at": expires}
    made = _through_server_or(data, directly, "POST", "/v1/keys", body)
    typer.echo(made["key"])
    typer.secho(
        f"Key {made['id']} for {principal}. It is not shown again. From now on every call needs a key.", err=True
    )


@app.command("list")
def list_keys(data: Data) -> None:
    """List the keys; their secrets are kept nowhere."""

    async def directly(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.payloads import key_json

        return {"keys": [key_json(key) for key in ring.all()]}

    for key in _through_server_or(data, directly, "GET", "/v1/keys")["keys"]:
        state = "revoked" if key["revoked_at"] else f"expires {key['expires_at']}" if key["expires_at"] else "valid"
        typer.echo(f"{key['id']}\t{key['principal']}\t{','.join(key['scopes'])}\t{key['created_at']}\t{state}")


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="The id that `keys list` shows.")], data: Data) -> None:
    """Revoke a key. Its open streams are broken off."""

    async def directly(ring: "KeyRing") -> dict[str, Any]:
        from turnwire.server.payloads import key_json

        return key_json(await ring.revoke(key_id))

    revoked = _through_server_or(data, directly, "DELETE", f"/v1/keys/{quote(key_id, safe='')}")
    typer.echo(f"Key {revoked['id']} of {revoked['principal']} is revoked.")


def _through_server_or(
    data: Path,
    directly: "Callable[[KeyRing], Awaitable[dict[str, Any]]]",
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    from turnwire.core.errors import TurnwireError
    from turnwire.stores.sqlite.disk import is_locked

    if is_locked(data):
        return client.call(data, method, path, body)
    try:
        return asyncio.run(_on_store(data, directly))
    except TurnwireError as error:
        fail(str(error))


async def _on_store(data: Path, act: "Callable[[KeyRing], Awaitable[dict[str, Any]]]") -> dict[str, Any]:
    from turnwire.assembly import build_store
    from turnwire.server.auth import KeyRing
    from turnwire.settings import read_settings

    settings = read_settings(data=data)
    store = build_store("sqlite" if settings.database_url is None else "postgres", settings)
    await store.open()
    try:
        ring = KeyRing(store)
        await ring.open()
        return await act(ring)
    finally:
        await store.close()
