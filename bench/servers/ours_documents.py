"""Turnwire without an agent: answers from its own documentation, by full-text search, without a model."""

from pathlib import Path

from starlette.types import ASGIApp

from turnwire import Settings, Turnwire


class Settled(Turnwire):
    """A server that listens when its documents are indexed."""

    async def open(self) -> None:
        await super().open()
        for plugin in self.services.plugins.values():
            await plugin.ready()


def app(data: Path | None) -> ASGIApp:
    if data is None:
        raise ValueError("the documents variant needs a folder; pass --data DIR")
    return Settled(store="sqlite", data=data, settings=Settings(documents={"embeddings": "off"}, model=None)).asgi()
