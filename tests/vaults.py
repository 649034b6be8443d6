"""A vault for tests, and a server of its agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, quick_settings, ready, serving, within
from turnwire import Turnwire

NOTES = {
    "Projects/Moon Rocket.md": "# Moon Rocket\n\nThe rocket launches on Friday at noon. Ada builds the engine.\n",
    "Garden.md": "# Garden\n\nTomatoes are watered every morning.\n",
    ".obsidian/workspace.md": "The rocket password is sesame.",
}


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    root = tmp_path / "My Vault"
    for name, text in NOTES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@asynccontextmanager
async def serving_vault(vault: Path, *agent: Any, store: Any = "memory", **settings: Any) -> AsyncIterator[Served]:
    documents = {"vault": vault, **settings.pop("documents", {})}
    configured = quick_settings(vault.parent / "data", documents=documents, **settings)
    turnwire = Turnwire(*agent, store=store, settings=configured)
    async with serving(turnwire) as served:
        await within(ready(turnwire))
        yield served
