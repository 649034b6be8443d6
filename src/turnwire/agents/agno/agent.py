"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

from collections.abc import Callable
from contextlib import aclosing
from copy import deepcopy
from typing import Any

from agno.agent import Agent
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.run.team import TeamRunOutput
from agno.team import Team
from agno.tools import Toolkit

from turnwire.agents.agno.errors import explain_failure
from turnwire.agents.agno.events import AgnoRun
from turnwire.agents.agno.messages import sdk_messages
from turnwire.agents.agno.options import possible_options
from turnwire.agents.agno.runner import check_output, install_runner, start_run
from turnwire.agents.agno.tools import sdk_function
from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.sdk_agent import SdkAgent, function_names, model_schema, split_options
from turnwire.core.errors import AgentError
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.turns import Turn


class AgnoAgent(SdkAgent):
    """A Turnwire agent that runs an agent or team of the SDK, with at most `max_model_calls` model calls.

    `to_dependencies` returns the dependencies of each turn, for tools that need to know the caller. The SDK's telemetry
    is off unless `telemetry` is true, because it is sent to the SDK's makers. Other options are those of `SdkAgent` and
    of the SDK's `arun`: `dependencies`, `session_state`, `metadata` and so on.
    """

    def __init__(
        self,
        agent: Agent | Team,
        *,
        max_model_calls: int | None = None,
        to_dependencies: Callable[[Turn], dict[str, Any]] | None = None,
        telemetry: bool = False,
        **options: Any,
    ) -> None:
        install_runner()
        common, run_options = split_options(options)
        has_format = run_options.get("output_schema") is not None
        super().__init__(possible_options(agent, has_format=has_format), **common)
        agent.telemetry = telemetry
        self._agent = agent
        self._max_calls = max_model_calls
        self._to_dependencies = to_dependencies
        self._options = run_options
        self.output_schema = model_schema(run_options.get("output_schema") or agent.output_schema)

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the agent's own functions; those of toolkits are known when it runs."""
        return frozenset(function_names(self._agent, but=(Toolkit,)))

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        run = AgnoRun(queue)
        self._prepare(run, turn)
        run.agent, run.max_calls = self._agent.name or "", self._max_calls
        run.client_functions = list(map(sdk_function, run.client_tools))
        with explaining(lambda error: explain_failure(error, run.failure)):
            with run.entered():
                output = await self._output(turn)
            check_output(run, output)
            self._finish(run, output)

    async def _output(self, turn: Turn) -> RunOutput | TeamRunOutput | None:
        """Run the agent to its end, and return what it ended with."""
        options: dict[str, Any] = {"user_id": turn.principal, **self._options}
        if "session_state" in options:
            options["session_state"] = deepcopy(options["session_state"])  # Tools change it, for their turn only.
        if self._to_dependencies is not None:
            options["dependencies"] = self._to_dependencies(turn)
        messages = [*turn.history, user_message(turn), *turn.progress]
        options["input"] = sdk_messages(messages, await load_turn_files(turn))
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
        if output.content == run.written:  # The last reply was empty, so this is the text before it.
            return
        run.write_reply(output.content)
