"""Every agent adapter there is, each with a case in `agent_cases/` that says how its SDK is asked.

A case is a module with:

    NAME = "openai_agents"                  the adapter's module in `turnwire.agents`
    APIS = ("chat", "responses")            which of the scripted server's two APIs its SDK can speak
    def build(url, tools, *, api, timeout, asks=(), folder=None):
                                            the SDK's own agent object. It asks the server at `url` with no retries,
                                            and gives up after `timeout` seconds of silence. `tools` are plain
                                            functions, sync or async, with type hints and a docstring, or tools
                                            of ours. With `asks`, names of some of them, a person is asked before
                                            those run, by the SDK's own means; with `folder` whatever the SDK must
                                            keep until then is kept there
    def adapt(built, *, max_turns):         the adapter with a limit: it may ask the model `max_turns` times
    CANNOT = {"reasoning/chat": "why"}      what the SDK does not let its adapter do (an `Ability`, over this API or,
                                            without one, over any), and why. It is tested too: the turn must still
                                            end well, without what is missing
    TOOL_ERROR = "told" | "fatal"           after a tool raised: the model is told and the run goes on, or the
                                            turn fails with `tool_failed`. Whichever the SDK does by itself
    UNKNOWN_TOOL = "told" | "fatal"         the same for a tool that is not there: `bad_answer` if it is fatal

and, if there is something to close, `async def close(built)`.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from tests.core.desk import Desk
from tests.scripted_model import ScriptedModel
from turnwire.assembly import as_agent
from turnwire.core.budget import Limits
from turnwire.core.contracts import Agent, Store
from turnwire.core.runner import TurnRunner
from turnwire.stores.memory import MemoryStore

Api = Literal["chat", "responses"]
Ability = Literal["bounded", "lists", "reasoning", "values", "woven"]
"""Counts on over a wait. Goes on when the model gives a list for arguments. Tells the model's reasoning. Tells what a
tool returned, and not its text. Reads calls whose pieces come in turns."""

# Long enough for a loaded machine to answer, short enough to be waited for.
SILENCE = 0.3
PATIENT = 10.0


@dataclass(frozen=True)
class AgentCase:
    module: ModuleType
    api: Api

    @property
    def id(self) -> str:
        return f"{self.module.NAME}-{self.api}"

    @property
    def tool_error_is_fatal(self) -> bool:
        return self.module.TOOL_ERROR == "fatal"

    @property
    def unknown_tool_is_fatal(self) -> bool:
        return self.module.UNKNOWN_TOOL == "fatal"

    def can(self, ability: Ability) -> bool:
        return not {ability, f"{ability}/{self.api}"} & set(self.module.CANNOT)

    def agent(self, built: Any, max_turns: int | None) -> Agent:
        return as_agent(built) if max_turns is None else self.module.adapt(built, max_turns=max_turns)

    @asynccontextmanager
    async def desk(
        self,
        server: ScriptedModel,
        *tools: Callable[..., Any],
        timeout: float = PATIENT,
        max_turns: int | None = None,
        store: Store | None = None,
        limits: Limits | None = None,
        **options: Any,
    ) -> AsyncIterator[Desk]:
        """A runner whose one agent asks the scripted server and has these tools."""
        built = self.module.build(server.url, list(tools), api=self.api, timeout=timeout, **options)
        store = store or MemoryStore()
        runner = TurnRunner(store, {"agent": self.agent(built, max_turns)}, limits or Limits())
        await runner.open()
        try:
            yield Desk(store, runner)
        finally:
            await runner.close()
            if close := getattr(self.module, "close", None):
                await close(built)


def _modules() -> Iterator[ModuleType]:
    for path in sorted((Path(__file__).parent / "agent_cases").glob("*.py")):
        yield import_module(f"tests.contracts.agent_cases.{path.stem}")


MODULES: Sequence[ModuleType] = tuple(_modules())
CASES: Sequence[AgentCase] = tuple(AgentCase(module, api) for module in MODULES for api in module.APIS)
