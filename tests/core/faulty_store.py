"""A store that fails on purpose, over any real one.

A fault is injected by the name of a method and lasts until `heal`:

- "fail": nothing is done, and the caller gets a StoreError;
- "hang": nothing is done and nothing is answered before `heal`;
- "lose": the store does it, and the caller gets a StoreError instead of the answer.
"""

import asyncio
from typing import Any, Literal

from tests.contracts.turns import BOUND
from turnwire.core.contracts.stores import AppendRequest, Store
from turnwire.core.errors import StoreError

Fault = Literal["fail", "hang", "lose"]


class FaultyStore:
    """Delegates everything to a store, except for the calls that have a fault."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._faults: dict[str, Fault] = {}
        self._held: list[AppendRequest] = []
        self._healed = asyncio.Event()
        self.hits: dict[str, int] = {}
        self._hit = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in self._faults or not asyncio.iscoroutinefunction(attribute):
            return attribute
        fault = self._faults[name]

        async def call(*arguments: Any, **named: Any) -> Any:
            self._note(name)
            if fault == "hang":
                await self._healed.wait()
                return await attribute(*arguments, **named)
            if fault == "lose":
                await attribute(*arguments, **named)
            raise StoreError(f"{name} was made to {fault}")

        return call

    def append(self, request: AppendRequest) -> None:
        fault = self._faults.get("append")
        if fault is None:
            self._store.append(request)
            return
        self._note("append")
        if fault == "hang":
            self._held.append(request)
        elif fault == "fail":
            asyncio.get_running_loop().call_soon(self._refuse, request)
        else:
            settle = request.settle
            request.settle = lambda count, error: settle(count, error or StoreError("the answer was lost"))
            self._store.append(request)

    def _refuse(self, request: AppendRequest) -> None:
        request.is_taken = True
        request.settle(len(request.events), StoreError("append was made to fail"))

    def _note(self, name: str) -> None:
        self.hits[name] = self.hits.get(name, 0) + 1
        self._hit.set()

    def inject(self, **faults: Fault) -> None:
        self._faults.update(faults)

    def heal(self) -> None:
        self._faults.clear()
        self._healed.set()
        self._healed = asyncio.Event()
        held, self._held = self._held, []
        for request in held:
            self._store.append(request)

    async def hit(self, name: str, times: int = 1) -> None:
        """Wait until a fault has struck so often."""
        async with asyncio.timeout(BOUND):
            while self.hits.get(name, 0) < times:
                self._hit.clear()
                await self._hit.wait()
