"""The agent: one turn is one run of the SDK, or several with approvals between them."""

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any

import msgspec
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage]
from google.adk.apps import App
from google.adk.artifacts import BaseArtifactService, InMemoryArtifactService
from google.adk.events.event import Event as SdkEvent
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.utils._sync_runner import _use_executor_for_sync_callables as use_threads  # pyright: ignore[reportPrivateUsage]
from google.adk.workflow import BaseNode
from google.genai import types

from turnwire.agents.event_queue import EventQueue, explaining, run_events
from turnwire.agents.google_adk.approvals import AdkCheckpoint, decisions_message, suspend_run
from turnwire.agents.google_adk.events import RunPlugin
from turnwire.agents.google_adk.messages import content_of, sdk_events
from turnwire.agents.google_adk.options import declared_schema, possible_options
from turnwire.agents.google_adk.runner import install_runner
from turnwire.agents.google_adk.tools import tool_names
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES, load_turn_files, user_message
from turnwire.core.log.turns import Turn
from turnwire.core.model_options import SAFE_OPTIONS, chosen_options
from turnwire.tools.threads import TOOL_THREADS


class GoogleADKAgent:
    """A Turnwire agent that runs an agent, workflow or app of the SDK.

    `run_config` goes to the SDK's runner; its `max_llm_calls` limits a whole turn, also one that was suspended or has
    lost its worker. `state` returns the state that a turn's session begins with, for instructions and tools. The
    artifact and memory services are the SDK's, by default in memory. Each turn has a new session with its history.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"`. `idempotent` names the tools
    that may run again if they break off. If the agent has changed meanwhile, the turn fails, or with
    `on_divergence="continue"` it goes on from its last finished tools. `editable` names the tools whose arguments a
    person may change when approving a call. `takes_attachments` are the media types of files that the model can read.
    `takes_model_options` are the names of the model options that clients may send (see `core.model_options`), by
    default all but `instructions`, if the model is Gemini; agents that a tool runs do not get them.
    """

    def __init__(
        self,
        agent: BaseNode | App,
        *,
        run_config: RunConfig | None = None,
        state: Callable[[Turn], dict[str, Any]] | None = None,
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
    ) -> None:
        install_runner()
        self.on_crash: OnCrash = on_crash
        self.journal = on_crash == "resume"
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments
        self._idempotent = frozenset(idempotent)
        self._editable = frozenset(editable)
        self._app = agent if isinstance(agent, App) else App(name=agent.name, root_agent=agent)
        root = self._app.root_agent
        self.output_schema = declared_schema(root)
        self.takes_model_options = chosen_options(takes_model_options, possible_options(root, list(agents_of(root))))
        self._run_config = _streaming(run_config or RunConfig())
        self._state = state
        self._artifacts = artifact_service or InMemoryArtifactService()
        self._memory = memory_service or InMemoryMemoryService()

    @property
    def takes_client_tools(self) -> bool:
        """Whether a turn may bring tools that the client runs: the journal keeps what they wait for."""
        return self.journal

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of all agents of the tree; those of toolsets are known when they run."""
        return frozenset(name for agent in agents_of(self._app.root_agent) for name in tool_names(agent))

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def find_problems(self) -> list[str]:
        """Return what is missing: the SDK finds out at its first request that there is no key."""
        names = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
        if any(os.environ.get(name) for name in names):
            return []
        models = [(agent.name, agent.model) for agent in agents_of(self._app.root_agent) if isinstance(agent, LlmAgent)]
        name = next((name for name, model in models if isinstance(model, str) and model.startswith("gemini")), None)
        return [] if name is None else [f"the agent {name!r} calls Gemini, and there is no key; set GOOGLE_API_KEY"]

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(turn, partial(self._run, turn))

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        plugin = RunPlugin(queue, place=queue.journal.place("run") if queue.journal else "")
        plugin.max_calls = self._run_config.max_llm_calls
        plugin.client_tools, plugin.options = client_tools(turn.options), turn.model_options
        if "response_format" not in self.takes_model_options:
            # The client's schema is the agent's own, which the SDK sends to the model anyway.
            plugin.options = msgspec.structs.replace(plugin.options, response_format=None)
        try:
            with explaining(plugin.explain):
                session_id, events, message = await self._conversation(turn, plugin)
                runner = await self._make_runner(turn, session_id, events, plugin)
                run = runner.run_async(
                    user_id=_user_id(turn),
                    session_id=session_id,
                    invocation_id=events[-1].invocation_id if message is None else None,
                    new_message=message,
                    run_config=self._run_config,
                )
                # Threads that the application has chosen take precedence.
                with nullcontext() if self._run_config.tool_thread_pool_config else use_threads(TOOL_THREADS):  # type: ignore[arg-type]
                    async with aclosing(run):
                        async for event in run:
                            plugin.read(event)
                await self._finish(turn, runner, session_id, plugin)
        finally:
            plugin.leave_branches()

    async def _conversation(self, turn: Turn, plugin: RunPlugin) -> tuple[str, list[SdkEvent], types.Content | None]:
        """Return the session's id, the events that it begins with, and the message that the run begins with."""
        if turn.resumption is not None:
            checkpoint = AdkCheckpoint.decode(turn.resumption.checkpoint)
            plugin.restore(checkpoint, turn.resumption)
            return turn.session_id, checkpoint.sdk_events(), decisions_message(checkpoint, turn.resumption)
        files = await load_turn_files(turn)
        root = self._app.root_agent.name if self._app.root_agent else ""
        history = sdk_events(turn.history, files, root)
        message = user_message(turn)
        if not turn.progress:
            return turn.session_id, history, content_of(message, files)
        plugin.has_text = any(step.role == "assistant" and step.content for step in turn.progress)
        plugin.has_called = any(step.tool_calls for step in turn.progress)
        return turn.session_id, [*history, *sdk_events([message, *turn.progress], files, root, turn.id)], None

    async def _make_runner(self, turn: Turn, session_id: str, events: list[SdkEvent], plugin: RunPlugin) -> Runner:
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
            app_name=runner.app_name, user_id=_user_id(turn), session_id=session_id, state=state
        )
        for event in events:
            await sessions.append_event(session, event)
        return runner

    async def _finish(self, turn: Turn, runner: Runner, session_id: str, plugin: RunPlugin) -> None:
        """Raise WaitForApproval if the run waits for confirmations, or AgentError if it ended with an error."""
        if not plugin.pending:
            return plugin.check_end()
        session = await runner.session_service.get_session(
            app_name=runner.app_name, user_id=_user_id(turn), session_id=session_id
        )
        assert session is not None
        raise suspend_run(
            session.events,
            list(plugin.pending.values()),
            editable=lambda request: request.tool in self._editable or request.call_id in plugin.editable,
            model_calls=plugin.model_calls,
            has_text=plugin.has_text,
        )


def agents_of(root: Any) -> Iterator[BaseAgent]:
    """Yield an agent and all of its sub-agents."""
    if isinstance(root, BaseAgent):
        yield root
        for agent in root.sub_agents:
            yield from agents_of(agent)


def _user_id(turn: Turn) -> str:
    return turn.principal or "user"


def _streaming(config: RunConfig) -> RunConfig:
    """Return the configuration with streamed tokens."""
    return config.model_copy(update={"streaming_mode": StreamingMode.SSE})
