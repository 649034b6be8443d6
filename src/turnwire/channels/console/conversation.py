"""Shows one turn to its end, and lets who sits there stop it, allow a tool, or type ahead."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from turnwire.channels.console.hosts import Found, Heard, Host, HostError, Lost, Noted
from turnwire.channels.console.keyboard import Keyboard
from turnwire.channels.console.telling import TurnTeller
from turnwire.channels.console.view import View
from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent

_PAINT_SECONDS = 0.08
_TWICE_SECONDS = 2.0
SETTLE_SECONDS = 0.5
"""Keys that come this soon after a question were meant for something else."""


class Left(Exception):
    """Whoever sits there wants out: Ctrl-C twice."""


class Conversation:
    """One turn in a terminal. `keyboard` is None where nobody sits; then a tool that needs consent is refused it."""

    def __init__(
        self, host: Host, view: View, keyboard: Keyboard | None, *, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self.teller = TurnTeller(view)
        self._host = host
        self._view = view
        self._keyboard = keyboard
        self._settle_seconds = settle_seconds
        self._asked_at = 0.0
        self._calls: list[ApprovalRequestEvent] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping_since: float | None = None
        self._wants_out: asyncio.Future[None] | None = None

    async def show(self, turn: AsyncGenerator[Heard | Lost | Found | Noted]) -> None:
        """Raises HostError, and Left if it is not to be waited for."""
        loop = asyncio.get_running_loop()
        self._wants_out = loop.create_future()
        reading = asyncio.create_task(self._read(turn))
        painting = asyncio.create_task(self._paint())
        try:
            with _interrupts(self.interrupt):
                await asyncio.wait([reading, self._wants_out], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Left
            reading.result()
        finally:
            for task in (reading, painting, *self._errands):
                task.cancel()
            await asyncio.gather(reading, painting, *self._errands, return_exceptions=True)
            self._view.ask(None)
            self._view.close()

    def interrupt(self) -> None:
        """Ctrl-C: stops the turn; a second time within two seconds it leaves."""
        now = time.monotonic()
        if self._stopping_since is not None and now - self._stopping_since < _TWICE_SECONDS:
            self._leave()
            return
        self._stopping_since = now
        self._view.notice("stopping; Ctrl-C again to leave")
        self.stop()

    def stop(self) -> None:
        if self.teller.turn_id is None:
            self._leave()  # There is no turn yet, as far as anybody knows.
        else:
            self._run(self._cancel(self.teller.turn_id))

    def _leave(self) -> None:
        if self._wants_out is not None and not self._wants_out.done():
            self._wants_out.set_result(None)

    async def _read(self, turn: AsyncGenerator[Heard | Lost | Found | Noted]) -> None:
        async with aclosing(turn):
            async for heard in turn:
                match heard:
                    case Heard(event=event, body=body):
                        self._view.hear(body)
                        self.teller.tell(event)
                        if isinstance(event, ApprovalRequestEvent):
                            self._ask(event)
                        elif isinstance(event, ApprovalResponseEvent):
                            self._answered(event.call_id)
                    case Lost(why=why):
                        self._view.notice(f"connection lost ({why}); trying again")
                    case Found():
                        self._view.notice(None)
                        self._view.line("connected again, nothing was missed", "good")
                    case Noted(text=text):
                        self._view.line(text, "warning")

    async def _paint(self) -> None:
        while True:
            self._view.paint()
            await asyncio.sleep(_PAINT_SECONDS)

    async def _cancel(self, turn_id: str) -> None:
        try:
            await self._host.cancel(turn_id)
        except HostError as error:
            self._view.line(f"it could not be stopped: {error}", "bad")

    def _ask(self, call: ApprovalRequestEvent) -> None:
        if self._keyboard is None:
            self._view.line("refused: there is no terminal to ask at", "warning")
            self._run(self._decide(call, approved=False, reason="there was no terminal to ask at"))
            return
        self._calls.append(call)
        self._put_question()

    def _put_question(self) -> None:
        call = self._calls[0] if self._calls else None
        self._view.ask(None if call is None else f"Allow {call.tool}? [y/N] ")
        assert self._keyboard is not None
        self._asked_at = time.monotonic()
        self._keyboard.on_key = None if call is None else self._on_key

    def _on_key(self, key: str) -> None:
        # Whoever was typing when the question came has not answered it.
        is_meant = time.monotonic() - self._asked_at >= self._settle_seconds
        if is_meant and key in "yYnN\r\n" and self._calls:
            call = self._calls.pop(0)
            self._run(self._decide(call, approved=key in "yY"))
            self._put_question()

    def _answered(self, call_id: str) -> None:
        """Also when somebody else did, on another screen."""
        if any(call.call_id == call_id for call in self._calls):
            self._calls = [call for call in self._calls if call.call_id != call_id]
            self._put_question()

    async def _decide(self, call: ApprovalRequestEvent, *, approved: bool, reason: str | None = None) -> None:
        try:
            await self._host.decide(self.teller.turn_id or "", call.call_id, approved=approved, reason=reason)
        except HostError as error:
            self._view.line(f"the decision was not taken: {error}", "bad")

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


@contextmanager
def _interrupts(interrupted: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    # Where the loop cannot take signals, and in a thread, they are for whoever owns the process.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
