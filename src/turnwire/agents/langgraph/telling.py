"""From a run to its turn: in order, from any thread, and before the tool that it is about.

What a tool emits goes to the log at once. So a tool is held back until what was told before it is there too.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler

from turnwire.agents.langgraph.messages import Heard
from turnwire.core.errors import TurnEndedError

Written = asyncio.Event | threading.Event
"""Set by the reader when it comes to it."""
_PATIENCE_SECONDS = 30


class Teller:
    """Calls `put` on the event loop that it was made on, until it is closed."""

    def __init__(self, turn_id: str, put: Callable[[Heard | Written], None]) -> None:
        self._turn_id = turn_id
        self._put = put
        self._waiting: set[threading.Event] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def tell(self, heard: Heard | Written) -> None:
        if self._is_on_loop():
            self._put(heard)
        else:
            self._loop.call_soon_threadsafe(self._put, heard)

    def wait_in_thread(self) -> None:
        """Until all that was told is written. Does nothing on the event loop: there `wait` is for that.

        Raises TurnEndedError, which stops the tool: nobody can cancel a thread.
        """
        if self._is_on_loop():
            return
        written = threading.Event()
        self._waiting.add(written)
        if not self._is_closed:
            self.tell(written)
            written.wait(_PATIENCE_SECONDS)
        self._waiting.discard(written)
        if self._is_closed:
            raise TurnEndedError(self._turn_id)

    async def wait(self) -> None:
        """The same on the event loop, and only there."""
        if asyncio.get_running_loop() is self._loop:
            written = asyncio.Event()
            self.tell(written)
            await written.wait()

    def close(self) -> None:
        self._is_closed = True
        for written in tuple(self._waiting):
            written.set()

    def _is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread


class Pause(AsyncCallbackHandler):
    """Holds async tools back, as the listener does sync ones: a callback that listens to both cannot be async.

    It stands after the listener. Sync code calls it too, in a loop of its own, where it does nothing.
    """

    run_inline = True

    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    async def on_tool_start(self, serialized: dict[str, Any], input_str: str, **rest: Any) -> None:
        await self._teller.wait()
