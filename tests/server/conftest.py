"""A server on uvloop, whose event loop must never be blocked and whose log must stay free of errors."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop
from blockbuster import blockbuster_ctx

from tests.retrieval.shelf import SHELF
from tests.serving import Puppet, Served, quick_settings, ready, serving, within
from turnwire import Turnwire

StoreKind = Literal["memory", "sqlite", "postgres"]
Serve = Callable[..., AbstractAsyncContextManager[Served]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire") as blockbuster:
        for function in blockbuster.functions.values():
            # Before the first request and after the last one there is nobody to keep waiting.
            function.can_block_in("turnwire/stores/sqlite/store.py", {"open", "close"})
            # The memory store is SQLite without a disk.
            function.can_block_in("turnwire/stores/sqlite/schema.py", {"open_memory"})
            function.can_block_in("turnwire/sqlite_threads.py", {"_call_inline"})
            # asyncpg looks for a file of passwords.
            function.can_block_in("turnwire/stores/postgres/connections.py", "connect")
            function.can_block_in("turnwire/retrieval/service.py", {"build_retrieval", "build_vault"})
            function.can_block_in("turnwire/server/pages.py", {"read_pages"})
            # Settings are read before the server starts; they look whether files exist.
            function.can_block_in("turnwire/settings.py", {"__init__"})
        yield


@pytest.fixture(autouse=True)
def errors_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Return the log messages that are expected; a test that provokes a failure adds the start of its message."""
    expected: list[str] = []
    yield expected
    unexpected = [
        record.getMessage() + (f"\n{record.exc_text or record.exc_info}" if record.exc_info else "")
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and not record.getMessage().startswith(tuple(expected))
    ]
    assert not unexpected


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """For tests that are about what a store could get wrong. `tests/server_stores.py` has the stores."""
    return request.param


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def serve(puppet: Puppet, tmp_path: Path) -> Serve:
    """Serves an agent, the puppet if none is given; further arguments are settings."""

    def start(
        agent: Any = None, store: Any = "memory", authenticate: Any = None, **settings: Any
    ) -> AbstractAsyncContextManager[Served]:
        turnwire = Turnwire(
            agent or puppet, store=store, settings=quick_settings(tmp_path, **settings), authenticate=authenticate
        )
        return serving(turnwire)

    return start


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of small documents."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name, text in SHELF.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def serve_documents(shelf: Path, tmp_path: Path) -> Serve:
    """Serves answers from documents, those on the shelf if nothing is said; further arguments are settings."""

    @asynccontextmanager
    async def start(
        docs: Sequence[Path] | None = None,
        *,
        agent: Any = None,
        store: Any = "memory",
        authenticate: Any = None,
        watch: bool = False,
        settled: bool = True,
        documents: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Served]:
        section = {"paths": [shelf] if docs is None else docs, "watch": watch, **(documents or {})}
        turnwire = Turnwire(
            agent,
            store=store,
            settings=quick_settings(tmp_path / "data", documents=section, **settings),
            authenticate=authenticate,
        )
        async with serving(turnwire) as served:
            if settled:
                await within(ready(turnwire))
            yield served

    return start


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    """A server of the puppet, over each store."""
    async with serve(store=kind) as served:
        yield served
