"""The threads of tools that block: enough for many turns, and bounded for each."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from tests.contracts.agents import AgentCase, case_params
from tests.contracts.turns import BOUND, followed
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire import Turnwire
from turnwire.core.log.events import DoneEvent
from turnwire.core.log.scope import TurnScope
from turnwire.server.messages import MessageBody
from turnwire.tools.threads import ToolThreads, TurnExecutor, install_executor, iterate_in_thread

__all__ = ["model_server"]

# More than the default executor of any machine has threads.
MANY = 34


def submit(threads: ToolThreads, turn_id: str, function: Any, principal: str = "ann") -> Future[Any]:
    """Submit a call as the code of this turn does."""

    def call() -> Future[Any]:
        TurnScope(turn_id, "session", principal).enter()
        return threads.submit(function)

    return copy_context().run(call)


class Hanging:
    """A function that hangs in two threads, until it may proceed."""

    def __init__(self) -> None:
        self.proceed = threading.Event()
        self.reached = threading.Barrier(3)

    def __call__(self) -> str:
        if not self.proceed.is_set():
            self.reached.wait(BOUND)
            self.proceed.wait(BOUND)
        return "done"


def test_calls_of_one_turn_take_only_its_share_of_the_threads() -> None:
    threads, hang = ToolThreads(per_turn=2), Hanging()
    hanging = [submit(threads, "one", hang) for _ in range(5)]
    hang.reached.wait(BOUND)
    assert submit(threads, "two", lambda: "done").result(BOUND) == "done"
    assert [future.running() for future in hanging] == [True, True, False, False, False]
    assert hanging[2].cancel()
    hang.proceed.set()
    assert [future.result(BOUND) for future in hanging if not future.cancelled()] == ["done"] * 4


def test_calls_of_many_turns_of_one_principal_take_only_its_share_of_the_threads() -> None:
    threads, hang = ToolThreads(per_turn=1, per_principal=2), Hanging()
    hanging = [submit(threads, f"turn {number}", hang) for number in range(5)]
    hang.reached.wait(BOUND)
    assert submit(threads, "other", lambda: "done", "bob").result(BOUND) == "done"
    assert [future.running() for future in hanging] == [True, True, False, False, False]
    hang.proceed.set()
    assert [future.result(BOUND) for future in hanging] == ["done"] * 5


def test_exception_of_a_call_is_the_callers_and_frees_its_thread() -> None:
    threads = ToolThreads(per_turn=1)

    def fail() -> None:
        raise LookupError

    failing = [submit(threads, "one", fail) for _ in range(2)]
    assert [type(future.exception(BOUND)) for future in failing] == [LookupError, LookupError]
    assert submit(threads, "one", lambda: "done").result(BOUND) == "done"


async def test_only_calls_of_turns_go_to_the_threads_of_tools() -> None:
    install_executor()
    assert not (await asyncio.to_thread(threading.current_thread)).name.startswith("turnwire-tool")
    TurnScope("turn", "session", "ann").enter()
    assert (await asyncio.to_thread(threading.current_thread)).name.startswith("turnwire-tool")


async def test_executor_of_the_application_is_kept() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="own") as own:
        asyncio.get_running_loop().set_default_executor(own)
        install_executor()
        assert (await asyncio.to_thread(threading.current_thread)).name.startswith("own")
        asyncio.get_running_loop().set_default_executor(TurnExecutor())


@pytest.mark.parametrize("case", case_params())
async def test_blocking_tool_of_every_sdk_runs_in_the_threads_of_its_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    names: list[str] = []

    def look(city: str) -> str:
        """Note the thread."""
        names.append(threading.current_thread().name)
        return f"Sunny in {city}"

    model_server.plan(calls(("look", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, look) as desk:
        install_executor()
        await desk.events(await desk.start())
    assert [name.rpartition("_")[0] for name in names] == ["turnwire-tool"]


async def test_iterator_in_threads_keeps_its_context_and_is_closed_when_it_is_left() -> None:
    variable, closed = ContextVar("variable", default=0), threading.Event()

    def numbers() -> Iterator[int]:
        try:
            while True:
                variable.set(variable.get() + 1)
                yield variable.get()
        finally:
            closed.set()

    async with aclosing(iterate_in_thread(numbers())) as items:
        assert [await anext(items) for _ in range(3)] == [1, 2, 3]
    assert closed.wait(BOUND)
    assert [item async for item in iterate_in_thread(iter("ab"))] == ["a", "b"]


# That the tools of every SDK run in these threads is tested above.
@pytest.mark.rotated("case")
@pytest.mark.parametrize("case", case_params())
async def test_blocking_tools_of_many_turns_run_at_once(case: AgentCase, model_server: ScriptedModel) -> None:
    everyone = threading.Barrier(MANY)

    def look(city: str) -> str:
        """Block until the tools of all turns run."""
        everyone.wait(BOUND)
        return f"Sunny in {city}"

    def answer(request: Any) -> Any:
        has_result = "Sunny in Oslo" in str(request.body)
        return says("Sunny.") if has_result else calls(("look", {"city": "Oslo"}))

    model_server.plan(*[answer] * MANY * 2)
    built = case.module.build(model_server.url, [look], api=case.api, timeout=BOUND)
    server = Turnwire(agent=built, store="memory")
    async with server.lifespan():
        accepted = [await server.start("ann", MessageBody.model_validate({"message": "Oslo?"})) for _ in range(MANY)]
        ends = [(await followed(server.store, each.record.id))[-1].event for each in accepted]
    assert [end.outcome for end in ends if isinstance(end, DoneEvent)] == ["completed"] * MANY
    if case.module.NAME != "chat_completions":  # Turnwire closes its own agent.
        await case.module.close(built)
