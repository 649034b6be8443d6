"""The cases of the agent contract: one module in `agent_cases/` for every agent adapter.

A case is a module with:

    NAME = "openai_agents"                  the adapter's module in `turnwire.agents`
    APIS = ("chat", "responses")            the APIs of the scripted server that the SDK can speak
    def build(url, tools, *, api, timeout, asks=(), folder=None):
                                            the SDK's own agent object. It calls the server at `url` without retries
                                            and gives up after `timeout` seconds of silence. `tools` are plain
                                            functions, sync or async, with type hints and a docstring, or tools
                                            of Turnwire. The tools named in `asks` need approval, by the SDK's own
                                            means; the SDK keeps its state in `folder` until then
    def adapt(built, *, max_turns):         the adapter with a limit of `max_turns` model calls
    def allow(built, options):              the adapter that takes these model options of clients
    CANNOT = {"reasoning/chat": "why"}      the abilities that the SDK denies its adapter (over this API or, without
                                            one, over any), and why. The turn must still end well without them,
                                            which is tested too
    TOOL_ERROR = "reported" | "fatal"       the SDK's behaviour after a tool raised: the model gets the error and the
                                            run continues, or the turn fails with `tool_failed`
    UNKNOWN_TOOL = "reported" | "fatal"     the same for a tool that does not exist: `bad_answer` if it is fatal

and, if there is something to close, `async def close(built)`; if its tests need more than others, `NEEDS`, the names
of their marks. The module of an SDK has

    def delegate(url, tools, *, api, timeout):
                                            an agent with one tool, `ask_scout(question)`, which runs the agent "Scout",
                                            which has `tools`
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from tests.core.desk import Desk
from tests.examples import runs_all, runs_fast
from tests.scripted_model import ScriptedModel
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import Store
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore

Api = Literal["chat", "responses", "gemini", "messages"]
Ability = Literal[
    "approvals",
    "bounded",
    "edits",
    "files",
    "fragments",
    "limits",
    "lists",
    "nested",
    "options",
    "reasoning",
    "steering",
    "tail",
    "together",
    "truncation",
    "values",
    "waits",
    "woven",
]
"""The abilities of an adapter:

approvals  suspends a turn for tools that need approval
bounded    counts model calls across a suspension
edits      runs a tool with arguments that a person has edited
files      passes files of messages to the model
fragments  continues when the model sends arguments that are cut off
limits     fails when the model stops at its limit of tokens; without it, the SDK asks for the rest
lists      continues when the model sends a list as arguments
nested     suspends a turn for tools of a sub-agent that need approval
options    hands the model options of clients to the SDK
reasoning  reports the model's reasoning
steering   takes messages into a running turn
tail       reports text that arrives together with the loss of the connection
together   requests the approvals of all calls of a reply at once, also of the SDK's own tools
truncation tells an answer without its last event from a lost connection
values     reports the value that a tool returned, not its text
waits      keeps a journal, so that tools can ask, and the client can run tools
woven      reads parallel calls whose pieces are interleaved
"""

# A loaded machine is slow, not wrong.
PATIENT = 60.0


@dataclass(frozen=True)
class AgentCase:
    module: ModuleType
    api: Api

    @property
    def id(self) -> str:
        return f"{self.module.NAME}-{self.api}"

    @property
    def needs(self) -> list[pytest.MarkDecorator]:
        return [getattr(pytest.mark, need) for need in getattr(self.module, "NEEDS", ())]

    @property
    def tool_error_is_fatal(self) -> bool:
        return self.module.TOOL_ERROR == "fatal"

    @property
    def unknown_tool_is_fatal(self) -> bool:
        return self.module.UNKNOWN_TOOL == "fatal"

    @property
    def truncated(self) -> str:
        """Return the error code of an answer without its last event."""
        return "truncated" if self.can("truncation") else "model_unavailable"

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
        delegates: bool = False,
        allows: bool | Collection[str] | None = None,
        **options: Any,
    ) -> AsyncIterator[Desk]:
        """Open a desk with one agent that calls the scripted server and has these tools, or delegates to one."""
        build = self.module.delegate if delegates else self.module.build
        built = build(server.url, list(tools), api=self.api, timeout=timeout, **options)
        store = store or MemoryStore()
        agent = self.agent(built, max_turns) if allows is None else self.module.allow(built, allows)
        runner = TurnRunner(store, {"agent": agent}, limits or Limits())
        await runner.open()
        try:
            yield Desk(store, runner)
        finally:
            await runner.close()
            if close := getattr(self.module, "close", None):
                await close(built)


# The program of this SDK is large, and takes seconds to start.
ONLY_IN_ALL = frozenset({"claude"})


def _modules() -> Iterator[ModuleType]:
    for path in sorted((Path(__file__).parent / "agent_cases").glob("*.py")):
        if runs_all() or path.stem not in ONLY_IN_ALL:
            yield import_module(f"tests.contracts.agent_cases.{path.stem}")


MODULES: Sequence[ModuleType] = tuple(_modules())
CASES: Sequence[AgentCase] = tuple(AgentCase(module, api) for module in MODULES for api in module.APIS)


def case_params(cases: Sequence[AgentCase] = CASES) -> list[Any]:
    """Return the parameters of a fixture `case`.

    `scripts/test` runs a test with each adapter, over one of its APIs; with `--fast` the adapters take turns too.
    """
    rotated = pytest.mark.rotated("case" if runs_fast() else "case.api")
    return [pytest.param(case, id=case.id, marks=[rotated, *case.needs]) for case in cases]


def case_fixture(*needs: Ability) -> Any:
    """Return the fixture `case` of a suite: the cases with these abilities."""

    @pytest.fixture(params=case_params([case for case in CASES if all(map(case.can, needs))]))
    def case(request: pytest.FixtureRequest) -> AgentCase:
        return request.param

    return case
