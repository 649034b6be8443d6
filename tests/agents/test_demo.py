"""The demonstration agent shows everything a turn can show."""

import pytest

from tests.core.desk import open_desk
from turnwire.agents import demo
from turnwire.core.contracts import Store
from turnwire.core.events import ResponseEvent, ToolResultEvent, UsageEvent


async def test_it_counts_and_remembers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_WORD_SECONDS", 0)
    monkeypatch.setattr(demo, "_STEP_SECONDS", 0)
    async with open_desk(store, demo.demo_agent) as desk:
        first = await desk.start("three small words")
        assert (await desk.end(first)).outcome == "completed"
        events = await desk.events(await desk.start("again", session_id=first.session_id))
    assert {type(event).__name__.removesuffix("Event") for event in events} >= {
        *("Status", "Reasoning", "ToolCall", "ToolProgress", "ToolResult", "Token", "Usage", "Response", "Done")
    }
    results = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert results == [1, {"earlier_messages": 1}]
    (usage,) = (event for event in events if isinstance(event, UsageEvent))
    (response,) = (event for event in events if isinstance(event, ResponseEvent))
    assert usage.input_tokens == 1
    assert response.tools_used == ("count_words", "recall")
    assert response.content.startswith("You sent 1 word, after 1 earlier message")
