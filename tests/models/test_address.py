"""The address of a model: well-known servers by prefix, and checks of a server's list of models."""

import asyncio

import pytest

from tests.scripted_model import ScriptedModel, fails
from turnwire.core.errors import ModelUnusableError
from turnwire.models import address
from turnwire.models.address import SERVERS, KnownServer, ModelAddress, check_model, local_models, locate_model
from turnwire.models.openai_client import OpenAIModel

KEY = "sk-very-secret-0123456789"
CLOSED = "http://127.0.0.1:9/v1"
# A server that answers slowly on a busy machine is not one that is down.
SECONDS = 20.0


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model", "url", "name"),
    [
        ("ollama/qwen3:8b", "http://127.0.0.1:11434/v1", "qwen3:8b"),
        ("llamacpp/any", "http://127.0.0.1:8080/v1", "any"),
        ("vllm/Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B"),
        ("openai/gpt-5-mini", "https://api.openai.com/v1", "gpt-5-mini"),
        ("anthropic/claude-haiku-4-5", "https://api.anthropic.com/v1", "claude-haiku-4-5"),
        ("gpt-5-mini", "https://api.openai.com/v1", "gpt-5-mini"),
    ],
)
def test_prefix_chooses_the_server(model: str, url: str, name: str) -> None:
    located = locate_model(model, key=KEY)
    assert (located.url, located.name, located.key) == (url, name, KEY)


def test_name_is_used_as_it_is_with_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate_model("openai/gpt-oss-20b", "http://gpu:8000/v1").name == "openai/gpt-oss-20b"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gpu:8000/v1")
    assert locate_model("openai/gpt-oss-20b").url == "http://gpu:8000/v1"


def test_key_comes_from_the_variable_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-anthropic")
    assert locate_model("anthropic/claude-haiku-4-5").key == "sk-of-anthropic"
    # A server on this machine is not given the key of a provider.
    assert locate_model("ollama/qwen3").key is None


@pytest.mark.parametrize(
    ("model", "message"),
    [("openai/gpt-5-mini", "OPENAI_API_KEY"), ("anthropic/x", "ANTHROPIC_API_KEY"), ("ollama/", "ollama/NAME")],
)
def test_address_that_cannot_work_says_what_to_do(model: str, message: str) -> None:
    with pytest.raises(ModelUnusableError, match=message):
        locate_model(model)


async def test_model_has_the_name_that_its_server_knows() -> None:
    model = OpenAIModel("ollama/qwen3")
    assert model.name == "qwen3"
    await model.close()


# Checks


async def checked(located: ModelAddress) -> str | None:
    return await asyncio.to_thread(check_model, located, SECONDS)


@pytest.mark.parametrize("listed", ["qwen3", "qwen3:latest", "Qwen/qwen3"])
async def test_model_in_the_list_is_usable(model_server: ScriptedModel, listed: str) -> None:
    model_server.models = ["other", listed]
    assert await checked(ModelAddress("qwen3", model_server.url, KEY)) is None
    assert model_server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_model_that_is_not_in_the_list_is_named_with_those_that_are(model_server: ScriptedModel) -> None:
    model_server.models = ["small", "large"]
    problem = await checked(ModelAddress("qwen3", model_server.url, None))
    assert problem
    assert "no model 'qwen3'" in problem
    assert "it has small, large" in problem


async def test_missing_model_of_ollama_can_be_fetched(model_server: ScriptedModel) -> None:
    model_server.models = []
    problem = await checked(ModelAddress("qwen3", model_server.url, None, SERVERS["ollama"]))
    assert problem
    assert "`ollama pull qwen3`" in problem


async def test_llama_cpp_takes_any_name(model_server: ScriptedModel) -> None:
    model_server.models = ["/models/qwen3-8b-q4_k_m.gguf"]
    assert await checked(ModelAddress("qwen3", model_server.url, None, SERVERS["llamacpp"])) is None


async def test_refused_key_is_reported_and_not_quoted(model_server: ScriptedModel) -> None:
    model_server.models = fails(401)
    problem = await checked(ModelAddress("qwen3", model_server.url, KEY))
    assert problem
    assert "refused the API key" in problem
    assert KEY not in problem


async def test_server_without_a_list_is_not_judged(model_server: ScriptedModel) -> None:
    model_server.models = fails(404)
    assert await checked(ModelAddress("qwen3", model_server.url, None)) is None


async def test_url_without_its_version_is_reported_with_the_right_one(model_server: ScriptedModel) -> None:
    problem = await checked(ModelAddress("small", model_server.url.removesuffix("/v1"), None))
    assert problem
    assert problem.endswith(f"use {model_server.url}")


@pytest.mark.parametrize(("server", "remedy"), [(None, "check the URL"), (SERVERS["ollama"], "`ollama serve`")])
async def test_unreachable_server_is_reported(server: KnownServer | None, remedy: str) -> None:
    problem = await checked(ModelAddress("qwen3", CLOSED, None, server))
    assert problem
    assert "cannot be reached at 127.0.0.1:9" in problem
    assert remedy in problem


# Servers on this machine


async def offered(monkeypatch: pytest.MonkeyPatch, **urls: str) -> list[str]:
    monkeypatch.setattr(address, "_LOCAL_SECONDS", SECONDS)
    for prefix in ("ollama", "llamacpp"):
        monkeypatch.setitem(SERVERS, prefix, KnownServer(urls.get(prefix, CLOSED), prefix))
    return await asyncio.to_thread(local_models)


async def test_models_of_a_running_ollama_are_offered(
    model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_server.models = ["qwen3:latest", "llama3:8b"]
    assert await offered(monkeypatch, ollama=model_server.url) == ["ollama/qwen3", "ollama/llama3:8b"]


@pytest.mark.parametrize(("owner", "names"), [("llamacpp", ["llamacpp/tiny.gguf"]), ("somebody", [])])
async def test_only_llama_cpp_is_offered_at_its_port(
    model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch, owner: str, names: list[str]
) -> None:
    model_server.models, model_server.owner = ["tiny.gguf"], owner
    assert await offered(monkeypatch, llamacpp=model_server.url) == names


async def test_nothing_is_offered_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await offered(monkeypatch) == []
