"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import InputRequiredEvent, Workflow

from turnwire.agents.event_queue import EventQueue, explaining, run_events
from turnwire.agents.llama_index.approvals import ApprovalRules
from turnwire.agents.llama_index.errors import explain_failure
from turnwire.agents.llama_index.events import WorkflowListener
from turnwire.agents.llama_index.llm import OpenAICompatibleLLM
from turnwire.agents.llama_index.messages import sdk_message, sdk_messages
from turnwire.agents.llama_index.options import possible_options
from turnwire.agents.llama_index.runner import agents_of, end_run, install_runner, start_run
from turnwire.agents.llama_index.tools import ClientRunTool
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES, load_turn_files, user_message
from turnwire.core.log.turns import Turn
from turnwire.core.model_options import SAFE_OPTIONS, chosen_options
from turnwire.models.address import ModelAddress


class LlamaIndexAgent:
    """A Turnwire agent that runs an agent, an agent workflow or any other workflow of LlamaIndex.

    `run_options` go to the SDK's `run`. `max_steps` limits the model calls of a turn. A turn whose worker was lost
    continues from its journal, unless `on_crash="close"`; `idempotent` names the tools that may run again if they break
    off. `needs_approval` names the tools that a person must approve, `editable` those whose arguments the person may
    change. `takes_attachments` are the media types of files that the model can read. `takes_model_options` are the
    names of the model options that clients may send (see `core.model_options`), by default all but `instructions`, as
    far as the agent's LLM has them; agents that a tool runs do not get them.

    The steps of a workflow that is not made of agents cannot be recorded: its turns end when their worker is lost.
    `to_start` returns the arguments of `run` for a turn, by default `user_msg` and `chat_history`.
    """

    def __init__(
        self,
        agent: Workflow,
        *,
        max_steps: int = 20,
        to_start: Callable[[Turn], dict[str, Any]] | None = None,
        on_crash: OnCrash | None = None,
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        needs_approval: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
        **run_options: Any,
    ) -> None:
        install_runner()
        self._has_agents = isinstance(agent, BaseWorkflowAgent | AgentWorkflow)
        self.on_crash: OnCrash = on_crash or ("resume" if self._has_agents else "close")
        if self.on_crash == "resume" and not self._has_agents:
            raise ValueError("the steps of a workflow cannot be recorded; leave out on_crash, or give an agent")
        self.journal = self.on_crash == "resume"
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments if self._has_agents else False
        if needs_approval and not self.journal:
            raise ValueError("approvals need the journal: on_crash must be 'resume'")
        self._agent = agent
        self._max_steps = max_steps
        self._to_start = to_start
        self._idempotent = frozenset(idempotent)
        self._rules = ApprovalRules(needs_approval, editable)
        self._options = run_options
        self._model_options = takes_model_options

    @property
    def takes_model_options(self) -> frozenset[str]:
        """Return the names of the model options that clients may send."""
        return chosen_options(self._model_options, possible_options(self._agent))

    @property
    def takes_client_tools(self) -> bool:
        """Whether a turn may bring tools that the client runs: the journal keeps what they wait for."""
        return self.journal

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the agents' own tools; those of a tool retriever are known when they run."""
        if not self._has_agents:
            return frozenset()
        return frozenset(tool.metadata.get_name() for each in agents_of(self._agent) for tool in each.tools or ())

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

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
        return made

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(turn, partial(self._run, turn))

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        place = queue.journal.place("run") if queue.journal else ""
        listener = WorkflowListener(queue, place=place, max_steps=self._max_steps)
        with explaining(explain_failure):
            listener.options = turn.model_options
            listener.has_called = any(step.tool_calls for step in turn.progress)
            listener.has_text = any(step.role == "assistant" and step.content for step in turn.progress)
            options = await self._options_for(turn)
            tools = [ClientRunTool(tool) for tool in client_tools(turn.options)]
            handler = start_run(listener, self._rules, self._agent, lambda agent: agent.run(**options), tools)
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
