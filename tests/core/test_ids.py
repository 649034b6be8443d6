"""Ids."""

import time
import uuid

import pytest

from turnwire.core import ids
from turnwire.core.ids import is_own_id, new_id


def test_id_is_a_uuid7_that_starts_with_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= (made.int >> 80) <= time.time_ns() // 1_000_000 + 1_000


def test_ids_grow_within_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() + 10**12
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_grow_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    assert new_id() > first


def test_is_own_id_rejects_external_ids() -> None:
    assert all(is_own_id(new_id()) for _ in range(100))
    for foreign in ("", "chat-1", str(uuid.uuid4()), new_id().upper(), new_id() + "\n", f"x{new_id()}"):
        assert not is_own_id(foreign)
