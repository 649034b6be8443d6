"""Which stores the tests of servers and clients run on.

A test with the fixture `kind` runs on memory or on SQLite, and those of `REPRESENTATIVE` on PostgreSQL too. With
`scripts/test --all` every test of `FOLDERS` runs on all of them: each `Turnwire` of the test gets PostgreSQL in place
of the store that it names, as an operator would choose it by the settings. `one_store` marks those that cannot.
"""

from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.examples import runs_all
from tests.postgres_server import shared_databases
from turnwire import Settings, Turnwire

HERE = Path(__file__).parent
FOLDERS = ("server", "client", "clients")
REPRESENTATIVE = {
    *("test_approvals", "test_isolation", "test_ownership", "test_resuming", "test_sessions", "test_shares"),
    *("test_starting", "test_stopping", "test_streams", "test_text_resuming", "test_turns", "test_waits"),
}
SWITCH = "store_of_servers"
_LOCAL = [pytest.param(name, marks=pytest.mark.rotated("kind")) for name in ("memory", "sqlite")]
_POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent not in [HERE / name for name in FOLDERS]:
        return
    if "kind" in metafunc.fixturenames:
        runs_here = runs_all() or metafunc.definition.path.stem in REPRESENTATIVE
        metafunc.parametrize("kind", [*_LOCAL, *([_POSTGRES] if runs_here else [])], indirect=True)
    elif runs_all() and metafunc.definition.get_closest_marker("one_store") is None:
        metafunc.parametrize(SWITCH, ["as_written", _POSTGRES], indirect=True)


@pytest.fixture(autouse=True)
def store_of_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every `Turnwire` of the test use one PostgreSQL database, if the test runs on PostgreSQL."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "postgres" not in (parameters.get(SWITCH), parameters.get("kind")):
        yield
        return
    databases = shared_databases()
    database = databases.take()
    monkeypatch.setattr(Turnwire, "__init__", _with_postgres(Turnwire.__init__, databases.server.url(database)))
    yield
    databases.give_back(database)


def _with_postgres(initialise: Any, url: str) -> Any:
    @wraps(initialise)
    def with_postgres(turnwire: Turnwire, *arguments: Any, **options: Any) -> None:
        if isinstance(options.get("store", "sqlite"), str):
            settings: Settings = options.get("settings") or Settings()
            options["settings"] = settings.model_copy(update={"database_url": SecretStr(url)})
            options["store"] = "postgres"
        initialise(turnwire, *arguments, **options)

    return with_postgres
