"""Access control: people and groups on the list, and people who have paired with a code.

The first person to write does not become the owner: pairing needs a code. The server logs a code while nobody has
access; it is valid for some minutes and a few tries.
"""

import hashlib
import hmac
import logging
import secrets
import time
from typing import Literal

import msgspec
from msgspec import Struct

from turnwire.channels.telegram.client import Clock
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.records import Records

# Without letters and digits that are easily confused.
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
_CODE_LENGTH = 8
_TRIES = 5
_CODE, _PAIRED = "pairing", "paired"
_REFUSAL_SECONDS = 24 * 3600.0
_MAX_REFUSALS_PER_MINUTE = 20

Outcome = Literal["paired", "wrong", "closed"]


class _Code(Struct, frozen=True):
    """A pairing code, stored as a digest."""

    digest: str
    until: float
    tries: int


class Access:
    """The people and groups with access, and the pairing code while there are none."""

    def __init__(self, config: TelegramConfig, records: Records, clock: Clock, logger: logging.Logger) -> None:
        self._config = config
        self._records = records
        self._clock = clock
        self._logger = logger
        self._paired: list[int] = []
        self._refused: dict[int, float] = {}

    async def open(self) -> None:
        """Load the pairings, and log a code if nobody has access."""
        self._paired = msgspec.json.decode(await self._records.note(_PAIRED) or "[]", type=list[int])
        if self.needs_pairing:
            await self._new_code()

    @property
    def has_users(self) -> bool:
        return bool(self._config.allowed_users or self._paired)

    @property
    def needs_pairing(self) -> bool:
        return self._config.pairing and not self.has_users

    @property
    def first_user(self) -> int | None:
        return next(iter([*self._config.allowed_users, *self._paired]), None)

    def allows(self, sender_id: int, chat_id: int) -> bool:
        return not {sender_id, chat_id}.isdisjoint((*self._config.allowed_users, *self._paired))

    async def pair(self, code: str, sender_id: int) -> Outcome:
        """Give the sender access if the code is right."""
        if not self.needs_pairing:
            return "closed"
        valid = await self._code()
        if valid is None:
            # The operator may have missed the last one.
            await self._new_code()
            return "closed"
        if valid.tries <= 0:
            return "closed"
        await self._set_code(_Code(valid.digest, valid.until, valid.tries - 1))
        if not hmac.compare_digest(_digest(code), valid.digest):
            return "wrong"
        self._paired.append(sender_id)
        await self._records.set_note(_PAIRED, msgspec.json.encode(self._paired).decode())
        await self._set_code(None)
        self._logger.info("Telegram user %d has paired and has access now", sender_id)
        return "paired"

    def may_refuse(self, sender_id: int) -> bool:
        """Return True if this stranger should get a refusal: once a day each, and few a minute in all."""
        now = self._clock.now()
        self._refused = {user_id: at for user_id, at in self._refused.items() if now - at < _REFUSAL_SECONDS}
        if (
            sender_id in self._refused
            or sum(now - at < 60 for at in self._refused.values()) >= _MAX_REFUSALS_PER_MINUTE
        ):
            return False
        self._refused[sender_id] = now
        return True

    async def _code(self) -> _Code | None:
        """Return the code until it expires, also without tries left: a guesser has to wait for the next one."""
        note = await self._records.note(_CODE)
        code = msgspec.json.decode(note, type=_Code | None) if note else None
        return code if code is not None and code.until > time.time() else None

    async def _new_code(self) -> None:
        code = "".join(secrets.choice(_LETTERS) for _ in range(_CODE_LENGTH))
        minutes = self._config.pairing_minutes
        await self._set_code(_Code(_digest(code), time.time() + minutes * 60, _TRIES))
        self._logger.warning(
            "nobody has access to this Telegram bot yet; send it /pair %s within %g minutes, or set allowed_users",
            code,
            minutes,
        )

    async def _set_code(self, code: _Code | None) -> None:
        await self._records.set_note(_CODE, msgspec.json.encode(code).decode())


def _digest(code: str) -> str:
    return hashlib.sha256(code.strip().upper().replace("-", "").encode()).hexdigest()
