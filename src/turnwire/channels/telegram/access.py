"""Who may ask: people and groups on the list, and whoever has paired with a code that the operator was shown.

Nobody becomes an owner by coming first. A code is in the server's log, holds for some minutes and for a few tries, and
is needed only as long as nobody may ask.
"""

import hashlib
import hmac
import logging
import secrets
import time
from typing import Literal

import msgspec
from msgspec import Struct

from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.rate_limits import Clock
from turnwire.channels.telegram.records import Records

# Without letters and digits that are mistaken for each other.
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
_CODE_LENGTH = 8
_TRIES = 5
_NOTE = "pairing"
_REFUSAL_SECONDS = 24 * 3600.0
_REFUSALS_AT_ONCE = 20

Outcome = Literal["paired", "wrong", "closed"]


class _Code(Struct, frozen=True):
    """Kept as a digest: whoever reads the file does not learn it."""

    digest: str
    until: float
    tries: int


class Access:
    def __init__(self, config: TelegramConfig, records: Records, clock: Clock, logger: logging.Logger) -> None:
        self._config = config
        self._records = records
        self._clock = clock
        self._logger = logger
        self._paired: list[int] = []
        self._refused: dict[int, float] = {}

    async def open(self) -> None:
        """Shows the operator a code if it is needed."""
        self._paired = await self._records.paired()
        if self.needs_pairing:
            await self._new_code()

    @property
    def is_possible(self) -> bool:
        return bool(self._config.allowed_users or self._paired)

    @property
    def needs_pairing(self) -> bool:
        return self._config.pairing and not self.is_possible

    @property
    def first(self) -> int | None:
        return next(iter([*self._config.allowed_users, *self._paired]), None)

    def allows(self, sender_id: int, chat_id: int) -> bool:
        return any(one in self._config.allowed_users or one in self._paired for one in (sender_id, chat_id))

    async def pair(self, code: str, sender_id: int, name: str) -> Outcome:
        """Whoever says the code may ask from now on."""
        if not self.needs_pairing:
            return "closed"
        known = await self._code()
        if known is None:
            # The operator may have been away when the last one was shown.
            await self._new_code()
            return "closed"
        if known.tries <= 0:
            return "closed"
        await self._set_code(_Code(known.digest, known.until, known.tries - 1))
        if not hmac.compare_digest(_digest(code), known.digest):
            return "wrong"
        await self._records.pair(sender_id, name)
        await self._set_code(None)
        self._paired.append(sender_id)
        self._logger.info("Telegram user %d may ask from now on", sender_id)
        return "paired"

    def may_refuse(self, sender_id: int) -> bool:
        """Whether a stranger is to be told so: once a day each, and not a crowd of them."""
        now = self._clock.now()
        self._refused = {one: at for one, at in self._refused.items() if now - at < _REFUSAL_SECONDS}
        if sender_id in self._refused or sum(now - at < 60 for at in self._refused.values()) >= _REFUSALS_AT_ONCE:
            return False
        self._refused[sender_id] = now
        return True

    async def _code(self) -> _Code | None:
        """The code that holds, if one does. One whose tries are used up is not replaced before its time is over."""
        note = await self._records.note(_NOTE)
        code = msgspec.json.decode(note, type=_Code | None) if note else None
        return code if code is not None and code.until > time.time() else None

    async def _new_code(self) -> None:
        code = "".join(secrets.choice(_LETTERS) for _ in range(_CODE_LENGTH))
        minutes = self._config.pairing_minutes
        await self._set_code(_Code(_digest(code), time.time() + minutes * 60, _TRIES))
        self._logger.warning(
            "nobody may ask this Telegram bot yet; send it /pair %s within %g minutes, or set allowed_users",
            code,
            minutes,
        )

    async def _set_code(self, code: _Code | None) -> None:
        await self._records.set_note(_NOTE, msgspec.json.encode(code).decode())


def _digest(code: str) -> str:
    return hashlib.sha256(code.strip().upper().replace("-", "").encode()).hexdigest()
