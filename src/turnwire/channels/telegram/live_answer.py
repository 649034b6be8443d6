"""An answer while it is made.

What comes from the agent is only put into a buffer: whoever makes the answer never waits for anything here. One task
shows the newest state of the buffer from time to time, until the answer is complete.
"""

import asyncio
import random
from contextlib import suppress

from turnwire.channels.telegram.client import (
    BadRequestError,
    FloodError,
    TelegramError,
    UncertainError,
    UnreachableError,
)
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.markdown import LIMIT, Formatted, italic, messages, render
from turnwire.channels.telegram.posts import Address, Content, Posting, Sender
from turnwire.channels.telegram.rate_limits import ChatBudget, Clock
from turnwire.channels.telegram.records import Answer
from turnwire.extensions.contract import StreamStep

# Telegram's own way to show an answer that is being made: a draft, in private chats only.


DRAFT_INTERVAL_SECONDS = 0.8
HEARTBEAT_SECONDS = 20.0


class Draft:
    def __init__(self, desk: Sender, address: Address) -> None:
        self._desk = desk
        self._address = address
        self._ids: list[int] = []
        self._topic: object = None
        self._shown: str | None = None
        self._shown_at = 0.0
        self.is_refused = False

    def has(self, draft_id: str) -> bool:
        return draft_id in map(str, self._ids)

    async def show(self, text: str, topic: object) -> bool:
        """Cosmetic. `topic` is equal as long as the text only grows. Whether it is shown. Raises TelegramError.

        A draft that is refused is not an error: `is_refused` says that there will be no more of them.
        """
        text = _beginning(text)
        now = self._desk.clock.now()
        if (text, topic) == (self._shown, self._topic) and now - self._shown_at < HEARTBEAT_SECONDS:
            return True
        if not self._budget.take_draft():
            return False
        if topic != self._topic or not self._ids:
            # Clients fade in what was added to a draft they know; another draft takes its place at once.
            self._ids.append(random.randrange(1, 2**31))
        await self._call(Formatted(text))
        self._shown, self._topic, self._shown_at = text, topic, now
        return not self.is_refused

    async def settle(self, message: Formatted) -> None:
        """Shows just what the message will show."""
        if self._shown is None or self.is_refused or not self._budget.take_draft():
            return
        try:
            await self._call(message)
        except TelegramError as error:
            self._desk.logger.debug("no last draft: %s", error)

    @property
    def _budget(self) -> ChatBudget:
        return self._desk.budgets.of(self._address.chat_id)

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
            await self._desk.api.call("sendMessageDraft", params)
        except BadRequestError as error:
            self._desk.logger.info("drafts are refused, so messages are edited: %s", error)
            self.is_refused = True
        except FloodError as error:
            await self._desk.flooded(self._address.chat_id, error)
            raise


def _beginning(text: str) -> str:
    """As much as fits, in UTF-16."""
    encoded = text.encode("utf-16-le", "replace")[: LIMIT * 2]
    return encoded.decode("utf-16-le", "ignore")


# The line below an answer that is being made: what the agent does now, and for how long.


_ICONS = {"tool": "🔧", "search": "🔎", "review": "🧐", "handoff": "🤝", "status": "💬"}
_MOST_CHARS = 80


class StatusLine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: dict[str, tuple[StreamStep, float]] = {}
        self._said = ""

    def say(self, status: str) -> None:
        """Something that has no end of its own: it stands until there is news."""
        self._said = _shortened(status)

    def take(self, step: StreamStep) -> None:
        if step.kind in ("handoff", "review", "status"):
            self.say(f"{_ICONS[step.kind]} {step.summary or step.name}")
        elif step.phase in ("finished", "failed"):
            self._steps.pop(step.id, None)
            self._said = f"⚠️ {step.name} failed" if step.phase == "failed" else ""
        else:
            began = self._clock.now() - (step.elapsed_ms or 0) / 1000
            _, began = self._steps.get(step.id, (step, began))
            self._steps[step.id] = (step, began)

    @property
    def is_running(self) -> bool:
        return bool(self._steps)

    def what(self) -> str:
        """The latest step, or what was said last; empty if there is nothing to tell."""
        if not self._steps:
            return self._said
        step, _ = next(reversed(self._steps.values()))
        told = f"{_ICONS[step.kind]} {step.name}"
        if step.summary:
            told = f"{told}: {step.summary}"
        if step.fraction is not None:
            told = f"{told} {step.fraction:.0%}"
        others = f" (+{len(self._steps) - 1})" if len(self._steps) > 1 else ""
        return _shortened(told) + others

    def line(self) -> str:
        """The same with the step's age."""
        if not self._steps:
            return self._said
        _, began = next(reversed(self._steps.values()))
        return f"{self.what()} · {int(self._clock.now() - began)} s"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + "…"


_FIRST_SECONDS = 1.0
_TYPING_SECONDS = 4.5
# A line that only counts seconds is not worth more calls than this.
_AGE_SECONDS = 5.0
_MOST_INTERVAL_SECONDS = 30.0


class LiveAnswer:
    def __init__(self, desk: Sender, answer: Answer, config: TelegramConfig) -> None:
        self.answer_id = answer.answer_id
        self._answer = answer
        self._desk = desk
        self._address = Address.parse(answer.user_id)
        self._posting = Posting(desk, answer.answer_id, self._address, answer.reply_to)
        self._config = config
        draws = config.transport == "draft" and self._address.is_private
        self._draft = Draft(desk, self._address) if draws else None
        self._text: list[str] = []
        self._chars = self._restarts = 0
        self._status = StatusLine(desk.clock)
        self._began = desk.clock.now()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._muted = not config.streaming_enabled
        in_group = config.stream_group_edit_interval_ms
        self._interval = (config.stream_edit_interval_ms if self._address.is_private else in_group) / 1000
        self._drawn: tuple[int, str] | None = None
        self._final = ""

    @property
    def text(self) -> str:
        return "".join(self._text)

    # What comes from the agent. None of these waits.

    def add(self, chunk: str) -> None:
        self._text.append(chunk)
        self._chars += len(chunk)
        self._status.say("")
        self._changed.set()

    def restart(self, text: str) -> None:
        """Only this still stands of what was added."""
        self._text, self._chars = [text], len(text)
        self._restarts += 1
        self._posting.reopen()
        self._drawn = None
        self._changed.set()

    def say(self, status: str) -> None:
        self._status.say(status)
        self._changed.set()

    def take(self, step: StreamStep) -> None:
        self._status.take(step)
        self._changed.set()

    def end(self, final: str) -> None:
        """Nothing more will come, and this is the answer."""
        self._final = final
        self._ended.set()
        self._changed.set()

    def is_draft(self, draft_id: str) -> bool:
        return self._draft is not None and self._draft.has(draft_id)

    async def ended(self) -> None:
        await self._ended.wait()

    # What goes to Telegram

    async def run(self) -> None:
        """Shows the answer until it ends."""
        await self._posting.load()
        if self._muted:
            await self._ended.wait()
            return
        await self._wait_for_something()
        while not self._ended.is_set():
            await self._show()
            await self._pause()
        if self._draft is not None and (pieces := messages(render(self._final))):
            await self._draft.settle(pieces[-1])

    async def _wait_for_something(self) -> None:
        """Until there is something worth a notification on somebody's phone; meanwhile the bot seems to type."""
        typed_at = float("-inf")
        while not self._is_over(worth_showing=True):
            now = self._desk.clock.now()
            if now - typed_at >= _TYPING_SECONDS and (self._address.is_private or typed_at < 0):
                typed_at = now
                await self._type()
            due = self._began + _FIRST_SECONDS - self._desk.clock.now()
            await self._wake(max(due, 0.0) if self._text else _TYPING_SECONDS)

    def _is_over(self, *, worth_showing: bool = False) -> bool:
        # Before looking: what changes from here on is not missed by whoever waits afterwards.
        self._changed.clear()
        return self._ended.is_set() or (worth_showing and self._is_worth_showing())

    def _is_worth_showing(self) -> bool:
        if self._posting.is_begun or self._status.what():
            return True
        waited = self._desk.clock.now() - self._began
        return self._chars >= self._config.stream_min_chunk_chars or (bool(self._text) and waited >= _FIRST_SECONDS)

    async def _type(self) -> None:
        if not self._posting.budget.take_typing():
            return
        thread = self._address.thread_id
        params = {"chat_id": self._address.chat_id, "message_thread_id": thread, "action": "typing"}
        try:
            await self._desk.api.call("sendChatAction", params)
        except FloodError as error:
            await self._desk.flooded(self._address.chat_id, error)
        except TelegramError as error:
            self._desk.logger.debug("no typing: %s", error)

    async def _show(self) -> None:
        self._changed.clear()
        drawn = (self._chars, self._status.what())
        try:
            if self._muted or await self._draw(self.text, self._status.line()):
                self._drawn = drawn
        except FloodError as error:
            await self._desk.flooded(self._address.chat_id, error)
            self._interval = min(self._interval * 2, _MOST_INTERVAL_SECONDS)
        except (UncertainError, UnreachableError) as error:
            self._desk.logger.debug("will be shown later: %s", error)
            self._interval = min(self._interval * 2, _MOST_INTERVAL_SECONDS)
        except TelegramError as error:
            # The end will be delivered in any case; until then it is better to be quiet.
            self._desk.logger.info("the answer is not shown while it is made: %s", error)
            self._muted = True

    async def _draw(self, text: str, status: str) -> bool:
        """Whether all of it is shown. Raises TelegramError."""
        pieces = messages(render(text))
        if self._draft is None or self._draft.is_refused:
            return await self._posting.show(self._contents(pieces, status))
        if len(pieces) < 2:
            return await self._draft.show(text or status, topic=(self._restarts, bool(text)))
        # What is full becomes a message, and the rest is a draft of its own.
        full = await self._posting.show([Content(piece) for piece in pieces[:-1]])
        return full and await self._draft.show(pieces[-1].text, topic=(self._restarts, len(pieces)))

    def _contents(self, pieces: list[Formatted], status: str) -> list[Content]:
        shown = pieces[-1] if pieces else Formatted()
        line = italic(status or "…") if shown.is_blank else italic(f"\n\n{status}" if status else "")
        if shown.units + line.units <= LIMIT:
            shown = shown.followed_by(line)
        stop = [[{"text": "⏹ Stop", "callback_data": f"stop:{self.answer_id}"}]]
        return [*map(Content, pieces[:-1]), Content(shown, stop)]

    async def _pause(self) -> None:
        """Until the next time to show something: an interval, and then something new."""
        drafts = self._draft is not None and not self._draft.is_refused
        interval = max(DRAFT_INTERVAL_SECONDS if drafts else self._interval, self._posting.budget.closed_for)
        with suppress(TimeoutError):
            async with self._desk.clock.timeout(interval):
                await self._ended.wait()
        while not self._is_over() and self._drawn == (self._chars, self._status.what()):
            await self._wake(_AGE_SECONDS)
            if drafts or self._status.is_running:
                return

    async def _wake(self, seconds: float) -> None:
        """Until something changes, but no longer than this."""
        with suppress(TimeoutError):
            async with self._desk.clock.timeout(seconds):
                await self._changed.wait()
