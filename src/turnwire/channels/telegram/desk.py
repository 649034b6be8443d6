"""What everything that is sent has in common, and what a message consists of."""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.channels.telegram.addresses import Address
from turnwire.channels.telegram.budget import Budgets
from turnwire.channels.telegram.client import BotApi
from turnwire.channels.telegram.clock import Clock
from turnwire.channels.telegram.failures import FloodError
from turnwire.channels.telegram.formatted import Formatted
from turnwire.channels.telegram.records import Records

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


class Desk(Struct, frozen=True):
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
