"""The database for code that blocks."""

from contextlib import closing

import pytest

from tests.postgres_server import shared_databases
from turnwire.stores.postgres.shared_database import SharedDatabase


@pytest.mark.postgres
def test_shared_secret_needs_the_database_and_its_password() -> None:
    databases = shared_databases()
    name = databases.take()
    # The server trusts everybody, whatever the password.
    url = databases.server.url(name)
    urls = [url, url, url.replace("postgres@", "postgres:changed@")]
    secrets: list[bytes] = []
    for url in urls:
        with closing(SharedDatabase(url)) as database:
            database.open()
            secrets.append(database.secret("login"))
            assert secrets[-1] != database.secret("other")
            (stored,) = database.transaction(
                lambda connection: connection.execute("SELECT value FROM secret WHERE name = 'login'")[0]
            )
            assert stored not in secrets
    assert secrets[0] == secrets[1] != secrets[2]
    databases.give_back(name)
