"""Turnwire without an agent: answers from its own documentation, written by the model at `TURNWIRE_MODEL_URL`."""

import os
from pathlib import Path

from pydantic import SecretStr
from starlette.types import ASGIApp

from bench.servers.ours_documents import Settled
from turnwire import Settings


def app(data: Path | None) -> ASGIApp:
    url = os.environ.get("TURNWIRE_MODEL_URL")
    if data is None or url is None:
        raise ValueError("the written variant needs a folder and a model; pass --data DIR, set TURNWIRE_MODEL_URL")
    settings = Settings(documents={"embeddings": "off"}, model="bench", model_url=url, model_key=SecretStr("none"))
    return Settled(store="sqlite", data=data, settings=settings).asgi()
