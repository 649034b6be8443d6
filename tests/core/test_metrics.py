"""Metrics of the core."""

from collections.abc import AsyncIterator

import pytest

from tests.contracts.turns import claimed, seized, write
from tests.core.desk import open_desk
from turnwire import Turn
from turnwire.core import metrics
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import FencedError
from turnwire.core.log.events import TokenEvent


async def test_takeovers_and_fenced_appends_are_counted(store: Store) -> None:
    async def echo(turn: Turn) -> AsyncIterator[str]:
        yield turn.message

    takeovers, fenced = metrics.TAKEOVERS.values[""], metrics.FENCED.values[""]
    zombie = await claimed(store, "lost")
    owner = await seized(store, zombie, "one that never renews its lease")
    await store.retire(owner.worker or "")
    with pytest.raises(FencedError):
        await write(store, zombie, TokenEvent("too late"), end="completed")
    async with open_desk(store, echo):
        pass
    assert metrics.FENCED.values[""] - fenced == 1
    assert metrics.TAKEOVERS.values[""] - takeovers == 1
