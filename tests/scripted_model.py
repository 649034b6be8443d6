"""The scripted model of `turnwire.testing`, as our own tests use it, and a fixture of it on the test's event loop."""

from collections.abc import AsyncIterator

import pytest

from turnwire.testing.scripted_server import (
    USAGE,
    Failure,
    ModelRequest,
    Plan,
    ScriptedAnswer,
    ScriptedModel,
    breaks,
    calls,
    cuts,
    fails,
    filtered,
    garbles,
    hangs,
    says,
    scripted_model,
    silent,
    thinks,
    too_long,
    toy_embedding,
    truncates,
    words,
)

Answer = ScriptedAnswer
Request = ModelRequest

__all__ = [
    "USAGE",
    "Answer",
    "Failure",
    "Plan",
    "Request",
    "ScriptedModel",
    "breaks",
    "calls",
    "cuts",
    "fails",
    "filtered",
    "garbles",
    "hangs",
    "model_server",
    "says",
    "scripted_model",
    "silent",
    "thinks",
    "too_long",
    "toy_embedding",
    "truncates",
    "words",
]


@pytest.fixture
async def model_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedModel]:
    """A server with no answers yet, in an environment that knows of no other one."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with scripted_model() as server:
        yield server
