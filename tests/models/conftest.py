"""Fixtures: a scripted server and a model of it."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from tests.scripted_model import ScriptedModel, model_server
from turnwire.models.openai_client import OpenAIModel

__all__ = ["model_server"]

MakeModel = Callable[..., OpenAIModel]


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> Literal["chat", "responses"]:
    return request.param


@pytest.fixture
async def make_model(model_server: ScriptedModel, api: Literal["chat", "responses"]) -> AsyncIterator[MakeModel]:
    """Yield a factory of models of the scripted server, and close them."""
    made: list[OpenAIModel] = []

    def make(**options: Any) -> OpenAIModel:
        made.append(OpenAIModel("small", **{"base_url": model_server.url, "api": api, "retries": 0, **options}))
        return made[-1]

    yield make
    for model in made:
        await model.close()


@pytest.fixture
def model(make_model: MakeModel) -> OpenAIModel:
    return make_model()
