"""The agents of a simulation. What they write can be checked: every step writes its number, and what it was sent."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

from tests.simulation.ledger import Ledger
from turnwire.core.contracts.agents import Agent
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, current_journal
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, Event, ToolCallEvent, ToolResultEvent
from turnwire.core.log.turns import Turn
from turnwire.core.run.inputs import current_inputs

Output = AsyncIterator[Event | str]


class AgentWorld:
    """The world outside of the servers, in which agents work."""

    def __init__(self, chooser: random.Random, ledger: Ledger, trace: Callable[..., None]) -> None:
        self._chooser = chooser
        self._ledger = ledger
        self._trace = trace

    async def work(self) -> None:
        await asyncio.sleep(self._chooser.choice((0.01, 0.03, 0.1, 0.4)))

    def begin(self, turn: Turn, key: str, call: JournaledCall) -> None:
        """Note that a call goes live: its start must be committed, so that nobody else can repeat it unknowingly."""
        entry = call._started
        self._trace("agent", "live", turn.id, key, entry.epoch)
        if (turn.id, entry.segment, entry.key, entry.epoch) not in self._ledger.started:
            self._ledger.broken.append(f"the call {entry.key} of {turn.id} went live before its start was committed")

    def agents(self) -> dict[str, Agent]:
        return {"journaled": JournaledAgent(self), "plain": PlainAgent(self), "asking": AskingAgent(self)}


def steps_of(message: str) -> int:
    """Return the steps that a message asks for; messages that were collected with it ask for nothing."""
    return int(message.split("\n")[0].split(":")[1])


class JournaledAgent:
    """A loop of model and tool calls with a journal. A model call writes the messages that were sent into the turn."""

    on_crash = "resume"

    def __init__(self, world: AgentWorld) -> None:
        self._world = world

    def repeats(self, tool: str) -> bool:
        return tool == "look"

    async def answer(self, turn: Turn) -> Output:
        journal, inputs = current_journal(), current_inputs()
        assert journal is not None
        assert inputs is not None
        place = journal.place("run")
        for step in range(steps_of(turn.message)):
            messages = await inputs.take(place)
            text = f"{step}{''.join(f'[{message}]' for message in messages)} "
            with await journal.begin_model(place, names=("journaled", "small")) as call:
                if call.is_live:
                    self._world.begin(turn, f"model {step}", call)
                    yield text[:1]
                    await self._world.work()
                    yield text[1:]
                    call.finish(text)
                elif not call.is_shown:
                    yield call.result
                    call.show()
            if step % 2:
                async for event in self._use_tool(turn, place, step):
                    yield event

    async def _use_tool(self, turn: Turn, place: str, step: int) -> AsyncIterator[Event]:
        journal = current_journal()
        assert journal is not None
        tool, call_id = ("look", "pay")[step % 4 == 3], f"c{step}"
        yield ToolCallEvent(call_id, tool, {"step": step})
        try:
            call = await journal.begin_tool(place, call_id, tool, {"step": step}, repeatable=tool == "look")
        except ToolDeniedError as denied:
            yield ToolResultEvent(call_id, tool, False, str(denied))
            return
        with call:
            if call.is_live:
                self._world.begin(turn, f"tool {step}", call)
                await self._world.work()
                call.finish(f"did {tool}")
        yield ToolResultEvent(call_id, tool, True, f"did {tool}")


class PlainAgent:
    """A generator that keeps no journal: when its worker is lost, its turn ends."""

    def __init__(self, world: AgentWorld) -> None:
        self._world = world

    async def answer(self, turn: Turn) -> Output:
        try:
            for step in range(steps_of(turn.message)):
                yield f"{step} "
                await self._world.work()
        finally:
            if turn.message.startswith("slow"):
                await asyncio.sleep(0.3)  # It takes a while to stop.


class AskingAgent:
    """A generator that waits for a person halfway."""

    def __init__(self, world: AgentWorld) -> None:
        self._world = world

    async def answer(self, turn: Turn) -> Output:
        steps = steps_of(turn.message)
        for step in range(steps):
            if step == steps // 2:
                await approval(ApprovalRequestEvent("c1", "pay", {"amount": steps}))
            yield f"{step} "
            await self._world.work()


def expected_text(message: str) -> str:
    """Return what a completed turn writes, without the messages that were sent into it."""
    return "".join(f"{step} " for step in range(steps_of(message)))
