"""How a call of the Bot API can fail, by what is to be done about it.

TelegramError
├── FloodError           too many calls: nothing may be sent there for `retry_after` seconds
├── BadRequestError      refused as it is; `kind` says why, where that is known
├── ForbiddenError       the bot was blocked, or is not in that chat any more
├── TokenError           there is no such bot
├── ConflictError        somebody else takes this bot's updates
├── UnreachableError     it has not left this machine: it may be tried again
└── UncertainError       it may have been done or not: only what does no harm twice may be tried again

No message holds the token, nor an address that it is part of.
"""

from typing import Literal

BadRequestKind = Literal["not_modified", "no_message", "entities", "too_long", "no_thread", "no_chat", "other"]

# As the server words them; the first that is found counts.
_KINDS: tuple[tuple[str, BadRequestKind], ...] = (
    ("message is not modified", "not_modified"),
    ("message to edit not found", "no_message"),
    ("message can't be edited", "no_message"),
    ("message_id_invalid", "no_message"),
    ("message identifier is not specified", "no_message"),
    ("message to delete not found", "no_message"),
    ("message can't be deleted", "no_message"),
    ("can't parse entities", "entities"),
    ("entity", "entities"),
    ("message is too long", "too_long"),
    ("message_too_long", "too_long"),
    ("message thread not found", "no_thread"),
    ("chat not found", "no_chat"),
    ("group chat was upgraded", "no_chat"),
)


class TelegramError(Exception):
    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class FloodError(TelegramError):
    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many calls; the next one in {retry_after:g} s")
        self.retry_after = retry_after


class BadRequestError(TelegramError):
    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.kind = _kind(description.casefold())


def _kind(description: str) -> BadRequestKind:
    for words, kind in _KINDS:
        if words in description:
            return kind
    return "other"


class ForbiddenError(TelegramError): ...


class TokenError(TelegramError): ...


class ConflictError(TelegramError): ...


class UnreachableError(TelegramError): ...


class UncertainError(TelegramError): ...
