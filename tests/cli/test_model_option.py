"""`turnwire serve --model` and `turnwire doctor`: a model in one step, and a clear line if it cannot be used."""

import asyncio
from pathlib import Path

import pytest

from tests.scripted_model import ScriptedModel, model_server
from turnwire.app import Turnwire
from turnwire.cli import doctor
from turnwire.cli.serve import find_notes, welcome
from turnwire.models import address
from turnwire.settings import Settings

__all__ = ["model_server"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TURNWIRE_MODEL", "TURNWIRE_MODEL_URL", "TURNWIRE_MODEL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(address, "_LOCAL_SECONDS", 20.0)
    for prefix in ("ollama", "llamacpp"):
        monkeypatch.setitem(address.SERVERS, prefix, address.KnownServer("http://127.0.0.1:9/v1", prefix))


def documents(tmp_path: Path, **settings: object) -> Turnwire:
    return Turnwire(store="memory", settings=Settings.model_validate({"data": tmp_path, **settings}))


async def notes(turnwire: Turnwire) -> str:
    return "\n".join(await asyncio.to_thread(find_notes, turnwire))


async def test_usable_model_needs_no_note(tmp_path: Path, model_server: ScriptedModel) -> None:
    assert await notes(documents(tmp_path, model="small", model_url=model_server.url)) == ""


async def test_unknown_model_is_a_line_at_the_start(tmp_path: Path, model_server: ScriptedModel) -> None:
    turnwire = documents(tmp_path, model="qwen3", model_url=model_server.url)
    text = await notes(turnwire)
    assert "The model cannot be used:" in text
    assert "no model 'qwen3'; it has small" in text
    assert text in "\n".join(welcome(turnwire, "http://127.0.0.1:8420", text.splitlines()))


async def test_unreachable_model_is_a_line_at_the_start(tmp_path: Path) -> None:
    text = await notes(documents(tmp_path, model="ollama/qwen3"))
    assert "cannot be reached at 127.0.0.1:9" in text


async def test_running_ollama_is_offered_and_not_used(
    tmp_path: Path, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(address.SERVERS, "ollama", address.KnownServer(model_server.url, "Ollama"))
    turnwire = documents(tmp_path)
    assert "  turnwire serve --model ollama/small" in await asyncio.to_thread(find_notes, turnwire)
    assert turnwire.settings.model is None
    assert [request.path for request in model_server.requests] == ["/v1/models"]


async def test_doctor_reports_a_model_that_cannot_be_used(
    model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_MODEL", "qwen3")
    monkeypatch.setenv("TURNWIRE_MODEL_URL", model_server.url)
    verdict, text = await asyncio.to_thread(doctor._model)
    assert verdict == "bad"
    assert "no model 'qwen3'" in text
    model_server.models = ["qwen3:latest"]
    assert (await asyncio.to_thread(doctor._model))[0] == "ok"
