"""The history of a turn: trimmed between turns, and always valid for model providers."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.desk import AgentEvents, Desk, open_desk
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import StatusEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.history import HISTORY_TRIMMED, Exchange, clip, estimate, exchanges, size, trim
from turnwire.core.log.turns import Message, Step, ToolRequest, Turn, TurnState

# Estimates


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("tea", 1),
        ("four", 1),
        ("fives", 2),
        ("a" * 4_000, 1_000),
        ("茶", 1),
        ("日本語の文章です", 8),
        ("한국어", 3),
        ("naïve café", 3),
        ("tea 茶 tea 茶", 5),
    ],
)
def test_estimate_counts_four_characters_or_one_dense_character_as_a_token(text: str, tokens: int) -> None:
    assert estimate(text) == tokens


def test_size_counts_tool_arguments() -> None:
    short, long = ((Message("assistant", "", (ToolRequest("c", "t", {"text": text}),)),) for text in ("", "a" * 400))
    assert 100 <= size(long) - size(short) <= 101


# Trimming

words = st.text(alphabet="abc 茶", max_size=200)
steps = st.builds(
    lambda number, result, state: Step(
        kind="tool", id=f"c{number}", name="find", position=number, answer_offset=0, args={}, result=result, state=state
    ),
    st.integers(3, 9),
    st.one_of(words, st.lists(words, max_size=3), st.none()),
    st.sampled_from(["succeeded", "failed", "running", "waiting"]),
)
states = st.builds(
    lambda message, text, steps, outcome: TurnState(message=message, text=text, steps=steps, outcome=outcome),
    words,
    words,
    st.lists(steps, max_size=3, unique_by=lambda step: step.id),
    st.sampled_from(["completed", "failed", "cancelled", "interrupted"]),
)
conversations = st.lists(states, max_size=8).map(exchanges)


def total(turns: Sequence[Exchange]) -> int:
    return sum(map(size, turns))


def without_results(turn: Exchange) -> list[Message]:
    return [message if message.role != "tool" else Message("tool", "", call_id=message.call_id) for message in turn]


@given(conversations, st.integers(1, 600))
def test_trim_keeps_as_many_whole_newest_turns_as_fit(turns: list[Exchange], limit: int) -> None:
    trimmed = trim(turns, limit)
    if turns and size(turns[-1]) > limit:
        assert len(trimmed) == 1
    else:
        assert trimmed == turns[len(turns) - len(trimmed) :]
        assert total(trimmed) <= limit
        assert len(trimmed) == len(turns) or total(turns[-len(trimmed) - 1 :]) > limit


@given(conversations, st.integers(1, 600))
def test_trim_stays_within_the_limit_if_shortened_results_allow_it(turns: list[Exchange], limit: int) -> None:
    trimmed = trim(turns, limit)
    if turns:
        shortest = [
            message if message.role != "tool" else Message("tool", clip(message.content, 0), call_id=message.call_id)
            for message in turns[-1]
        ]
        assert total(trimmed) <= max(limit, size(shortest))


@given(conversations, st.integers(1, 600))
def test_trim_of_one_long_turn_shortens_only_its_results(turns: list[Exchange], limit: int) -> None:
    for whole, trimmed in zip(turns[::-1], trim(turns, limit)[::-1], strict=False):
        assert without_results(trimmed) == without_results(whole)
        for before, after in zip(whole, trimmed, strict=True):
            assert after == before or before.content.startswith(after.content.removesuffix(" … [shortened]"))


@given(conversations, st.integers(0, 600))
def test_trimmed_history_is_valid_for_model_providers(turns: list[Exchange], limit: int) -> None:
    messages = [message for turn in trim(turns, limit) for message in turn]
    assert not messages or messages[0].role == "user"
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id in open_calls
            open_calls.remove(message.call_id or "")
        else:
            assert not open_calls
            open_calls = [call.call_id for call in message.tool_calls]
    assert not open_calls


@given(conversations)
def test_trim_without_a_limit_keeps_everything(turns: list[Exchange]) -> None:
    assert trim(turns, 0) == turns


@given(conversations, st.integers(1, 600))
def test_trim_does_not_modify_its_input(turns: list[Exchange], limit: int) -> None:
    before = [tuple(turn) for turn in turns]
    trim(turns, limit)
    assert turns == before


# Histories of turns


async def run_turn(desk: Desk, session_id: str, message: str) -> list[str]:
    """Run a turn and return its status texts."""
    events = await desk.events(await desk.start(message, session_id=session_id))
    return [event.text for event in events if isinstance(event, StatusEvent)]


async def test_history_over_the_token_limit_omits_the_oldest_turns_with_one_status(store: Store) -> None:
    histories: list[list[str]] = []

    async def agent(turn: Turn) -> AgentEvents:
        histories.append([message.content for message in turn.history if message.role == "user"])
        yield "x" * 380

    # A turn is about 25 + 95 + 8 tokens, so three of them fit.
    async with open_desk(store, agent, history_tokens=400) as desk:
        session_id = await desk.session()
        statuses = [await run_turn(desk, session_id, f"{number}" * 100) for number in range(1, 7)]
        assert statuses == [[], [], [], [], [HISTORY_TRIMMED], []]
        assert ["".join(text[0] for text in history) for history in histories] == ["", "1", "12", "123", "234", "345"]


async def test_history_over_the_turn_limit_omits_the_oldest_turns_with_one_status(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield str(len(turn.history))

    async with open_desk(store, agent, history_turns=2) as desk:
        session_id = await desk.session()
        assert [await run_turn(desk, session_id, "hi") for _ in range(5)] == [[], [], [], [HISTORY_TRIMMED], []]


async def test_history_of_zero_turns_is_empty_without_a_status(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield str(turn.history)

    async with open_desk(store, agent, history_turns=0) as desk:
        session_id = await desk.session()
        assert [await run_turn(desk, session_id, "hi") for _ in range(3)] == [[], [], []]


async def test_long_result_is_shortened_in_the_history_and_whole_in_the_log(store: Store) -> None:
    histories: list[tuple[Message, ...]] = []

    async def agent(turn: Turn) -> AgentEvents:
        histories.append(turn.history)
        yield ToolCallEvent("c1", "read", {})
        yield ToolResultEvent("c1", "read", True, "a" * 10_000)
        yield "Read."

    async with open_desk(store, agent, history_tokens=500) as desk:
        session_id = await desk.session()
        first = await desk.start("Read it", session_id=session_id)
        await desk.end(first)
        assert await run_turn(desk, session_id, "And now?") == []
        roles = [message.role for message in histories[1]]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert 1_000 < len(histories[1][2].content) < 2_000
        assert size(histories[1]) <= 500
        state = await store.turn_state(first.id)
        assert state is not None
        assert state.steps[0].result == "a" * 10_000
