"""Ids: UUIDv7, sortable by time, with 62 random bits at the end."""

import re
import secrets
import time

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_last = 0


def new_id() -> str:
    """Return a new id, greater than every id that this process has made before."""
    global _last
    # 48 bits of milliseconds, then 12 bits that keep ids of one millisecond in order.
    _last = max(time.time_ns() // 1_000_000 << 12, _last + 1)
    value = (_last >> 12) << 80 | 0x7 << 76 | (_last & 0xFFF) << 64 | 0b10 << 62 | secrets.randbits(62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_own_id(text: str) -> bool:
    """Return True if the id has Turnwire's form; any other is a client's external id."""
    return _UUID7.fullmatch(text) is not None
