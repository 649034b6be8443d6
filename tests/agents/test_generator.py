"""An async generator function as an agent."""

from collections.abc import AsyncIterator

from tests.core.desk import open_desk
from turnwire.agents.loader import GeneratorAgent
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import Event, StatusEvent, TokenEvent
from turnwire.core.log.turns import Turn

TURN = Turn(id="t1", session_id="s1", principal="ann", message="hello")


async def greeter(turn: Turn) -> AsyncIterator[Event | str]:
    yield StatusEvent("thinking")
    yield f"{turn.message} yourself"


async def test_it_answers_with_what_the_function_yields() -> None:
    events = [event async for event in GeneratorAgent(greeter).answer(TURN)]
    assert events == [StatusEvent("thinking"), "hello yourself"]


async def test_each_turn_gets_an_answer_of_its_own() -> None:
    agent = GeneratorAgent(greeter)
    first, second = agent.answer(TURN), agent.answer(TURN)
    assert await anext(first) == await anext(second)
    assert [event async for event in first] == [event async for event in second]


async def test_text_becomes_tokens(store: Store) -> None:
    async with open_desk(store, greeter) as desk:
        events = await desk.events(await desk.start("hi"))
    assert events[2:4] == [StatusEvent("thinking"), TokenEvent("hi yourself")]
