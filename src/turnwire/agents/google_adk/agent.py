"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

import os
from collections.abc import Callable, Iterator
from contextlib import aclosing, nullcontext
from typing import Any, Unpack

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage]
from google.adk.apps import App
from google.adk.artifacts import BaseArtifactService, InMemoryArtifactService
from google.adk.events.event import Event as SdkEvent
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.workflow import BaseNode
from google.genai import types

from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.google_adk.events import AdkBranch, RunPlugin
from turnwire.agents.google_adk.messages import content_of, sdk_events
from turnwire.agents.google_adk.options import declared_schema, possible_options
from turnwire.agents.google_adk.runner import find_use_threads, install_runner
from turnwire.agents.sdk_agent import SdkAgent, SdkAgentOptions, function_names
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.turns import Turn
from turnwire.tools.threads import TOOL_THREADS


class GoogleADKAgent(SdkAgent):
    """A Turnwire agent that runs an agent, workflow or app of the SDK.

    `run_config` goes to the SDK's runner; its `max_llm_calls` limits a whole turn, also one that has waited or has lost
    its worker. `state` returns the state that a turn's session begins with, for instructions and tools. The artifact
    and memory services are the SDK's, by default in memory. Each turn has a new session with its history. The other
    options are those of `SdkAgent`; only Gemini takes model options.
    """

    def __init__(
        self,
        agent: BaseNode | App,
        *,
        run_config: RunConfig | None = None,
        state: Callable[[Turn], dict[str, Any]] | None = None,
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
        **options: Unpack[SdkAgentOptions],
    ) -> None:
        install_runner()
        self._app = agent if isinstance(agent, App) else App(name=agent.name, root_agent=agent)
        root = self._app.root_agent
        super().__init__(possible_options(root, list(agents_of(root))), **options)
        self.output_schema = declared_schema(root)
        self._run_config = (run_config or RunConfig()).model_copy(update={"streaming_mode": StreamingMode.SSE})
        self._state = state
        self._artifacts = artifact_service or InMemoryArtifactService()
        self._memory = memory_service or InMemoryMemoryService()

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of all agents of the tree; those of toolsets are known when they run."""
        return frozenset(name for agent in agents_of(self._app.root_agent) for name in function_names(agent))

    def find_problems(self) -> list[str]:
        """Return what is missing: the SDK finds out at its first request that there is no key."""
        names = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
        if any(os.environ.get(name) for name in names):
            return []
        models = [(agent.name, agent.model) for agent in agents_of(self._app.root_agent) if isinstance(agent, LlmAgent)]
        name = next((name for name, model in models if isinstance(model, str) and model.startswith("gemini")), None)
        return [] if name is None else [f"the agent {name!r} calls Gemini, and there is no key; set GOOGLE_API_KEY"]

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        main = AdkBranch(queue)
        self._prepare(main, turn)
        main.max_calls = self._run_config.max_llm_calls if self._run_config.max_llm_calls > 0 else None
        plugin = RunPlugin(main)
        try:
            with explaining(plugin.explain):
                events, message = await self._conversation(turn)
                runner = await self._make_runner(turn, events, plugin)
                run = runner.run_async(
                    user_id=_user_id(turn),
                    session_id=turn.session_id,
                    invocation_id=events[-1].invocation_id if message is None else None,
                    new_message=message,
                    run_config=self._run_config,
                )
                # Threads that the application has chosen take precedence.
                has_threads = self._run_config.tool_thread_pool_config is not None
                with nullcontext() if has_threads else find_use_threads()(TOOL_THREADS):
                    async with aclosing(run):
                        async for event in run:
                            plugin.read(event)
                plugin.check_end()
        finally:
            plugin.leave_branches()

    async def _conversation(self, turn: Turn) -> tuple[list[SdkEvent], types.Content | None]:
        """Return the events that the session begins with, and the message that the run begins with."""
        files = await load_turn_files(turn)
        root = self._app.root_agent.name if self._app.root_agent else ""
        history = sdk_events(turn.history, files, root)
        message = user_message(turn)
        if not turn.progress:
            return history, content_of(message, files)
        return [*history, *sdk_events([message, *turn.progress], files, root, turn.id)], None

    async def _make_runner(self, turn: Turn, events: list[SdkEvent], plugin: RunPlugin) -> Runner:
        sessions = InMemorySessionService()
        runner = plugin.attach(
            Runner(
                app=self._app,
                session_service=sessions,
                artifact_service=self._artifacts,
                memory_service=self._memory,
            )
        )
        state = self._state(turn) if self._state is not None else None
        session = await sessions.create_session(
            app_name=runner.app_name, user_id=_user_id(turn), session_id=turn.session_id, state=state
        )
        for event in events:
            await sessions.append_event(session, event)
        return runner


def agents_of(root: Any) -> Iterator[BaseAgent]:
    """Yield an agent and all of its sub-agents."""
    if isinstance(root, BaseAgent):
        yield root
        for agent in root.sub_agents:
            yield from agents_of(agent)


def _user_id(turn: Turn) -> str:
    return turn.principal or "user"
