"""Tests of `turnwire serve --vault`."""

from pathlib import Path

import pytest

from tests.process.server_process import run, served
from tests.vaults import vault

pytestmark = pytest.mark.process

__all__ = ["vault"]


async def test_vault_is_served_by_its_own_agent(vault: Path, tmp_path: Path) -> None:
    async with served(tmp_path / "data", "--vault", vault, agents=()) as server:
        agents = (await server.http.get("/v1/agents")).json()["agents"]
        assert [(agent["name"], agent["is_default"]) for agent in agents] == [("vault", True)]
        body = {"message": "When does the rocket launch?"}
        answer = await server.http.post("/chat", json=body, headers={"Origin": "app://obsidian.md"})
    assert "Friday at noon" in answer.json()["content"]
    assert answer.headers["access-control-allow-origin"] == "app://obsidian.md"
    assert sorted(path.name for path in vault.iterdir()) == [".obsidian", "Garden.md", "Projects"]


async def test_vault_that_is_no_folder_is_refused_with_a_reason(vault: Path, tmp_path: Path) -> None:
    done = await run("serve", "--data", tmp_path / "data", "--vault", vault / "Garden.md")
    assert done.code == 2
    assert "is a file" in done.err
    done = await run("serve", "--data", tmp_path / "data", documents_vault=str(vault / "Nowhere"))
    assert done.code == 1
    assert "vault: Path does not point to a directory" in done.err
