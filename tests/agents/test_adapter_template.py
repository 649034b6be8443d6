"""The template of an adapter with a journal; the one without is in the agent contract."""

import asyncio
from typing import Any

import pytest

from tests.contracts.agent_cases import adapter_template as case
from tests.contracts.turns import BOUND
from tests.core.desk import completed_answer, lose_worker, open_actor_desk, wait_for_events, wait_until_suspended
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, conversation_of, model_server, says
from turnwire import ask
from turnwire.core.log.events import TokenEvent, ToolResultEvent
from turnwire.core.log.follow import fold_log
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED
MAX_LINES = 60


def build(server: ScriptedModel, *tools: Any) -> Any:
    return case.journaled.JournaledAcmeAdapter(case.build(server.url, tools, api="chat", timeout=BOUND).agent)


def test_template_has_at_most_sixty_lines() -> None:
    source = case.FOLDER / "adapter.py"
    assert len(source.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("fails", [False, True], ids=["returned", "raised"])
async def test_lost_turn_continues_and_repeats_no_finished_call(model_server: ScriptedModel, fails: bool) -> None:
    runs: list[str] = []

    async def look(city: str) -> dict[str, str]:
        """Look up the weather."""
        runs.append(city)
        if fails:
            raise LookupError("no window")
        return {"sky": "snow"}

    store = MemoryStore()
    model_server.plan(calls(("look", {"city": "Oslo"}), text="I look.", ids=["a1"]), says("It", asyncio.Event()))
    first = build(model_server, look)
    async with open_actor_desk(store, first) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("\n\nIt"))
        await lose_worker(desk)
    model_server.plan(says("It snows."))
    second = build(model_server, look)
    async with open_actor_desk(store, second) as desk:
        assert await completed_answer(desk, turn) == "I look.\n\nIt snows."
        results = [event for event in await desk.events(turn) if isinstance(event, ToolResultEvent)]
    assert (runs, len(model_server.requests), len(results)) == (["Oslo"], 3, 1)
    assert results[0].success is not fails
    earlier, later = map(conversation_of, model_server.bodies[1:])
    assert earlier == later
    await case.close(first)
    await case.close(second)


async def test_tool_of_the_template_can_ask(model_server: ScriptedModel) -> None:
    async def pay(to: str) -> str:
        """Pay somebody."""
        return f"paid {to} from {await ask('From which account?')}"

    model_server.plan(calls(("pay", {"to": "bob"}), text="I pay.", ids=["c1"]), says("Done."))
    agent = build(model_server, pay)
    async with open_actor_desk(MemoryStore(), agent) as desk:
        turn = await desk.start("Pay Bob.")
        await wait_until_suspended(desk, turn)
        (question,) = (await fold_log(desk.store, turn.id)).requests.open_questions
        await desk.runner.reply(turn.id, question.id, "spare")
        assert await completed_answer(desk, turn) == "I pay.\n\nDone."
    assert conversation_of(model_server.bodies[1])[-1] == ("result", ("c1", "paid bob from spare"))
    await case.close(agent)
