"""The channel `console`: other extensions speak to the terminal in which Turnwire runs.

It shows and it asks for consent; it does not read messages, because that terminal may be a server's. Ctrl-C there
stays what it was. A terminal that takes nothing (Ctrl-S) holds up this channel alone: it is written to in a thread.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.text import Text

from turnwire.channels.console.conversation import SETTLE_SECONDS
from turnwire.channels.console.keyboard import Keyboard
from turnwire.channels.console.screen import Screen, the_screen
from turnwire.channels.console.view import LiveView, PlainView, View, call_label, one_line, whole_answer
from turnwire.core.codec import clean_text
from turnwire.core.errors import TurnwireError
from turnwire.extensions.contract import ApprovalAsk, ExtensionContext, Health, StreamStep

_PAINT_SECONDS = 0.1
_STOPPED = "stopped"


class ConsoleChannel:
    def __init__(
        self,
        screen: Screen | None = None,
        keyboard: Keyboard | None = None,
        *,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._screen = screen or the_screen()
        self._keyboard = keyboard or Keyboard()
        self._settle_seconds = settle_seconds
        self._answers: dict[str, _ChannelAnswer] = {}
        self._asking = asyncio.Lock()
        self._errands: set[asyncio.Task[None]] = set()
        self.context: ExtensionContext | None = None
        # One thread: what is written by it is written in order.
        self._writer = ThreadPoolExecutor(1, "console")

    async def initialize(self, context: ExtensionContext) -> None:
        self.context = context

    async def start(self) -> None: ...

    async def stop(self) -> None:
        for answer in list(self._answers.values()):
            await answer.close()
        self._answers.clear()
        for errand in list(self._errands):
            errand.cancel()

    async def destroy(self) -> None:
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def health_check(self) -> Health:
        if self._screen.console.is_terminal:
            return Health("running")
        return Health("running", "the output is not a terminal: answers are plain text")

    async def send_to_user(self, user_id: str, message: str) -> None:
        await self._say(message)

    async def send_message(self, message: str) -> None:
        await self._say(message)

    async def on_stream_start(self, user_id: str) -> None:
        answer = self._answers[user_id] = _ChannelAnswer(self._screen, self._write, self._show)
        answer.open()

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        if answer := self._answers.get(user_id):
            await answer.add(clean_text(chunk))

    async def on_stream_status(self, user_id: str, status: str) -> None:
        if answer := self._answers.get(user_id):
            await answer.tell(lambda view: view.line(_tidy(status)))

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        if answer := self._answers.get(user_id):
            await answer.tell(lambda view: _tell_step(view, step))

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        answer = self._answers.pop(user_id, None)
        if answer is None:
            await self._say(full_text)
        else:
            await answer.complete(clean_text(full_text))

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        answer = self._answers.pop(user_id, None) or _ChannelAnswer(self._screen, self._write, self._show)
        await answer.complete(clean_text(full_text), lambda view: view.line(_STOPPED, "warning"))

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> None:
        """Returns when it is shown; whoever sits there may take their time."""
        label = _tidy(call_label(ask.tool, dict(ask.args)))
        told = [Text(f"■ {label} needs your consent", "yellow")]
        if ask.reason:
            told.append(Text(f"  {_tidy(ask.reason)}", "dim"))
        if not sys.stdin.isatty():
            path = f"POST /v1/turns/{ask.turn_id}/approvals/{ask.call_id}"
            told.append(Text(f'  Nobody can answer here; decide with {path} {{"approved": true}}', "dim"))
        await self._show(*told)
        if sys.stdin.isatty():
            errand = asyncio.create_task(self._decide(ask))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _decide(self, ask: ApprovalAsk) -> None:
        pressed: asyncio.Queue[str] = asyncio.Queue()
        async with self._asking:
            await self._show(Text(f"Allow {_tidy(ask.tool)}? [y/N]", "bold yellow"))
            asked_at = time.monotonic()
            self._keyboard.on_key = pressed.put_nowait
            try:
                with self._keyboard.listening():
                    # Whoever was typing when the question came has not answered it.
                    while (key := await pressed.get()) not in "yYnN\r\n" or not self._is_meant(asked_at):
                        pass
            finally:
                self._keyboard.on_key = None
        assert self.context is not None
        try:
            await self.context.decide(ask.turn_id, ask.call_id, approved=key in "yY", by="console")
        except TurnwireError as error:
            await self._show(Text(f"✗ the decision was not taken: {error}", "red"))

    def _is_meant(self, asked_at: float) -> bool:
        return time.monotonic() - asked_at >= self._settle_seconds

    async def _say(self, message: str) -> None:
        await self._show(*whole_answer(clean_text(message)), Text())

    async def _show(self, *lines: Any) -> None:
        if self._screen.while_prompting is not None:
            self._screen.say(*lines)  # The prompt is on the event loop, and it must make way.
        else:
            await self._write(lambda: self._screen.say(*lines))

    async def _write(self, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, write)


class _ChannelAnswer:
    """One answer. It is shown while it is made if the screen is free, and whole at its end if not."""

    def __init__(self, screen: Screen, write: Callable[[Callable[[], None]], Any], show: Callable[..., Any]) -> None:
        self._screen = screen
        self._write = write
        self._show = show
        self._text = ""
        self._view: View | None = None
        self._painting: asyncio.Task[None] | None = None

    def open(self) -> None:
        if self._screen.while_prompting is not None or not self._screen.claim(self):
            return
        console = self._screen.console
        if console.is_terminal and not console.is_dumb_terminal:
            self._view = LiveView(self._screen)
            self._painting = asyncio.create_task(self._paint())
        else:
            self._view = PlainView(console.file, console.file)  # pyright: ignore[reportArgumentType]

    async def add(self, chunk: str) -> None:
        self._text += chunk
        await self.tell(lambda view: view.write(chunk))

    async def tell(self, tell: Callable[[View], None]) -> None:
        view = self._view
        if view is not None:
            await self._write(lambda: tell(view))

    async def complete(self, text: str, last: Callable[[View], None] | None = None) -> None:
        """Shows what is still missing of the whole text."""
        if self._view is None:
            lines = [*whole_answer(text), Text(f"■ {_STOPPED}", "yellow")] if last else whole_answer(text)
            await self._show(*lines, Text())
            return
        if text.startswith(self._text):
            await self.tell(lambda view: view.write(text[len(self._text) :]))
        else:
            await self.tell(lambda view: view.write(f"\n\n{text}"))
        await self.tell(lambda view: view.finish())
        if last is not None:
            await self.tell(last)
        await self.close()

    async def close(self) -> None:
        if self._painting is not None:
            self._painting.cancel()
        await self.tell(lambda view: view.close())
        self._screen.release(self)

    async def _paint(self) -> None:
        while True:
            await self.tell(lambda view: view.paint())
            await asyncio.sleep(_PAINT_SECONDS)


def _tell_step(view: View, step: StreamStep) -> None:
    summary = _tidy(step.summary or "")
    name = _tidy(step.name)
    match step.phase:
        case "started":
            view.begin(step.id, f"{name} {summary}".strip())
        case "progress" if step.kind == "status":
            view.line(name)
        case "progress":
            part = "" if step.fraction is None else f"{step.fraction:.0%} "
            view.progress(step.id, f"{part}{summary}".strip())
        case "finished" if step.kind == "handoff":
            view.line(f"{name} has taken over")
        case "finished" if step.kind == "review":
            view.line(f"{name}: {summary}" if summary else name, "good")
        case "finished" | "failed":
            label = f"{name}: {summary}" if summary and (step.kind == "search" or step.phase == "failed") else name
            view.end(step.id, label, succeeded=step.phase == "finished", ms=step.elapsed_ms)


def _tidy(text: str) -> str:
    return one_line(clean_text(text))
