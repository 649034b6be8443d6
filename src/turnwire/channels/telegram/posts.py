"""The messages of one answer: sending, editing and deleting them until they show what they should.

An edit can be made twice without harm, a message cannot be sent twice. So every message is recorded before it is
sent, with the newest message id known; when it is uncertain whether it arrived (the connection broke, or this process
died), it is looked for among the few ids that it can have before it is sent again.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Self
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from turnwire.channels.telegram.client import (
    BadRequestError,
    BotApi,
    Budgets,
    ChatBudget,
    Clock,
    FloodError,
    TelegramError,
    TokenError,
    UncertainError,
    UnreachableError,
)
from turnwire.channels.telegram.markdown import Formatted
from turnwire.channels.telegram.records import MessagePart, Records
from turnwire.core.backoff import Backoff

Buttons = Sequence[Sequence[dict[str, str]]]

# A call whose connection broke may still be under way.
_ARRIVAL_SECONDS = 5.0
_CANDIDATE_IDS = 6
_MAX_CANDIDATE_IDS = 36
_ANSWERED = re.compile(r"-?[0-9]+:([0-9]+)(?:#.*)?")
"""The id of an answer, which has the id of the message that it answers."""
BACKOFF = Backoff(first=2.0, longest=60.0)


class Address(Struct, frozen=True):
    """A chat, or one topic of it. Its `user_id` is `7` for a person, and `-1001:42` for topic 42 of a group."""

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
        """Parse a user id of the kernel. Raises LookupError if it is not a chat."""
        chat, _, thread = user_id.partition(":")
        try:
            return cls(int(chat), int(thread) if thread else None)
        except ValueError:
            raise LookupError(f"{user_id!r} is not a Telegram chat; it must be like 7 or -1001:42") from None


class Content(Struct, frozen=True):
    """The text and the buttons of one message."""

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
    """The newest message id known for each counter of ids, and a lock of each chat for the search of a lost one."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def lock(self, chat_id: int) -> asyncio.Lock:
        return self._locks.setdefault(chat_id, asyncio.Lock())

    def note(self, chat_id: int, message_id: int) -> None:
        self._newest[_counter(chat_id)] = max(self.before(chat_id), message_id)

    def before(self, chat_id: int) -> int:
        return self._newest.get(_counter(chat_id), 0)


def _counter(chat_id: int) -> int:
    # Each supergroup and channel (-100…) has a counter of its own; all other chats of a bot share one.
    return chat_id if chat_id < -1_000_000_000_000 else 0


class Sender(Struct, frozen=True):
    """The services that everything which sends messages shares."""

    api: BotApi
    budgets: Budgets
    records: Records
    newest: NewestIds
    clock: Clock
    logger: logging.Logger

    async def flooded(self, chat_id: int, error: FloodError) -> None:
        """Close the chat for every sender, also in the next process: each further call would lengthen the wait."""
        self.budgets.of(chat_id).close(error.retry_after)
        await self.records.set_flood(chat_id, error.retry_after)

    async def load(self) -> None:
        """Load the flood waits and message ids that earlier processes recorded."""
        for chat_id, seconds in await self.records.floods():
            self.budgets.of(chat_id).close(seconds)
        for user_id, message_id in await self.records.newest_messages():
            self.newest.note(Address.parse(user_id).chat_id, message_id)


class Posting:
    """The messages of one answer. Used by one task."""

    def __init__(self, sender: Sender, answer_id: str, address: Address, reply_to: int | None = None) -> None:
        self._sender = sender
        self._answer_id = answer_id
        self._address = address
        self._reply_to = reply_to
        self._parts: dict[int, MessagePart] = {}
        self._full: set[int] = set()

    @property
    def budget(self) -> ChatBudget:
        return self._sender.budgets.of(self._address.chat_id)

    @property
    def is_begun(self) -> bool:
        return bool(self._parts)

    async def load(self) -> None:
        """Load the messages that earlier processes recorded."""
        if answered := _ANSWERED.fullmatch(self._answer_id):
            # An earlier process may have received it.
            self._sender.newest.note(self._address.chat_id, int(answered[1]))
        self._parts = await self._sender.records.parts(self._answer_id)

    # While the answer grows

    async def show(self, contents: Sequence[Content]) -> bool:
        """Show as much as the budget allows now. Return True if everything is shown. Raises TelegramError."""
        last = len(contents) - 1
        for number, content in enumerate(contents):
            if number in self._full and number < last:
                continue
            part = await self._found(number)
            if part is None or part.shown != content.digest:
                if not self.budget.take():
                    return False
                await self._put(number, part, content)
            if number < last:
                # A full message is not edited again before the end.
                self._full.add(number)
        return True

    def reopen(self) -> None:
        """Allow full messages to be edited again."""
        self._full.clear()

    # When the answer is complete

    async def deliver(self, contents: Sequence[Content]) -> None:
        """Send everything, however long it takes. Raises TelegramError if it can never be sent."""
        for number, content in enumerate(contents):
            await self._ensure(number, content)
        for number in sorted(set(self._parts) - set(range(len(contents))), reverse=True):
            await self._remove(number)

    async def _ensure(self, number: int, content: Content) -> None:
        while True:
            try:
                return await self._retried(lambda content=content: self._put_and_record(number, content))
            except BadRequestError as error:
                content = await self._after_refusal(number, content, error)

    async def _put_and_record(self, number: int, content: Content) -> None:
        part = await self._found(number)
        if part is None or part.shown != content.digest:
            await self.budget.wait()
            part = await self._put(number, part, content)
        await self._sender.records.set_part(self._answer_id, number, part)

    async def _after_refusal(self, number: int, content: Content, error: BadRequestError) -> Content:
        """Return the content to try next. Raises the error if nothing is left to try."""
        if error.kind == "no_message" and number in self._parts:
            # A person has deleted it.
            await self._set(number, None)
        elif error.kind == "no_thread" and self._address.is_private and self._address.thread_id is not None:
            self._address = Address(self._address.chat_id)
        elif error.kind in ("entities", "other") and content.body.entities:
            self._sender.logger.warning("a message is sent without its formatting: %s", error)
            return content.plain
        else:
            raise error
        return content

    async def _retried(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat the work while waiting helps. Raises TelegramError if it does not."""
        failures = 0
        while True:
            try:
                return await work()
            except FloodError as error:
                await self._sender.flooded(self._address.chat_id, error)
            except (UncertainError, UnreachableError, TokenError) as error:
                failures += 1
                self._sender.logger.info("a call will be retried: %s", error)
                await BACKOFF.wait(failures, self._sender.clock.sleep)

    async def _remove(self, number: int) -> None:
        """Delete a message that the final answer does not need. One that cannot be deleted stays."""

        async def delete() -> None:
            await self.budget.wait()
            await self._call("deleteMessage", {"message_id": self._parts[number].message_id})

        if self._parts[number].message_id is not None:
            with suppress(BadRequestError):
                await self._retried(delete)
        await self._set(number, None)

    # Single calls

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        return await self._sender.api.call(method, {"chat_id": self._address.chat_id, **params})

    async def _put(self, number: int, part: MessagePart | None, content: Content) -> MessagePart:
        if part is None or part.message_id is None:
            return await self._send(number, content)
        # Another process may have written the whole answer since, if this one was paused.
        await self._sender.records.check()
        # Until the call has returned, it is uncertain what the message shows.
        self._parts[number] = MessagePart(part.message_id)
        try:
            await self._call("editMessageText", {"message_id": part.message_id, **content.params()})
        except BadRequestError as error:
            if error.kind != "not_modified":
                raise
        self._parts[number] = MessagePart(part.message_id, None, content.digest)
        return self._parts[number]

    async def _send(self, number: int, content: Content) -> MessagePart:
        chat_id = self._address.chat_id
        await self._set(number, MessagePart(None, self._sender.newest.before(chat_id)))
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
        self._sender.newest.note(chat_id, message["message_id"])
        # Edits are not recorded, so the next process must not rely on what is shown before the answer is complete.
        await self._set(number, MessagePart(message["message_id"]))
        self._parts[number] = MessagePart(message["message_id"], None, content.digest)
        return self._parts[number]

    async def _set(self, number: int, part: MessagePart | None) -> None:
        if part is None:
            self._parts.pop(number, None)
        else:
            self._parts[number] = part
        await self._sender.records.set_part(self._answer_id, number, part)

    async def _found(self, number: int) -> MessagePart | None:
        """Return a message, after a search if its sending was cut off; None if there is none. Raises TelegramError."""
        part = self._parts.get(number)
        if part is None or part.message_id is not None:
            return part
        await self._sender.clock.sleep(_ARRIVAL_SECONDS)
        chat_id, newest, after = self._address.chat_id, self._sender.newest, part.sent_after or 0
        # Two lost messages of a chat must not be taken for one.
        async with newest.lock(chat_id):
            other_messages = await self._sender.records.message_ids(chat_id, after)
            # Others may have written before the call arrived.
            last = min(max(newest.before(chat_id), after) + _CANDIDATE_IDS, after + _MAX_CANDIDATE_IDS)
            for message_id in range(after + 1, last + 1) if after else ():
                if message_id not in other_messages and await self._is_ours(message_id):
                    newest.note(chat_id, message_id)
                    await self._set(number, MessagePart(message_id))
                    return self._parts[number]
        await self._set(number, None)
        return None

    async def _is_ours(self, message_id: int) -> bool:
        """Return True if the message exists and is the bot's own, by the harmless attempt to remove its buttons."""
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
                await self._sender.flooded(self._address.chat_id, error)
