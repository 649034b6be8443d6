"""Tool calls written out as text: recognised however they are cut, and never taken for anything else."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.agents.text_tool_calls import TextToolCalls

TOOLS = ("weather", "search")
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
OSLO = [("weather", {"city": "Oslo"})]


def read(pieces: Sequence[str], tools: Sequence[str] = TOOLS) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text of a reply that is shown, and its calls."""
    spoken = TextToolCalls(tools)
    shown = "".join(map(spoken.feed, pieces))
    rest, wishes = spoken.end()
    return shown + rest, [(wish.tool, json.loads(wish.arguments)) for wish in wishes]


@pytest.mark.parametrize(
    ("reply", "shown", "calls"),
    [
        (CALL, "", OSLO),
        (f"\n {CALL}\n", "", OSLO),
        ('{"tool": "weather", "args": {"city": "Oslo"}}', "", OSLO),
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', "", OSLO),
        ('{"arguments": {"city": "Oslo"}, "name": "weather"}', "", OSLO),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', "", OSLO),
        ('{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}', "", OSLO),
        (f'{{"tool_calls": [{CALL}, {{"name": "search"}}]}}', "", [*OSLO, ("search", {})]),
        (f"[{CALL}, {CALL}]", "", OSLO * 2),
        (f"```json\n{CALL}\n```", "", OSLO),
        (f"```\n{CALL}\n```\n", "", OSLO),
        (f"I will look it up.\n\n```json\n{CALL}\n```", "I will look it up.\n\n", OSLO),
        (f"```python\nprint()\n```\nNow:\n```json\n{CALL}\n```", "```python\nprint()\n```\nNow:\n", OSLO),
    ],
)
def test_a_call_is_recognised_and_not_shown(reply: str, shown: str, calls: Any) -> None:
    assert read([reply]) == (shown, calls)
    assert read(list(reply)) == (shown, calls)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Sunny.",
        '{"name": "delete_everything", "arguments": {}}',
        '{"name": "weather", "arguments": [1]}',
        '{"name": "weather", "arguments": {"city": "Os',
        '{"city": "Oslo", "sky": "clear"}',
        f'[{CALL}, {{"name": "delete_everything"}}]',
        f"{CALL} is how you call it.",
        f"Call it like this: {CALL}",
        f"For example:\n```json\n{CALL}\n```\nThat is all.",
        '```json\n{"name": "Ada"}\n```',
        "```python\nprint()\n```",
        "```",
        "[1] Ada. Sunny.",
        "{}",
        "[]",
        "Inline ```json``` is no fence.",
        "one\n``two``\n`three`\n",
    ],
)
def test_everything_else_is_text(reply: str) -> None:
    assert read([reply]) == (reply, [])
    assert read(list(reply)) == (reply, [])


def test_nothing_is_held_back_when_there_are_no_tools() -> None:
    spoken = TextToolCalls(())
    assert spoken.feed(CALL) == CALL


@pytest.mark.parametrize(
    "pieces",
    [
        ["Sunny", " in\n", "Oslo."],
        ['{"ci', 'ty": "Oslo"'],
        ["[1", "] Ada"],
        ["```python", "\nprint()", "\n"],
        ['{"name": "' + "x" * 10_000, "y"],
    ],
    ids=lambda pieces: pieces[0][:10],
)
def test_text_passes_as_soon_as_it_cannot_be_a_call(pieces: list[str]) -> None:
    spoken = TextToolCalls(TOOLS)
    shown = "".join(map(spoken.feed, pieces))
    assert "".join(pieces).startswith(shown)
    assert shown.strip() == "".join(pieces).strip()


BITS = st.sampled_from([CALL, "```json", "```", "\n", " ", "{", "[", "`", '"name"', ":", "Sunny", '{"a": 1}', "]", "}"])


@given(bits=st.lists(BITS, max_size=8), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_how_a_reply_is_cut_changes_nothing(bits: list[str], cuts: list[int]) -> None:
    reply = "".join(bits)
    places = sorted({0, *(cut for cut in cuts if cut < len(reply)), len(reply)})
    pieces = [reply[start:end] for start, end in pairwise(places)]
    shown, calls = read(pieces)
    assert (shown, calls) == read([reply])
    assert reply.startswith(shown)
    assert calls or shown == reply
