"""The messages that one answer consists of: what is shown now is made equal to what should be.

An edit can be made twice without harm, a message cannot be sent twice. So before one is sent it is written down, with
the newest message that is known of; and when nobody can say whether it arrived (the connection broke, or this process
did), it is looked for among the few ids that it can have, before it is sent again.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct

from turnwire.channels.telegram.client import (
    BadRequestError,
    BotApi,
    FloodError,
    TelegramError,
    TokenError,
    UncertainError,
    UnreachableError,
)
from turnwire.channels.telegram.markdown import Formatted
from turnwire.channels.telegram.rate_limits import Budgets, ChatBudget, Clock
from turnwire.channels.telegram.records import MessagePart, Records

# Where an answer goes: a chat, or one topic of it.


class Address(Struct, frozen=True):
    """Written `-1001:42` for topic 42 of that group, and `7` for a person: the `user_id` of this channel."""

    chat_id: int
    thread_id: int | None = None

    @property
    def user_id(self) -> str:
        return str(self.chat_id) if self.thread_id is None else f"{self.chat_id}:{self.thread_id}"

    @property
    def is_private(self) -> bool:
        return self.chat_id > 0

    @classmethod
    def parse(cls, user_id: str) -> Self:
        """Raises LookupError if it is not the name of a chat."""
        chat, _, thread = user_id.partition(":")
        try:
            return cls(int(chat), int(thread) if thread else None)
        except ValueError:
            raise LookupError(f"{user_id!r} is not a Telegram chat; it must be like 7 or -1001:42") from None


# What everything that is sent has in common, and what a message consists of.


Buttons = Sequence[Sequence[dict[str, str]]]


class Content(Struct, frozen=True):
    body: Formatted
    buttons: Buttons | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @property
    def plain(self) -> "Content":
        return Content(Formatted(self.body.text), self.buttons)

    def params(self) -> dict[str, Any]:
        return {
            "text": self.body.text,
            "entities": self.body.plain_entities() or None,
            "reply_markup": {"inline_keyboard": self.buttons} if self.buttons else None,
            "link_preview_options": {"is_disabled": True},
        }


class NewestIds:
    """The newest message id that is known of, wherever ids count together."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def note(self, chat_id: int, message_id: int) -> None:
        self._newest[_counter(chat_id)] = max(self.before(chat_id), message_id)

    def before(self, chat_id: int) -> int:
        return self._newest.get(_counter(chat_id), 0)


def _counter(chat_id: int) -> int:
    # Supergroups and channels (-100…) count for themselves, all other chats of a bot together.
    return chat_id if chat_id < -1_000_000_000_000 else 0


class Sender(Struct, frozen=True):
    api: BotApi
    budgets: Budgets
    records: Records
    newest: NewestIds
    clock: Clock
    logger: logging.Logger

    async def flooded(self, chat_id: int, error: FloodError) -> None:
        """Keeps everybody from sending anything there, also in the next process: each call would make it worse."""
        self.budgets.of(chat_id).close(error.retry_after)
        await self.records.set_flood(chat_id, self.clock.real(error.retry_after))

    async def load(self) -> None:
        """What an earlier process knew."""
        for chat_id, seconds in await self.records.floods():
            self.budgets.of(chat_id).close(seconds * self.clock.speed)
        for user_id, message_id in await self.records.newest_messages():
            self.newest.note(Address.parse(user_id).chat_id, message_id)


# A call whose connection broke may still be on its way.
_SETTLING_SECONDS = 5.0
_PLACES_TO_LOOK = 6
_MOST_BACK_OFF_SECONDS = 60.0


class Posting:
    """One answer's messages. Used by one task."""

    def __init__(self, desk: Sender, answer_id: str, address: Address, reply_to: int | None = None) -> None:
        self._desk = desk
        self._answer_id = answer_id
        self._address = address
        self._reply_to = reply_to
        self._parts: dict[int, MessagePart] = {}
        self._full: set[int] = set()

    @property
    def budget(self) -> ChatBudget:
        return self._desk.budgets.of(self._address.chat_id)

    @property
    def is_begun(self) -> bool:
        return bool(self._parts)

    async def load(self) -> None:
        """What an earlier process knew of it."""
        self._parts = await self._desk.records.parts(self._answer_id)

    # While it is made

    async def show(self, contents: Sequence[Content]) -> bool:
        """Cosmetic: shows as much as the budget allows now. Whether that was all. Raises TelegramError."""
        last = len(contents) - 1
        for number, content in enumerate(contents):
            if number in self._full and number < last:
                continue
            part = self._parts.get(number)
            if part is not None and part.message_id is None:
                part = await self._find(number, part)
            if part is None or part.shown != content.digest:
                if not self.budget.take():
                    return False
                await self._put(number, part, content)
            if number < last:
                # A message that is full is left alone until the end.
                self._full.add(number)
        return True

    def reopen(self) -> None:
        """What is full may not stay as it is."""
        self._full.clear()

    # When it is complete

    async def deliver(self, contents: Sequence[Content]) -> None:
        """Durable: returns when all of it is there. Raises TelegramError if that can never be."""
        for number, content in enumerate(contents):
            await self._make(number, content)
        for number in sorted(set(self._parts) - set(range(len(contents))), reverse=True):
            await self._remove(number)

    async def _make(self, number: int, content: Content) -> None:
        tries = 0
        while True:
            try:
                part = self._parts.get(number)
                if part is not None and part.message_id is None:
                    part = await self._find(number, part)
                if part is None or part.shown != content.digest:
                    await self.budget.wait()
                    part = await self._put(number, part, content)
                return await self._desk.records.set_part(self._answer_id, number, part)
            except BadRequestError as error:
                content = await self._after_refusal(number, content, error)
            except TelegramError as error:
                tries += 1
                await self._after_failure(error, tries)

    async def _after_refusal(self, number: int, content: Content, error: BadRequestError) -> Content:
        """What to try in place of what was refused. Raises the error if nothing is left."""
        if error.kind == "no_message" and number in self._parts:
            # Somebody has deleted it.
            await self._set(number, None)
        elif error.kind == "no_thread" and self._address.is_private and self._address.thread_id is not None:
            self._address = Address(self._address.chat_id)
        elif error.kind in ("entities", "other") and content.body.entities:
            self._desk.logger.warning("sent without its formatting: %s", error)
            return content.plain
        else:
            raise error
        return content

    async def _after_failure(self, error: TelegramError, tries: int) -> None:
        """Waits as long as it has to. Raises the error if waiting does not help."""
        match error:
            case FloodError():
                await self._desk.flooded(self._address.chat_id, error)
            case UncertainError() | UnreachableError() | TokenError():
                self._desk.logger.info("will be tried again: %s", error)
                await self._desk.clock.sleep(min(2.0**tries, _MOST_BACK_OFF_SECONDS))
            case _:
                raise error

    async def _remove(self, number: int) -> None:
        """An answer may turn out shorter than it looked. What cannot be deleted is let go."""
        part = self._parts[number]
        tries = 0
        while part.message_id is not None:
            await self.budget.wait()
            try:
                await self._call("deleteMessage", {"message_id": part.message_id})
                break
            except BadRequestError:
                break
            except TelegramError as error:
                tries += 1
                await self._after_failure(error, tries)
        await self._set(number, None)

    # Single calls

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        return await self._desk.api.call(method, {"chat_id": self._address.chat_id, **params})

    async def _put(self, number: int, part: MessagePart | None, content: Content) -> MessagePart:
        if part is None or part.message_id is None:
            return await self._send(number, content)
        try:
            await self._call("editMessageText", {"message_id": part.message_id, **content.params()})
        except BadRequestError as error:
            if error.kind != "not_modified":
                raise
        self._parts[number] = MessagePart(part.message_id, None, content.digest)
        return self._parts[number]

    async def _send(self, number: int, content: Content) -> MessagePart:
        chat_id = self._address.chat_id
        await self._set(number, MessagePart(None, self._desk.newest.before(chat_id)))
        reply = {"message_id": self._reply_to, "allow_sending_without_reply": True}
        thread = {"message_thread_id": self._address.thread_id}
        first = {"reply_parameters": reply if self._reply_to is not None and number == 0 else None}
        try:
            message = await self._call("sendMessage", {**content.params(), **thread, **first})
        except UncertainError:
            raise
        except TelegramError:
            await self._set(number, None)
            raise
        self._desk.newest.note(chat_id, message["message_id"])
        await self._set(number, MessagePart(message["message_id"], None, content.digest))
        return self._parts[number]

    async def _set(self, number: int, part: MessagePart | None) -> None:
        if part is None:
            self._parts.pop(number, None)
        else:
            self._parts[number] = part
        await self._desk.records.set_part(self._answer_id, number, part)

    async def _find(self, number: int, part: MessagePart) -> MessagePart | None:
        """The message that may have been sent, or None if it has not. Raises TelegramError."""
        await self._desk.clock.sleep(_SETTLING_SECONDS)
        after = part.sent_after or 0
        known = await self._desk.records.known_messages(self._address.chat_id, after)
        for message_id in range(after + 1, after + 1 + _PLACES_TO_LOOK) if after else ():
            if message_id not in known and await self._is_ours(message_id):
                self._desk.newest.note(self._address.chat_id, message_id)
                await self._set(number, MessagePart(message_id))
                return self._parts[number]
        await self._set(number, None)
        return None

    async def _is_ours(self, message_id: int) -> bool:
        """Takes buttons off a message: a harmless way to ask whether it is there and the bot's own."""
        while True:
            await self.budget.wait()
            try:
                await self._call(
                    "editMessageReplyMarkup", {"message_id": message_id, "reply_markup": {"inline_keyboard": []}}
                )
                return True
            except BadRequestError as error:
                return error.kind == "not_modified"
            except FloodError as error:
                await self._desk.flooded(self._address.chat_id, error)
