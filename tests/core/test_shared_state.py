"""`emit_state()`: snapshots, patches, and the state that a log folds into."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import jsonpatch  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.contracts.turns import BOUND
from tests.core.desk import open_desk
from turnwire import Turn, emit_state
from turnwire.core.contracts.stores import Store
from turnwire.core.log.codec import log_event
from turnwire.core.log.events import CustomEvent, Event, RestartEvent, SessionEvent
from turnwire.core.log.shared_state import apply_patch, make_patch, state_event
from turnwire.core.log.state import TurnFold

KEYS = st.text(alphabet="ab/~0", max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def changes(events: list[Event]) -> list[Any]:
    return [event.data for event in events if isinstance(event, CustomEvent)]


def exact(value: Any) -> str:
    """Return a form in which 1 and True differ."""
    return repr(value)


@given(VALUES, VALUES)
def test_patch_makes_one_value_of_another_for_us_and_for_others(before: Any, after: Any) -> None:
    patch = make_patch(before, after)
    assert exact(_sorted(apply_patch(before, patch))) == exact(_sorted(after))
    assert exact(_sorted(jsonpatch.apply_patch(before, patch))) == exact(_sorted(after))
    assert make_patch(after, after) == []


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


async def test_state_is_written_whole_and_then_by_its_changes(store: Store) -> None:
    steps = [{"title": f"step {number}", "done": False} for number in range(5)]

    async def agent(turn: Turn) -> AsyncIterator[str]:
        state: dict[str, Any] = {"steps": steps, "phase": "plan \ud800"}
        emit_state(state)
        emit_state(state)
        state["phase"] = "work"
        emit_state(state)
        state["steps"] = [{**step, "done": True} for step in steps[:1]] + steps[1:]
        await asyncio.to_thread(emit_state, state)
        emit_state({})
        emit_state(["another"])
        yield "Done."

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        state = await store.turn_state(turn.id)
    assert changes(events) == [
        {"snapshot": {"steps": steps, "phase": "plan \ufffd"}},
        {"delta": [{"op": "replace", "path": "/phase", "value": "work"}]},
        {"delta": [{"op": "replace", "path": "/steps/0/done", "value": True}]},
        {"snapshot": {}},
        {"snapshot": ["another"]},
    ]
    assert state is not None
    assert state.shared_state == ["another"]


class Plan(BaseModel):
    done: bool


@dataclass
class Board:
    plan: Plan


async def test_models_and_dataclasses_are_states_and_other_objects_are_refused(store: Store) -> None:
    refused: list[Exception] = []

    async def agent(turn: Turn) -> AsyncIterator[str]:
        emit_state(Board(Plan(done=True)))
        for value in (None, {"object": object()}):
            with pytest.raises(TypeError) as error:
                emit_state(value)
            refused.append(error.value)
        yield "Done."

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert changes(events) == [{"snapshot": {"plan": {"done": True}}}]
    assert len(refused) == 2


async def test_state_outside_a_turn_is_not_written_to_a_turn_that_runs(store: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def agent(turn: Turn) -> AsyncIterator[str]:
        begun.set()
        await go_on.wait()
        yield "inside"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        async with asyncio.timeout(BOUND):
            await begun.wait()
        emit_state({"alone": True})
        go_on.set()
        events = await desk.events(turn)
    assert changes(events) == []


def test_restart_takes_back_the_state_and_the_next_one_is_whole() -> None:
    fold = TurnFold()
    opening = SessionEvent("s", "t", "a")
    large = {"items": list(range(50)), "phase": "first"}
    first = state_event(None, large)
    second = state_event(large, {**large, "phase": "second"})
    assert first is not None
    assert second is not None
    assert "delta" in second.data
    for position, event in enumerate((opening, first, second), 1):
        fold.add(log_event(event, position, 1))
    assert fold.state().shared_state["phase"] == fold.known_state["phase"] == "second"
    fold.add(log_event(RestartEvent(2, "crash"), 4, 1))
    assert fold.state().shared_state == large
    assert fold.known_state is None


def test_foreign_event_of_the_name_leaves_the_state() -> None:
    fold = TurnFold()
    fold.add(log_event(SessionEvent("s", "t", "a"), 1, 1))
    for position, data in enumerate(
        ({"snapshot": {"a": 1}}, "text", {"delta": [{"op": "remove", "path": "/b"}]}, {}), 2
    ):
        fold.add(log_event(CustomEvent("turnwire.state", data), position, 1))
    assert fold.state().shared_state == {"a": 1}
