"""The leases on the extensions that this process runs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from turnwire.core.errors import StoreError
from turnwire.extensions.calls import cancel_all

if TYPE_CHECKING:
    # PostgreSQL is an extra.
    from turnwire.stores.postgres.leases import PostgresLeases

logger = logging.getLogger("turnwire.extensions")

_RENEWALS = 4
"""Of a lease, in the time that it lasts."""
_SAFE_SHARE = 0.8
"""Of a lease: a process that cannot renew it in this time gives up what it runs, before another starts it."""


class ExtensionLeases:
    """Claims and renews the leases that `wanted` names. `changed` is set when `held` changes."""

    def __init__(self, leases: "PostgresLeases", wanted: Callable[[], Sequence[str]]) -> None:
        self.held: frozenset[str] = frozenset()
        self.changed = asyncio.Event()
        self._leases = leases
        self._wanted = wanted
        self._renewed_at = monotonic()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Claim the leases that are free, and keep trying for the others."""
        await self._renew()
        self._task = asyncio.create_task(self._keep_renewing(), name="extension leases")

    async def close(self) -> None:
        await cancel_all([self._task], self._leases.seconds)
        with suppress(StoreError):  # They lapse by themselves.
            await self._leases.release(sorted(self.held))
        self.held = frozenset()

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._leases.seconds / _RENEWALS)
            try:
                await self._renew()
            except Exception:
                logger.exception("the leases on extensions could not be renewed; it is tried again")

    async def _renew(self) -> None:
        began = monotonic()
        wanted = self._wanted()
        seconds = self._leases.seconds
        # What was renewed before must be let go in time, also if the database does not answer.
        patience = max(seconds / _RENEWALS, self._renewed_at + seconds * _SAFE_SHARE - began)
        try:
            async with asyncio.timeout(patience):
                held = frozenset(await self._leases.claim(wanted)) if wanted else frozenset[str]()
                # Those that could not be started here are left to others.
                if unwanted := self.held - set(wanted):
                    await self._leases.release(sorted(unwanted))
        except (StoreError, TimeoutError) as error:
            if monotonic() - self._renewed_at < seconds * _SAFE_SHARE:
                return
            logger.warning("the leases on extensions cannot be renewed, so these stop here: %s", error)
            held = frozenset[str]()
        else:
            self._renewed_at = began
        if held != self.held:
            self.held = held
            self.changed.set()
