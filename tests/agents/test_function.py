"""A plain async function as an agent."""

from tests.core.desk import Desk
from turnwire.agents.loader import as_agent
from turnwire.core.budget import Limits
from turnwire.core.contracts import Agent
from turnwire.core.emit import emit
from turnwire.core.events import Event, ResponseEvent, StatusEvent, TokenEvent
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import Turn
from turnwire.stores.memory import MemoryStore


async def answered(agent: Agent) -> list[Event]:
    store = MemoryStore()
    runner = TurnRunner(store, {"agent": agent}, Limits())
    await runner.open()
    try:
        desk = Desk(store, runner)
        return await desk.events(await desk.start("good morning"))
    finally:
        await runner.close()


async def test_what_it_returns_is_the_answer() -> None:
    async def answer(turn: Turn) -> str:
        emit(StatusEvent("thinking"))
        return f"You said: {turn.message}"

    events = await answered(as_agent(answer))
    assert events[2:4] == [StatusEvent("thinking"), TokenEvent("You said: good morning")]
    assert isinstance(events[4], ResponseEvent)


async def test_it_may_say_everything_on_the_way() -> None:
    async def answer(turn: Turn) -> None:
        for word in turn.message.split():
            emit(TokenEvent(word))

    events = await answered(as_agent(answer))
    assert events[2:4] == [TokenEvent("good"), TokenEvent("morning")]
    response = events[4]
    assert isinstance(response, ResponseEvent)
    assert response.content == "goodmorning"


async def test_an_object_may_have_it_as_its_method() -> None:
    class Greeter:
        async def answer(self, turn: Turn) -> str:
            return "hello"

    assert (await answered(as_agent(Greeter())))[2] == TokenEvent("hello")
