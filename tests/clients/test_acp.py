"""Tests of the official ACP client for TypeScript: prompt, permission, cancel and load."""

import sys
from pathlib import Path

import pytest

from tests.clients.conftest import Run
from tests.process.server_process import AGENTS

pytestmark = pytest.mark.process


async def test_editor_prompts_decides_cancels_and_loads(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents_of_the_test.py").write_text(AGENTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TURNWIRE_DOCUMENTS_EMBEDDINGS", "off")
    agents = [part for name in ("careful", "silent") for part in ("--agent", f"{name}=agents_of_the_test:{name}")]
    command = sys.executable, "-m", "turnwire", "acp", "--data", str(tmp_path / "data"), *agents
    async with run("acp.mjs", str(tmp_path), *command) as script:
        assert await script.next() == {"protocolVersion": 1, "load": True}
        assert await script.next() == {"modes": ["careful", "silent"]}
        request = {"asked": "pay", "input": {"amount": 40}, "kinds": ["allow_once", "reject_once"]}
        assert await script.next() == request
        assert await script.next() == {"stopReason": "end_turn", "text": "May I? Yes, same process"}
        assert await script.next() == {"stopReason": "cancelled"}
        loaded = await script.next()
        assert loaded == {"text": "May I? Yes, same processWell, ", "first": "user_message_chunk"}
        await script.ended()
