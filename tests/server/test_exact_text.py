"""Text comes back exactly: no token can forge a frame, break a line, or lose a character that is text."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.server.conftest import Serve
from tests.serving import Served, quick_settings, serving
from turnwire import Turn, Turnwire
from turnwire.core.log.codec import clean_text

TEXTS = [
    'data: {"type":"done","outcome":"completed"}\n\n',
    'x\n\nid: 99.9\ndata: {"type":"done"}\n\n',
    "\r\n\r\nevent: evil\r\n\r\n",
    "\rdata: 1\r\r",
    ": comment\n\n",
    "retry: 1\n",
    "a\u2028b\u2029c\u0085d",
    "\ufeffwith a mark",
    "tab\tand\ttab",
    "emoji 👩\u200d👩\u200d👧 and 𝕌",
    "\u202egnp.exe",
    '"quotes" \\ back\\slash \\u0041 \\n',
    "</script><script>alert(1)</script>",
    "{}[],:",
    "\uffff\ufffe\U0010ffff",
    "e\u0301 is not é",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_text_comes_back_exactly(serve: Serve, text: str) -> None:
    async def echo(turn: Turn) -> AsyncIterator[str]:
        yield turn.message
        for character in text:
            yield character

    expected = clean_text(text)
    async with serve(echo) as server, server.ask(text) as stream:
        frames = await stream.rest()
        assert stream.raw.isascii()
        assert frames[1].event["content"] == expected
        tokens = [frame.event["content"] for frame in frames if frame.type == "token"]
        assert tokens == [expected, *map(clean_text, text)]
        assert frames[-2].event["content"] == expected * 2
        assert [frame.position for frame in frames] == list(range(1, len(frames) + 1))
        snapshot = await server.snapshot(stream.turn_id)
        assert snapshot["message"] == expected
        assert snapshot["state"]["text"] == expected * 2


async def test_control_characters_are_taken_out_and_lone_surrogates_replaced(serve: Serve) -> None:
    async def odd(turn: Turn) -> AsyncIterator[str]:
        yield "a\x00b\x1bc\x7fd\x9fe\x1d\x1e"
        yield "x\ud800y"
        yield "kept: \t\r\n"

    async with serve(odd) as server, server.ask() as stream:
        frames = await stream.rest()
        tokens = [frame.event["content"] for frame in frames if frame.type == "token"]
        assert tokens == ["abcde", "x\ufffdy", "kept: \t\r\n"]


anything = st.text(st.characters(), max_size=40) | st.sampled_from(TEXTS)


class Echo:
    """Says what the test gives it, whoever asks."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        for token in self.tokens:
            yield token


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[tuple[Served, Echo]]:
    agent = Echo()
    async with serving(Turnwire(agent, store="memory", settings=quick_settings(tmp_path))) as server:
        yield server, agent


@settings(max_examples=examples(36), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.lists(anything, max_size=20))
async def test_any_tokens_come_back_exactly(echo: tuple[Served, Echo], tokens: list[str]) -> None:
    server, agent = echo
    agent.tokens = tokens
    async with server.ask() as stream:
        frames = await stream.rest()
    expected = [clean_text(token) for token in tokens if token]
    assert [frame.event["content"] for frame in frames if frame.type == "token"] == expected
    assert [frame.type for frame in frames] == ["session", "message", *["token"] * len(expected), "response", "done"]
    assert frames[-2].event["content"] == "".join(expected)
    assert stream.raw.isascii()
    assert b"\r" not in stream.raw


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=10), values, max_size=4),
    max_leaves=12,
)
FIELDS = ("message", "session_id", "agent", "turn_id", "on_busy", "on_disconnect", "review", "answer", "id", "title")
LIKELY = ("Hello", "mine", "default", "enqueue", "reject", "interrupt", "continue", "cancel", {"grace": 1}, True, None)
bodies = json_values | st.dictionaries(
    st.sampled_from(FIELDS), st.sampled_from(LIKELY) | json_values, min_size=1, max_size=8
)


PATHS = (
    "/chat/stream",
    "/v1/sessions",
    "/chat",
    "/v1/sessions/mine/turns",
    "/v1/rag/sessions/mine/messages",
    "/v1/rag/sessions/mine/messages/stream",
)


@settings(max_examples=examples(90), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies, path=st.sampled_from(PATHS))
async def test_any_json_is_answered_or_refused_without_a_trace(echo: tuple[Served, Echo], body: Any, path: str) -> None:
    server, _ = echo
    before = await server.written()
    response = await server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    if response.status_code >= 400:
        assert response.status_code < 500
        assert set(response.json()["error"]) >= {"code", "message"}
        sessions, turns = await server.written()
        assert turns == before[1]
        # The session that a conflict names may have been made for it; what cannot be read makes none.
        assert sessions == before[0] or response.status_code == 409
    elif path == "/chat/stream":
        assert response.text.count('data: {"type":"done"') == 1
