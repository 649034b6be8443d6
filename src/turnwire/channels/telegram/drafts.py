"""Telegram's own way to show an answer that is being made: a draft, in private chats only.

It is gone 30 s after its last update, and must end as a message. Clients turn it into that message without a flicker
only if both begin alike, so a draft is the bare beginning of the answer, never rewritten, and just before the message
comes one that equals it. Not the default: some clients let the user write nothing while a draft is there.
"""

import random

from turnwire.channels.telegram.addresses import Address
from turnwire.channels.telegram.budget import ChatBudget
from turnwire.channels.telegram.desk import Desk
from turnwire.channels.telegram.failures import BadRequestError, FloodError, TelegramError
from turnwire.channels.telegram.formatted import LIMIT, Formatted

INTERVAL_SECONDS = 0.8
HEARTBEAT_SECONDS = 20.0


class Draft:
    def __init__(self, desk: Desk, address: Address) -> None:
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
