"""`turnwire verify`: compare the logs and journals of ended turns with their seals."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, complete_id, fail, load_settings, open_archive, without_ellipsis

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from turnwire.core.contracts.stores import Store
    from turnwire.core.log.turns import TurnRecord
    from turnwire.stores.sqlite import SqliteArchive
    from turnwire.stores.verification import Verdict

_PAGE = 200
_SEALED_WITHIN_MS = 3_600_000


def verify(
    data: Data,
    turn: Annotated[
        str | None, typer.Argument(help="The turn's id, or its beginning or end.", callback=without_ellipsis)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Verify all ended turns.")] = False,
    database_url: Annotated[
        str | None, typer.Option(envvar="TURNWIRE_DATABASE_URL", show_envvar=True, help="The database with the logs.")
    ] = None,
    seal_keys: Annotated[
        list[str] | None,
        typer.Option("--seal-key", help="An earlier key that seals may be signed with, beside the setting `seal_key`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each turn as a line of JSON.")] = False,
) -> None:
    """Compare ended turns with their seals, and name the first position that was changed, dropped or swapped.

    Exits with 1 if a turn differs from its seal, or if its seal is missing. With a key, a seal must be signed with it.
    """
    if every == (turn is not None):
        fail("name a turn, or give --all", 2)
    settings = load_settings(data=data, database_url=database_url)
    keys = [key.encode() for key in seal_keys or ()]
    if settings.seal_key is not None:
        keys.append(settings.seal_key.get_secret_value().encode())
    url = settings.database_url.get_secret_value() if settings.database_url else None
    counts = asyncio.run(_verify(data, url, turn, keys, as_json=as_json))
    if not as_json:
        shown = ", ".join(f"{count:,} {state}" for state, count in counts.items()) or "no ended turns"
        typer.secho(f"{shown}.", fg="red" if counts["broken"] else "green")
    if counts["broken"]:
        raise typer.Exit(1)


@asynccontextmanager
async def _opened(data: Path, url: str | None) -> "AsyncGenerator[SqliteArchive | Store]":
    if url is None:
        with closing(open_archive(data)) as archive:
            yield archive
        return
    from turnwire.assembly import build_store

    store = build_store("postgres", load_settings(data=data, database_url=url))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _verify(data: Path, url: str | None, turn: str | None, keys: list[bytes], *, as_json: bool) -> Counter[str]:
    from msgspec.structs import asdict, replace

    from turnwire.stores.verification import Verdict, verify_turn

    counts: Counter[str] = Counter()
    unsealed: list[tuple[Verdict, int]] = []
    sealed_at: list[int] = []

    def report(verdict: Verdict) -> None:
        counts[verdict.state] += 1
        if as_json:
            typer.echo(json.dumps(asdict(verdict)))
        elif verdict.problem is not None or turn is not None:
            _report(verdict)

    async with _opened(data, url) as source:
        async for record in _ended(source, turn):
            verdict = await verify_turn(source, record, keys)
            if verdict.state == "unsealed":
                unsealed.append((verdict, record.ended_at or 0))
                continue
            if verdict.sealed_at is not None:
                sealed_at.append(verdict.sealed_at)
            report(verdict)
    for verdict, ended_at in unsealed:
        # All ended turns are sealed at once, so one that ended between two seals had a seal too.
        if sealed_at and min(sealed_at) < ended_at < max(sealed_at) - _SEALED_WITHIN_MS:
            verdict = replace(verdict, state="broken", problem="its seal is missing")
        report(verdict)
    return counts


async def _ended(source: "SqliteArchive | Store", part: str | None) -> "AsyncIterator[TurnRecord]":
    """Yield all ended turns, or the one that `part` names."""
    found: list[TurnRecord] = []
    last = ""
    while page := await source.ended_turns(last, _PAGE):
        last = page[-1].id
        for record in page:
            if part is None:
                yield record
            elif record.id.startswith(part) or record.id.endswith(part):
                found.append(record)
    if part is not None:
        turn_id = complete_id(part, [record.id for record in found])
        record = next((record for record in found if record.id == turn_id), None)
        if record is None:
            fail(f"no ended turn is named {part!r}")
        yield record


def _report(verdict: "Verdict") -> None:
    signed = "signed" if verdict.is_signed else "not signed"
    explained = {
        "intact": f"intact, {signed}",
        "gap": f"intact, {signed}; its events are past their retention, and only the last one is there",
        "unsealed": "it has no seal: it was sealed by an older version, or will be by the next maintenance",
    }
    typer.echo(f"{verdict.turn_id}: {verdict.problem or explained[verdict.state]}")
