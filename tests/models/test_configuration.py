"""Building a model: required packages, addresses, keys and settings."""

import subprocess
import sys

import pytest

from tests.models.answers import read_answer, text
from tests.scripted_model import ScriptedModel, hangs, says
from tests.serving import within
from turnwire.core.errors import ModelError, ModelUnusableError
from turnwire.models.configuration import build_model
from turnwire.models.openai_client import OpenAIModel
from turnwire.settings import Settings

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_missing_openai_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelUnusableError, match=r"pip install 'turnwire\[openai\]'"):
        OpenAIModel("small", base_url="http://localhost:1/v1")


@pytest.mark.parametrize("url", ["localhost:8080/v1", "ftp://localhost", "http://", "http://[", "http://a:b/v1", "v1"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ModelUnusableError, match="http://localhost:8080/v1"):
        OpenAIModel("small", base_url=url)


@pytest.mark.parametrize("wrong", ["schlüssel", "two\nlines", "nul\0"])
def test_invalid_key_is_refused_and_not_quoted(wrong: str) -> None:
    with pytest.raises(ModelUnusableError) as caught:
        OpenAIModel("small", base_url="http://localhost:1/v1", api_key=KEY + wrong)
    assert KEY not in str(caught.value)
    assert caught.value.__context__ is None


def test_openai_service_needs_a_key() -> None:
    with pytest.raises(ModelUnusableError, match="needs an API key"):
        OpenAIModel("small")


async def test_openai_service_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = OpenAIModel("small")
    assert model.url == "https://api.openai.com/v1"
    await model.close()


# Settings


def test_settings_without_a_model_build_none() -> None:
    assert build_model(Settings()) is None
    assert build_model(Settings(model="")) is None


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_settings_give_model_address_and_key(
    model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    options = {
        "MODEL": "small",
        "MODEL_URL": model_server.url,
        "MODEL_KEY": KEY,
        "MODEL_API": api,
    }
    for name, value in options.items():
        monkeypatch.setenv(f"TURNWIRE_{name}", value)
    model = build_model(Settings())
    assert isinstance(model, OpenAIModel)
    model_server.plan(says("Yes."))
    assert text(await read_answer(model)) == "Yes."
    await model.close()
    request = model_server.requests[0]
    assert request.path == {"chat": "/v1/chat/completions", "responses": "/v1/responses"}[api]
    assert (request.body["model"], request.headers["authorization"]) == ("small", f"Bearer {KEY}")


async def test_model_that_is_silent_for_the_timeout_of_the_settings_has_failed(model_server: ScriptedModel) -> None:
    model_server.plan(hangs(), hangs(), hangs())
    model = build_model(Settings(model="small", model_url=model_server.url, model_timeout=0.2))
    assert isinstance(model, OpenAIModel)
    with pytest.raises(ModelError):
        await within(read_answer(model))
    await model.close()


def test_key_is_hidden_in_the_settings_repr() -> None:
    settings = Settings.model_validate({"model": "small", "model_key": KEY})
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert KEY not in shown


# Imports


@pytest.mark.process
def test_openai_is_not_imported_before_a_model_is_built() -> None:
    program = (
        "import sys, turnwire, turnwire.assembly, turnwire.models.openai_client; turnwire.Turnwire;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('openai', 'httpx2')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.process
def test_contract_imports_little() -> None:
    program = (
        "import sys, turnwire.models.contract;"
        "print([name for name in ('openai', 'pydantic', 'fastapi', 'sqlite3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
