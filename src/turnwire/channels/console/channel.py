"""The channel `console`: the terminal in which Turnwire runs.

It shows answers and messages of other extensions, and asks for consent. It reads messages only if its configuration has
`read_messages`, or in `turnwire chat --channel`, because the terminal may be a server's. Output is written in a thread,
so that a stopped terminal (Ctrl-S) blocks this channel alone.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.text import Text

from turnwire.channels.console.keyboard import KEY_GRACE_SECONDS, Keyboard
from turnwire.channels.console.screen import Screen, process_screen
from turnwire.channels.console.view import LiveView, PlainView, View, call_label, clean_line, render_answer
from turnwire.core.errors import TurnwireError
from turnwire.core.log.codec import clean_text
from turnwire.extensions.calls import Background
from turnwire.extensions.contract import ApprovalAsk, Health, StreamingChannel, StreamStep

_PAINT_SECONDS = 0.1
_STOP_SECONDS = 1.0
_STOPPED = "stopped"
USER = "console"
"""The user of the terminal."""


class ConsoleChannel(StreamingChannel):
    """A channel that prints to the terminal of this process."""

    def __init__(
        self,
        screen: Screen | None = None,
        keyboard: Keyboard | None = None,
        *,
        key_grace: float = KEY_GRACE_SECONDS,
    ) -> None:
        self._screen = screen or process_screen()
        self._keyboard = keyboard or Keyboard()
        self._key_grace = key_grace
        self._answers: dict[str, _ChannelAnswer] = {}
        self._question_lock = asyncio.Lock()
        self._open_asks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The tasks that wait for a decision, by the user and the id of the call."""
        self._background = Background()
        # One thread, so that writes stay in order.
        self._writer = ThreadPoolExecutor(1, "console")

    async def run_background(self) -> None:
        """Read messages from the standard input, if `read_messages` is set."""
        if self.context.get_config("read_messages") is True:
            await self.converse(_read_line)

    async def converse(self, read: Callable[[], Awaitable[str]]) -> None:
        """Accept what `read` returns as messages, one after the other, until it raises EOFError."""
        while True:
            try:
                text = await read()
            except EOFError:
                return
            await self.context.handle_user_message(text, USER)

    async def stop(self) -> None:
        for answer in list(self._answers.values()):
            await answer.close()
        self._answers.clear()
        await self._background.close(_STOP_SECONDS)

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
        if earlier := self._answers.pop(user_id, None):
            await earlier.close()  # The kernel has given it up.
        answer = self._answers[user_id] = _ChannelAnswer(self._screen, self._write, self._show)
        answer.open()

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        if answer := self._answers.get(user_id):
            await answer.add(clean_text(chunk))

    async def on_stream_status(self, user_id: str, status: str) -> None:
        if answer := self._answers.get(user_id):
            await answer.update(lambda view: view.line(clean_line(status)))

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        self._close_asks(user_id, step.id)  # A call that goes on was decided, perhaps elsewhere.
        if answer := self._answers.get(user_id):
            await answer.update(lambda view: _show_step(view, step))

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        self._close_asks(user_id)
        answer = self._answers.pop(user_id, None)
        if answer is None:
            await self._say(full_text)
        else:
            await answer.complete(clean_text(full_text))

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        self._close_asks(user_id)
        answer = self._answers.pop(user_id, None) or _ChannelAnswer(self._screen, self._write, self._show)
        await answer.complete(clean_text(full_text), lambda view: view.line(_STOPPED, "warning"))

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        """Show the request. The decision is awaited in a task of its own."""
        label = clean_line(call_label(ask.tool, dict(ask.args)))
        lines = [Text(f"■ {label} needs your consent", "yellow")]
        if ask.reason:
            lines.append(Text(f"  {clean_line(ask.reason)}", "dim"))
        if not sys.stdin.isatty():
            path = f"POST /v1/turns/{ask.turn_id}/approvals/{ask.call_id}"
            lines.append(Text(f'  Not a terminal; decide with {path} {{"approved": true}}', "dim"))
        await self._show(*lines)
        if sys.stdin.isatty():
            key = (user_id, ask.call_id)
            task = self._open_asks[key] = self._background.run(self._decide(ask))
            task.add_done_callback(lambda ended: self._open_asks.get(key) is ended and self._open_asks.pop(key))
        return True

    def _close_asks(self, user_id: str, call_id: str | None = None) -> None:
        """Stop asking about this call, or about all calls of the user's answer."""
        for (owner, call), task in list(self._open_asks.items()):
            if owner == user_id and call_id in (None, call):
                task.cancel()

    async def _decide(self, ask: ApprovalAsk) -> None:
        keys: asyncio.Queue[str] = asyncio.Queue()
        async with self._question_lock:
            await self._show(Text(f"Allow {clean_line(ask.tool)}? [y/N]", "bold yellow"))
            question_at = time.monotonic()
            self._keyboard.on_key = keys.put_nowait
            try:
                with self._keyboard.listening():
                    # A key pressed just after the question appeared was meant for something else.
                    while (key := await keys.get()) not in "yYnN\r\n" or not self._is_past_grace(question_at):
                        pass
            finally:
                self._keyboard.on_key = None
        try:
            await self.context.decide(ask.turn_id, ask.call_id, approved=key in "yY", by="console")
        except TurnwireError as error:
            await self._show(Text(f"✗ the decision was not recorded: {error}", "red"))

    def _is_past_grace(self, question_at: float) -> bool:
        return time.monotonic() - question_at >= self._key_grace

    async def _say(self, message: str) -> None:
        await self._show(*render_answer(clean_text(message)), Text())

    async def _show(self, *lines: Any) -> None:
        if self._screen.while_prompting is not None:
            self._screen.print(*lines)  # The open prompt hides itself meanwhile; it belongs to the event loop.
        else:
            await self._write(lambda: self._screen.print(*lines))

    async def _write(self, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, write)


class _ChannelAnswer:
    """One answer: streamed if the screen is free, otherwise shown whole at its end."""

    def __init__(self, screen: Screen, write: Callable[[Callable[[], None]], Any], show: Callable[..., Any]) -> None:
        self._screen = screen
        self._write = write
        self._show = show
        self._text = ""
        self._view: View | None = None
        self._painter: asyncio.Task[None] | None = None

    def open(self) -> None:
        if self._screen.while_prompting is not None or not self._screen.claim(self):
            return
        console = self._screen.console
        if console.is_terminal and not console.is_dumb_terminal:
            self._view = LiveView(self._screen)
            self._painter = asyncio.create_task(self._paint())
        else:
            self._view = PlainView(console.file, console.file)  # pyright: ignore[reportArgumentType]

    async def add(self, chunk: str) -> None:
        self._text += chunk
        await self.update(lambda view: view.write(chunk))

    async def update(self, change: Callable[[View], None]) -> None:
        view = self._view
        if view is not None:
            await self._write(lambda: change(view))

    async def complete(self, text: str, last: Callable[[View], None] | None = None) -> None:
        """Write the part of the answer that was not streamed, then call `last` with the view."""
        if self._view is None:
            lines = [*render_answer(text), Text(f"■ {_STOPPED}", "yellow")] if last else render_answer(text)
            await self._show(*lines, Text())
            return
        if text.startswith(self._text):
            await self.update(lambda view: view.write(text[len(self._text) :]))
        else:
            await self.update(lambda view: view.write(f"\n\n{text}"))
        await self.update(lambda view: view.finish())
        if last is not None:
            await self.update(last)
        await self.close()

    async def close(self) -> None:
        if self._painter is not None:
            self._painter.cancel()
        await self.update(lambda view: view.close())
        self._screen.release(self)

    async def _paint(self) -> None:
        while True:
            await self.update(lambda view: view.paint())
            await asyncio.sleep(_PAINT_SECONDS)


def _show_step(view: View, step: StreamStep) -> None:
    summary = clean_line(step.summary or "")
    name = clean_line(step.name)
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


async def _read_line() -> str:
    """Return a line of the standard input. Raises EOFError at its end."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def set_line(text: str) -> None:
        if not line.done():
            line.set_result(text)

    # A daemon: a thread that waits for the keyboard must not keep the process from ending.
    threading.Thread(target=lambda: loop.call_soon_threadsafe(set_line, sys.stdin.readline()), daemon=True).start()
    if not (text := await line):
        raise EOFError
    return text
