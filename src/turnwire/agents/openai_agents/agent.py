"""One turn is one run of the SDK, told as it happens, perhaps with people's decisions in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from agents import Agent, RunConfig, RunHooks, RunResultStreaming, Session, TResponseInputItem
from pydantic_core import to_json

from turnwire.agents.openai_agents.approvals import resume, waiting
from turnwire.agents.openai_agents.errors import explained
from turnwire.agents.openai_agents.events import EventQueue, Run, read_item
from turnwire.agents.openai_agents.runner import install_runner, start_run
from turnwire.core.approvals import WaitForApproval
from turnwire.core.events import Event
from turnwire.core.turns import Message, Turn
from turnwire.models import tool_schema

_CLEAN_UP_SECONDS = 3.0


class OpenAIAgentsAgent:
    """Answers with an agent of the SDK; it may ask the model `max_turns` times.

    `session` makes the SDK's own memory for a turn; without it the agent is given the turn's history. `context` makes
    what tools find in their `RunContextWrapper`, and once more when the turn has waited for a person; without it they
    find the turn. Nothing is traced unless `tracing` is true: the SDK would send all of it to OpenAI's service.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        max_turns: int | None = 10,
        tracing: bool = False,
        session: Callable[[Turn], Session] | None = None,
        context: Callable[[Turn], Any] | None = None,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self._agent = agent
        self._max_turns = max_turns
        self._session = session
        self._context = context
        self._hooks = hooks
        # A model that asks for a tool which is not there is told so, as with all of our agents.
        config = run_config or RunConfig(tool_not_found_behavior="return_error_to_model")
        self._config = replace(config, tracing_disabled=not tracing)
        self._runner = install_runner()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        run = Run(EventQueue())
        result = await self._start(turn, run)
        reading = asyncio.create_task(_read(result, run))
        try:
            async for event in run.outbox.events():
                yield event
            await reading
        finally:
            run.outbox.close()
            await _stop(result, reading)
            run.outbox.release()

    async def _start(self, turn: Turn, run: Run) -> RunResultStreaming:
        context = self._context(turn) if self._context else turn
        options: dict[str, Any] = {"context": context, "hooks": self._hooks, "run_config": self._config}
        if self._session is not None:
            options["session"] = self._session(turn)
        if turn.resumption is not None:
            state = await resume(self._agent, turn.resumption, context, run.outbox)
            return start_run(self._runner, run, self._agent, state, options)
        options["max_turns"] = self._max_turns
        history = input_items(turn.history) if self._session is None else []
        asked: TResponseInputItem = {"role": "user", "content": turn.message}
        return start_run(self._runner, run, self._agent, [*history, asked], options)


async def _read(result: RunResultStreaming, run: Run) -> None:
    """Reads the SDK's stream to its end; nearly all of it has been told already."""
    try:
        async for event in result.stream_events():
            read_item(run, event)
        if result.interruptions:
            raise waiting(result, run.outbox)
        # An answer that a tool or a function made has not been told yet.
        if result.final_output is not None and not run.has_answered:
            output = result.final_output
            run.say(output if isinstance(output, str) else to_json(output, serialize_unknown=True).decode())
    except WaitForApproval:
        raise
    except Exception as error:
        better = explained(error, run.model_failure)
        run.end_open_calls(better)
        if better is error:
            raise
        raise better from error
    finally:
        run.outbox.put(None)


async def _stop(result: RunResultStreaming, reading: asyncio.Task[None]) -> None:
    """Stops what still runs: the request to the model's server, and the tools."""
    if not reading.done():
        result.cancel()
        reading.cancel()
    # Errors on the way out are nobody's any more, but somebody has to look at them.
    tasks = asyncio.gather(*filter(None, (reading, result.run_loop_task)), return_exceptions=True)
    await asyncio.wait({tasks}, timeout=_CLEAN_UP_SECONDS)


def input_items(history: Sequence[Message]) -> list[TResponseInputItem]:
    """The conversation so far, as the SDK takes it."""
    return [item for message in history for item in _items(message)]


def _items(message: Message) -> list[TResponseInputItem]:
    content = tool_schema.text(message.content)
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id or "", "output": content}]
    items: list[TResponseInputItem] = []
    if content or not message.tool_calls:
        items.append({"role": message.role, "content": content})
    for call in message.tool_calls:
        wish = {"call_id": call.call_id, "name": call.tool, "arguments": tool_schema.arguments(call)}
        items.append({"type": "function_call", **wish})  # pyright: ignore[reportArgumentType]
    return items
