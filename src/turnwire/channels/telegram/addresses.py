"""Where an answer goes: a chat, or one topic of it."""

from typing import Self

from msgspec import Struct


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
