"""The real client of OpenAI's, pointed at a server of ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.serving import Client


@asynccontextmanager
async def openai_of(server: Client, key: str = "none", **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, **{"max_retries": 0, **options}) as client:
        yield client


def openai_error(response: Any, status: int) -> dict[str, Any]:
    """Return the error of a response, and check that it has OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]
    return error
