"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

import asyncio
import sys
from collections.abc import Callable, Collection
from copy import copy
from typing import Any, cast

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import InputRequiredEvent, Workflow

from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.llama_index.errors import explain_failure
from turnwire.agents.llama_index.events import WorkflowListener
from turnwire.agents.llama_index.llm import OpenAICompatibleLLM
from turnwire.agents.llama_index.messages import sdk_message, sdk_messages
from turnwire.agents.llama_index.options import possible_options
from turnwire.agents.llama_index.runner import agents_of, check_workflow, end_run, install_runner, start_run
from turnwire.agents.llama_index.tools import TurnwireTool
from turnwire.agents.sdk_agent import SdkAgent, split_options
from turnwire.core.errors import AgentError
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.model_options import SAFE_OPTIONS, chosen_options
from turnwire.core.log.turns import Turn
from turnwire.models.address import ModelAddress


class LlamaIndexAgent(SdkAgent):
    """A Turnwire agent that runs an agent, an agent workflow or any other workflow of LlamaIndex.

    `max_steps` limits the model calls of a turn. `needs_approval` names the tools that a person must approve. Other
    options are those of `SdkAgent` and of the SDK's `run`.

    The steps of a workflow that is not made of agents cannot be recorded: its turns end when their worker is lost.
    `to_start` returns the arguments of `run` for a turn, by default `user_msg` and `chat_history`.
    """

    def __init__(
        self,
        agent: Workflow,
        *,
        max_steps: int = 20,
        to_start: Callable[[Turn], dict[str, Any]] | None = None,
        needs_approval: Collection[str] = (),
        **options: Any,
    ) -> None:
        install_runner()
        check_workflow(agent)
        self._has_agents = isinstance(agent, BaseWorkflowAgent | AgentWorkflow)
        common, self._options = split_options(options)
        if not self._has_agents:
            if common.get("on_crash") == "resume":
                raise ValueError("the steps of a workflow cannot be recorded; leave out on_crash, or give an agent")
            if needs_approval:
                raise ValueError("the tools in the steps of a workflow are not known; give an agent")
            common["on_crash"], common["takes_attachments"] = "close", False
        super().__init__(possible_options(agent), **common)
        self.takes_client_tools = self._has_agents
        self._model_options = common.get("takes_model_options", SAFE_OPTIONS)
        self._agent = agent
        self._max_steps = max_steps
        self._to_start = to_start
        self._needs_approval = frozenset(needs_approval)

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the agents' own tools; those of a tool retriever are known when they run."""
        if not self._has_agents:
            return frozenset()
        return frozenset(tool.metadata.get_name() for each in agents_of(self._agent) for tool in each.tools or ())

    def with_model(self, address: ModelAddress) -> "LlamaIndexAgent":
        """Return the same agent with another model."""
        if not self._has_agents:
            raise ValueError("a workflow has its models in its steps; another model cannot be given to it")
        made = copy(self)
        llm = OpenAICompatibleLLM(address.name, base_url=address.url, api_key=address.key or "none")
        agents = [each.model_copy(update={"llm": llm}) for each in agents_of(self._agent)]
        if isinstance(self._agent, AgentWorkflow):
            made._agent = copy(self._agent)
            made._agent.agents = {each.name: each for each in agents}
        else:
            (made._agent,) = agents
        made.takes_model_options = chosen_options(self._model_options, possible_options(made._agent))
        return made

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        listener = WorkflowListener(queue)
        self._prepare(listener, turn)
        listener.max_calls, listener.needs_approval = self._max_steps, self._needs_approval
        with explaining(explain_failure):
            options = await self._options_for(turn)
            tools = [TurnwireTool(tool) for tool in listener.client_tools]
            handler = start_run(listener, self._agent, lambda agent: agent.run(**options), tools)
            result = asyncio.create_task(handler.stop_event_result())
            try:
                async for event in handler.stream_events():
                    self._read(event, listener)
                    await queue.wait_for_room()
                await result
            finally:
                result.cancel()
                await end_run(handler, listener)
            listener.read_result(await handler)

    def _read(self, event: Any, listener: WorkflowListener) -> None:
        if isinstance(event, InputRequiredEvent):
            raise AgentError(
                "the workflow waits for a person in a step, which Turnwire cannot continue; ask in a tool of an agent"
            )
        listener.read_event(event, writes_text=not self._has_agents)

    async def _options_for(self, turn: Turn) -> dict[str, Any]:
        if self._to_start is not None:
            return {**self._options, **self._to_start(turn)}
        files, message = await load_turn_files(turn), user_message(turn)
        if not self._has_agents:
            return {"user_msg": turn.message, "chat_history": sdk_messages(turn.history, files), **self._options}
        # Turnwire limits the history; the SDK's memory must not drop any of it, nor count its tokens.
        memory = cast("Any", ChatMemoryBuffer).from_defaults(token_limit=sys.maxsize, tokenizer_fn=str.split)
        options: dict[str, Any] = {"memory": memory, "max_iterations": self._max_steps + 1, **self._options}
        if turn.progress:
            return options | {"chat_history": sdk_messages([*turn.history, message, *turn.progress], files)}
        return options | {
            "chat_history": sdk_messages(turn.history, files),
            "user_msg": sdk_message(message, files),
        }
