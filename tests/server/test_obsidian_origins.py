"""The origins of Obsidian's apps: allowed with a vault, or by the setting."""

from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, error_of, quick_settings, saying, serving
from tests.vaults import serving_vault, vault
from turnwire import Turnwire

__all__ = ["vault"]

ORIGINS = ("app://obsidian.md", "capacitor://localhost", "http://localhost")


async def preflight(server: Client, origin: str) -> Any:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,last-event-id",
        "Access-Control-Request-Private-Network": "true",
    }
    return await server.http.options("/chat/stream", headers=headers)


@pytest.mark.parametrize("origin", ORIGINS)
async def test_the_apps_of_obsidian_may_call_when_there_is_a_vault(vault: Path, origin: str) -> None:
    async with serving_vault(vault) as server:
        allowed = await preflight(server, origin)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, origin)
        assert allowed.headers["access-control-allow-private-network"] == "true"
        named = {name.strip().lower() for name in allowed.headers["access-control-allow-headers"].split(",")}
        assert named >= {"authorization", "content-type", "idempotency-key", "last-event-id"}
        answer = await server.http.post("/chat", json={"message": "When?"}, headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
        assert "x-turn-id" in answer.headers["access-control-expose-headers"].lower()
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "app://obsidian.md.evil.example",
        "app://evil.md",
        "http://localhost:8080",
        "https://localhost",
        "http://localhost.evil.example",
        "capacitor://localhost:1",
        "null",
    ],
)
async def test_other_origins_are_refused_with_a_vault(vault: Path, origin: str) -> None:
    async with serving_vault(vault) as server:
        error_of(await preflight(server, origin), 403)
        error_of(await server.http.post("/chat", json={"message": "When?"}, headers={"Origin": origin}), 403)


async def test_obsidian_is_refused_without_a_vault(tmp_path: Path) -> None:
    async with serving(Turnwire(saying("Hello."), store="memory", settings=quick_settings(tmp_path))) as server:
        assert (await preflight(server, ORIGINS[0])).status_code == 403
