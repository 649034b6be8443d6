"""The agent: one turn is one run of the SDK, or several with approvals between them."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec
from agno.agent import Agent
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.run.team import TeamRunOutput
from agno.team import Team
from pydantic_core import to_json

from turnwire.agents.agno.approvals import AgnoCheckpoint, resume_output, suspend_run
from turnwire.agents.agno.errors import explain_failure
from turnwire.agents.agno.events import AgnoRun, entered_run
from turnwire.agents.agno.messages import sdk_messages
from turnwire.agents.agno.options import declared_schema, possible_options
from turnwire.agents.agno.runner import install_runner, start_run
from turnwire.agents.agno.tools import client_functions, tool_names
from turnwire.agents.event_queue import EventQueue, explaining, run_events
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES, load_turn_files, user_message
from turnwire.core.log.turns import Turn
from turnwire.core.model_options import SAFE_OPTIONS, chosen_options


class AgnoAgent:
    """A Turnwire agent that runs an agent or team of the SDK, with at most `max_model_calls` model calls.

    `run_options` go to the SDK's `arun`: `dependencies`, `session_state`, `metadata` and so on. `to_dependencies`
    returns the dependencies of each turn, for tools that need to know the caller. The SDK's telemetry is off unless
    `telemetry` is true, because it is sent to the SDK's makers.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"`. `idempotent` names the tools
    that may run again if they break off. If the agent has changed meanwhile, the turn fails, or with
    `on_divergence="continue"` it goes on from its last finished tools. `editable` names the tools whose arguments a
    person may change when approving a call. `takes_attachments` are the media types of files that the model can read.
    `takes_model_options` are the names of the model options that clients may send (see `core.model_options`), by
    default all but `instructions`, as far as the agent's model has them; other agents do not get them.
    """

    def __init__(
        self,
        agent: Agent | Team,
        *,
        max_model_calls: int | None = None,
        to_dependencies: Callable[[Turn], dict[str, Any]] | None = None,
        telemetry: bool = False,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
        **run_options: Any,
    ) -> None:
        install_runner()
        self.on_crash: OnCrash = on_crash
        self.journal = on_crash == "resume"
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments
        agent.telemetry = telemetry
        self._agent = agent
        self._max_calls = max_model_calls
        self._to_dependencies = to_dependencies
        self._idempotent = frozenset(idempotent)
        self._editable = frozenset(editable)
        self._options = run_options
        self.output_schema = declared_schema(run_options.get("output_schema") or agent.output_schema)
        has_format = run_options.get("output_schema") is not None
        possible = possible_options(agent, has_format=has_format)
        self.takes_model_options = chosen_options(takes_model_options, possible)

    @property
    def takes_client_tools(self) -> bool:
        """Whether a turn may bring tools that the client runs: the journal keeps what they wait for."""
        return self.journal

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the agent's own functions; those of toolkits are known when it runs."""
        return frozenset(tool_names(self._agent))

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(turn, partial(self._run, turn))

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        place = queue.journal.place("run") if queue.journal else ""
        run = AgnoRun(queue, place=place, agent=self._agent.name or "")
        run.max_calls = self._max_calls
        run.options = turn.model_options
        if "response_format" not in self.takes_model_options:
            # The client's schema is the agent's own, which the SDK sends to the model anyway.
            run.options = msgspec.structs.replace(run.options, response_format=None)
        run.client_functions = client_functions(client_tools(turn.options))
        with explaining(lambda error: explain_failure(error, run.failure)):
            with entered_run(run):
                output = await self._output(turn, run)
            if run.failure is not None:
                raise run.failure.error
            if output is not None and output.is_paused:
                assert isinstance(output, RunOutput)
                raise suspend_run(output, run, self._editable)
            self._finish(run, output)

    async def _output(self, turn: Turn, run: AgnoRun) -> RunOutput | TeamRunOutput | None:
        """Run the agent to its end or its next pause, and return what it ended with."""
        options: dict[str, Any] = {"user_id": turn.principal, **self._options}
        if "session_state" in options:
            options["session_state"] = deepcopy(options["session_state"])  # Tools change it, for their turn only.
        if self._to_dependencies is not None:
            options["dependencies"] = self._to_dependencies(turn)
        if turn.resumption is not None:
            options.pop("session_state", None)
            checkpoint = AgnoCheckpoint.decode(turn.resumption.checkpoint)
            run.has_called = True
            options["run_response"] = resumed = resume_output(checkpoint, turn.resumption, run)
            run.written[0] = resumed.content if isinstance(resumed.content, str) else ""
        else:
            files = await load_turn_files(turn)
            run.has_text = any(step.role == "assistant" and step.content for step in turn.progress)
            run.has_called = any(step.tool_calls for step in turn.progress)
            options["input"] = sdk_messages([*turn.history, user_message(turn), *turn.progress], files)
            options |= {"session_id": turn.session_id, "add_history_to_context": False}
        output: RunOutput | TeamRunOutput | None = None
        async with aclosing(start_run(self._agent, options)) as events:
            async for event in events:
                if isinstance(event, RunOutput | TeamRunOutput):
                    output = event
        return output

    def _finish(self, run: AgnoRun, output: RunOutput | TeamRunOutput | None) -> None:
        """Write an answer that was not streamed: a value, or the text of a tool that ends the run."""
        if output is not None and output.status == RunStatus.error:
            raise AgentError("the agent ended with an error; the server's log tells more")
        if output is None or output.content in (None, "") or run.has_answered:
            return
        if output.content in run.written:  # The last reply was empty, so this is the text before it.
            return
        content: Any = output.content
        run.write_answer(content if isinstance(content, str) else to_json(content, serialize_unknown=True).decode())
