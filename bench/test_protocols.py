"""Tests of the tables of wires and protocols: whole logs on every wire, and one turn per request."""

import json

import pytest

from bench.job import Job
from bench.logs import as_stored, typical_log
from bench.tables.protocols import ag_ui, ai_sdk
from bench.tables.wires import every_wire
from turnwire.core.log.codec import LoggedEvent

TOKENS = (" one", " two", " three")


def written(wire: str, log: list[LoggedEvent]) -> bytes:
    encoder = every_wire()[wire].encoder()
    return b"".join(encoder.frame(logged) for logged in log)


@pytest.mark.parametrize("wire", every_wire())
def test_encoded_log_has_every_token_on_every_wire(wire: str) -> None:
    text = written(wire, typical_log(TOKENS)).decode()
    positions = [text.find(token) for token in TOKENS]
    assert -1 not in positions
    assert positions == sorted(positions)


@pytest.mark.parametrize("wire", every_wire())
def test_stored_log_is_encoded_to_the_same_bytes(wire: str) -> None:
    log = typical_log(TOKENS)
    stored = as_stored(log)
    assert all(logged.decoded is None for logged in stored)
    assert written(wire, stored) == written(wire, log)


@pytest.mark.parametrize("body", [ai_sdk, ag_ui])
def test_every_request_starts_its_own_turn(body: object) -> None:
    assert callable(body)
    job = Job(0, "/", "token", streams=1, tokens=1, body=json.dumps(body("yield 1")))
    first, second = (json.loads(job.request().partition(b"\r\n\r\n")[2]) for _ in range(2))
    for name in {"id", "threadId", "runId"} & first.keys():
        assert first[name] != second[name]
    assert first["messages"][0]["id"] != second["messages"][0]["id"]
