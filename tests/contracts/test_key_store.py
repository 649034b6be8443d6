"""The contract of every store: API keys."""

import pytest

from tests.contracts.stores import StoreBackend
from turnwire.core.contracts.stores import ApiKey, Store
from turnwire.core.errors import KeyNotFoundError

FIRST = ApiKey(id="one", digest="d1", principal="ann", scopes=("read", "write"), created_at=1_000, expires_at=9_000)
SECOND = ApiKey(id="two", digest="d2", principal="bob", scopes=("approve",), created_at=2_000)


async def test_new_store_has_no_keys(store: Store) -> None:
    assert await store.list_keys() == []


async def test_keys_are_kept_whole_and_listed_oldest_first(store: Store) -> None:
    await store.add_key(FIRST)
    await store.add_key(SECOND)
    assert await store.list_keys() == [FIRST, SECOND]


async def test_revoked_key_is_listed_with_its_time(store: Store) -> None:
    await store.add_key(FIRST)
    await store.add_key(SECOND)
    assert (await store.revoke_key("one", 5_000)).revoked_at == 5_000
    assert [key.revoked_at for key in await store.list_keys()] == [5_000, None]


async def test_second_revocation_keeps_the_first_time(store: Store) -> None:
    await store.add_key(FIRST)
    await store.revoke_key("one", 5_000)
    assert (await store.revoke_key("one", 6_000)).revoked_at == 5_000


async def test_unknown_key_is_not_found(store: Store) -> None:
    with pytest.raises(KeyNotFoundError):
        await store.revoke_key("nothing", 5_000)


async def test_keys_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    await store.add_key(FIRST)
    await store.revoke_key("one", 5_000)
    backend.crash()
    store = await backend.open()
    (key,) = await store.list_keys()
    assert (key.digest, key.scopes, key.expires_at, key.revoked_at) == ("d1", ("read", "write"), 9_000, 5_000)
