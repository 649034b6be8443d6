"""An answer while it is made.

The agent's output only goes into a buffer, so the agent never waits for Telegram. One task shows the newest state of
the buffer from time to time, until the answer is complete.
"""

import asyncio
import random
from contextlib import suppress

from turnwire.channels.telegram.client import (
    BadRequestError,
    ChatBudget,
    Clock,
    FloodError,
    TelegramError,
    UncertainError,
    UnreachableError,
)
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.markdown import LIMIT, Formatted, italic, messages, render
from turnwire.channels.telegram.posts import Address, Content, Posting, Sender
from turnwire.channels.telegram.records import Answer
from turnwire.core.errors import StoreError
from turnwire.extensions.contract import StreamStep

DRAFT_INTERVAL_SECONDS = 0.8
HEARTBEAT_SECONDS = 20.0
_FIRST_SECONDS = 1.0
_TYPING_SECONDS = 4.5
# The interval of updates if only the age in the status line has changed.
_AGE_SECONDS = 5.0
_MAX_INTERVAL_SECONDS = 30.0
_MAX_STATUS_CHARS = 80
_ICONS = {"tool": "🔧", "search": "🔎", "review": "🧐", "handoff": "🤝", "status": "💬"}


class LiveAnswer:
    """One answer that grows in its messages, or in a draft."""

    def __init__(self, sender: Sender, answer: Answer, config: TelegramConfig) -> None:
        self.answer = answer
        self._sender = sender
        self._address = Address.parse(answer.user_id)
        self.posting = Posting(sender, answer.answer_id, self._address, answer.reply_to)
        self._config = config
        has_draft = config.transport == "draft" and self._address.is_private
        self._draft = Draft(sender, self._address) if has_draft else None
        self._text: list[str] = []
        self._chars = self._restarts = 0
        self._status = StatusLine(sender.clock)
        self._began = sender.clock.now()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._muted = not config.streaming_enabled
        in_group = config.stream_group_edit_interval_ms
        self._interval = (config.stream_edit_interval_ms if self._address.is_private else in_group) / 1000
        self._shown: tuple[int, int, str] | None = None
        self._final = ""

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def _state(self) -> tuple[int, int, str]:
        """The number of restarts, the length of the text and the status line."""
        return self._restarts, self._chars, self._status.text()

    # Input from the agent. None of these waits.

    def add(self, chunk: str) -> None:
        self._text.append(chunk)
        self._chars += len(chunk)
        self._status.set_text("")
        self._changed.set()

    def restart(self, text: str) -> None:
        """Replace everything that was added by this text."""
        self._text, self._chars = [text], len(text)
        self._restarts += 1
        self._changed.set()

    def add_step(self, step: StreamStep) -> None:
        self._status.add_step(step)
        self._changed.set()

    def end(self, final: str) -> None:
        """Stop the display. `final` is the whole answer, or empty for one that was given up."""
        self._final = final
        self._ended.set()
        self._changed.set()

    def is_draft(self, draft_id: str) -> bool:
        return self._draft is not None and self._draft.has(draft_id)

    async def ended(self) -> None:
        await self._ended.wait()

    # Output to Telegram

    async def run(self) -> None:
        """Show the answer until it ends."""
        await self.posting.load()
        if self._muted:
            await self._ended.wait()
            return
        await self._wait_for_content()
        while not self._ended.is_set():
            await self._show()
            await self._pause()
        if self._draft is not None and (pieces := messages(render(self._final))):
            await self._draft.show_final(pieces[-1])

    async def _wait_for_content(self) -> None:
        """Wait for something that is worth a notification on a phone; meanwhile show the typing indicator."""
        typed_at = float("-inf")
        while not self._is_over(or_worth_showing=True):
            now = self._sender.clock.now()
            if now - typed_at >= _TYPING_SECONDS and (self._address.is_private or typed_at < 0):
                typed_at = now
                await self._send_typing()
            due = self._began + _FIRST_SECONDS - self._sender.clock.now()
            await self._wait_for_change(max(due, 0.0) if self._text else _TYPING_SECONDS)

    def _is_over(self, *, or_worth_showing: bool = False) -> bool:
        # Cleared before the check, so that a later change is not missed by the wait that follows.
        self._changed.clear()
        return self._ended.is_set() or (or_worth_showing and self._is_worth_showing())

    def _is_worth_showing(self) -> bool:
        if self.posting.is_begun or self._status.text():
            return True
        waited = self._sender.clock.now() - self._began
        return self._chars >= self._config.stream_min_chunk_chars or (bool(self._text) and waited >= _FIRST_SECONDS)

    async def _send_typing(self) -> None:
        if not self.posting.budget.take_typing():
            return
        thread = self._address.thread_id
        params = {"chat_id": self._address.chat_id, "message_thread_id": thread, "action": "typing"}
        try:
            await self._sender.api.call("sendChatAction", params)
        except FloodError as error:
            await self._sender.flooded(self._address.chat_id, error)
        except TelegramError as error:
            self._sender.logger.debug("the typing indicator was not sent: %s", error)

    async def _show(self) -> None:
        self._changed.clear()
        state = self._state
        if self._shown is None or self._shown[0] < self._restarts:
            # Full messages may show text that was taken back.
            self.posting.reopen()
        try:
            if self._muted or await self._draw(self.text, self._status.line()):
                self._shown = state
        except FloodError as error:
            await self._sender.flooded(self._address.chat_id, error)
            self._interval = min(self._interval * 2, _MAX_INTERVAL_SECONDS)
        except (StoreError, UncertainError, UnreachableError) as error:
            self._sender.logger.debug("the answer will be shown later: %s", error)
            self._interval = min(self._interval * 2, _MAX_INTERVAL_SECONDS)
        except TelegramError as error:
            # The final answer will be delivered in any case; until then the chat is left alone.
            self._sender.logger.info("the answer is not shown while it is made: %s", error)
            self._muted = True

    async def _draw(self, text: str, status: str) -> bool:
        """Return True if all of it is shown. Raises TelegramError."""
        pieces = messages(render(text))
        if self._draft is None or self._draft.is_refused:
            return await self.posting.show(self._contents(pieces, status))
        if len(pieces) < 2:
            return await self._draft.show(text or status, topic=(self._restarts, bool(text)))
        # Full pieces become messages; the rest is a draft of its own.
        full = await self.posting.show([Content(piece) for piece in pieces[:-1]])
        return full and await self._draft.show(pieces[-1].text, topic=(self._restarts, len(pieces)))

    def _contents(self, pieces: list[Formatted], status: str) -> list[Content]:
        shown = pieces[-1] if pieces else Formatted()
        line = italic(status or "…") if shown.is_blank else italic(f"\n\n{status}" if status else "")
        if shown.units + line.units <= LIMIT:
            shown = shown.followed_by(line)
        stop = [[{"text": "⏹ Stop", "callback_data": f"stop:{self.answer.answer_id}"}]]
        return [*map(Content, pieces[:-1]), Content(shown, stop)]

    async def _pause(self) -> None:
        """Wait for the interval, and then for something new."""
        is_drafting = self._draft is not None and not self._draft.is_refused
        interval = max(DRAFT_INTERVAL_SECONDS if is_drafting else self._interval, self.posting.budget.closed_for)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self._ended.wait()
        while not self._is_over() and self._shown == self._state:
            await self._wait_for_change(_AGE_SECONDS)
            if is_drafting or self._status.is_running:
                return

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for a change, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


class StatusLine:
    """The line below an answer that is being made: what the agent does now, and for how long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: dict[str, tuple[StreamStep, float]] = {}
        self._text = ""

    def set_text(self, status: str) -> None:
        """Set a text that has no end of its own: it stays until the next change."""
        self._text = _shortened(status)

    def add_step(self, step: StreamStep) -> None:
        if step.kind in ("handoff", "review", "status"):
            self.set_text(f"{_ICONS[step.kind]} {step.summary or step.name}")
        elif step.phase in ("finished", "failed"):
            self._steps.pop(step.id, None)
            self._text = f"⚠️ {step.name} failed" if step.phase == "failed" else ""
        else:
            began = self._clock.now() - (step.elapsed_ms or 0) / 1000
            _, began = self._steps.get(step.id, (step, began))
            self._steps[step.id] = (step, began)

    @property
    def is_running(self) -> bool:
        return bool(self._steps)

    def text(self) -> str:
        """Return the latest step, or else the text; empty if there is neither."""
        if not self._steps:
            return self._text
        step, _ = next(reversed(self._steps.values()))
        line = f"{_ICONS[step.kind]} {step.name}"
        if step.summary:
            line = f"{line}: {step.summary}"
        if step.fraction is not None:
            line = f"{line} {step.fraction:.0%}"
        others = f" (+{len(self._steps) - 1})" if len(self._steps) > 1 else ""
        return _shortened(line) + others

    def line(self) -> str:
        """Return the same text with the age of the step."""
        if not self._steps:
            return self._text
        _, began = next(reversed(self._steps.values()))
        return f"{self.text()} · {int(self._clock.now() - began)} s"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_STATUS_CHARS else line[: _MAX_STATUS_CHARS - 1] + "…"


class Draft:
    """Telegram's own display of an answer that is being made, in private chats only."""

    def __init__(self, sender: Sender, address: Address) -> None:
        self._sender = sender
        self._address = address
        self._ids: list[int] = []
        self._topic: object = None
        self._shown: str | None = None
        self._shown_at = 0.0
        self.is_refused = False

    def has(self, draft_id: str) -> bool:
        return draft_id in map(str, self._ids)

    async def show(self, text: str, topic: object) -> bool:
        """Show the text if the budget allows it. Return True if it is shown. Raises TelegramError.

        `topic` is equal as long as the text only grows. A refused draft is not an error: `is_refused` says that there
        will be no more of them.
        """
        text = _fitting(text)
        now = self._sender.clock.now()
        if (text, topic) == (self._shown, self._topic) and now - self._shown_at < HEARTBEAT_SECONDS:
            return True
        if not self._budget.take_draft():
            return False
        if topic != self._topic or not self._ids:
            # Clients fade in what was added to a draft; another draft replaces it at once.
            self._ids.append(random.randrange(1, 2**31))
        await self._call(Formatted(text))
        self._shown, self._topic, self._shown_at = text, topic, now
        return not self.is_refused

    async def show_final(self, message: Formatted) -> None:
        """Show exactly what the final message will show."""
        if self._shown is None or self.is_refused or not self._budget.take_draft():
            return
        try:
            await self._call(message)
        except TelegramError as error:
            self._sender.logger.debug("the last draft was not shown: %s", error)

    @property
    def _budget(self) -> ChatBudget:
        return self._sender.budgets.of(self._address.chat_id)

    async def _call(self, content: Formatted) -> None:
        params = {
            "chat_id": self._address.chat_id,
            "message_thread_id": self._address.thread_id,
            "draft_id": self._ids[-1],
            "text": content.text,
            "entities": content.plain_entities() or None,
            "can_stop": True,
        }
        try:
            await self._sender.api.call("sendMessageDraft", params)
        except BadRequestError as error:
            self._sender.logger.info("drafts are refused, messages are edited instead: %s", error)
            self.is_refused = True
        except FloodError as error:
            await self._sender.flooded(self._address.chat_id, error)
            raise


def _fitting(text: str) -> str:
    """Return the beginning of the text that fits in one message, in UTF-16 units."""
    encoded = text.encode("utf-16-le", "replace")[: LIMIT * 2]
    return encoded.decode("utf-16-le", "ignore")
