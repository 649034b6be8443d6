"""Recorded copies of agents, on which all runs in a turn are made: its own, and those that its tools start.

The SDK has no hook around a model call or a tool call, so each run has a copy of the agent with another LLM and other
methods. `run` of the SDK's agents is wrapped, so that a run inside a tool is made on such a copy too. Runs outside a
turn are left unchanged.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from copy import copy
from types import MethodType
from typing import Any, cast

from llama_index.core.agent.workflow import AgentWorkflow, ToolCall, ToolCallResult
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.tools import AsyncBaseTool, BaseTool, ToolOutput
from llama_index.core.workflow import HumanResponseEvent, Workflow

from turnwire.agents.llama_index.continuation import LlamaStep, RecordedLLM, failed_output, show_output
from turnwire.agents.llama_index.events import MAX_PARALLEL_TOOLS, WorkflowListener
from turnwire.agents.llama_index.messages import add_inputs
from turnwire.agents.llama_index.tools import check_arguments
from turnwire.agents.sdk_internals import wrap
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import ask
from turnwire.core.log.emit import is_in_turn
from turnwire.core.log.events import HandoffEvent
from turnwire.tools.declaration import BadArgumentsError
from turnwire.tools.invocation import tool_error_text

_HANDOFF = "handoff"
_CANCEL_SECONDS = 2.0
_SDK = "llama-index-core"
_tool_call: ContextVar[ToolCall | None] = ContextVar("turnwire_llama_index_call", default=None)
_leaving: set[asyncio.Task[None]] = set()


def install_runner() -> None:
    """Wrap `run` of the SDK's agents, once. Raises RuntimeError for a version of the SDK that differs."""
    for kind in (BaseWorkflowAgent, AgentWorkflow):
        wrap(_SDK, kind, "run", "self, *args, **kwargs", _recorded_run)
        wrap(_SDK, wrap(_SDK, kind, "call_tool", "self, ctx, ev"), "_step_config")
        wrap(_SDK, kind, "_call_tool", "self, ctx, tool, tool_input")
    wrap(_SDK, BaseWorkflowAgent, "take_step", "self, ctx, llm_input, tools, memory")
    wrap(_SDK, BaseWorkflowAgent, "handle_tool_call_results", "self, ctx, results, memory")


def check_workflow(agent: Workflow) -> None:
    """Raise RuntimeError for a version of the SDK whose workflows differ from those that can be copied here."""
    wrap(_SDK, agent, "_broker_config")


def _recorded_run(inner: Callable[..., Any]) -> Callable[..., Any]:
    def run(agent: Any, *args: Any, **options: Any) -> Any:
        if _is_copy(agent) or not is_in_turn():
            return inner(agent, *args, **options)
        outer, listener = WorkflowListener.around(), WorkflowListener.nested(_name(agent))
        listener.needs_approval = outer.needs_approval if outer is not None else ()
        handler = start_run(listener, agent, lambda each: inner(each, *args, **options))
        task = asyncio.create_task(_leave(handler, listener))
        _leaving.add(task)
        task.add_done_callback(_leaving.discard)
        return handler

    return run


async def _leave(handler: Any, listener: WorkflowListener) -> None:
    await asyncio.gather(handler.stop_event_result(), return_exceptions=True)
    listener.close()
    listener.leave()


def start_run(
    listener: WorkflowListener, agent: Any, start: Callable[[Any], Any], tools: Sequence[BaseTool] = ()
) -> Any:
    """Start a run on a recorded copy of an agent, with more `tools`. A workflow without agents is run itself."""
    with listener.entered():
        return start(_recorded_copy(agent, listener, tools))


async def end_run(handler: Any, listener: WorkflowListener) -> None:
    """Cancel what is left of a run. The SDK would wait for the cancelled steps, so its own loop is cancelled too."""
    listener.close()
    if not handler.is_done():
        await handler.cancel_run(timeout=_CANCEL_SECONDS)


def _name(agent: Any) -> str:
    return str(getattr(agent, "name", None) or getattr(agent, "root_agent", None) or type(agent).__name__)


def agents_of(agent: Any) -> list[Any]:
    """Return the agents of an agent or of a workflow of agents."""
    return list(agent.agents.values()) if isinstance(agent, AgentWorkflow) else [agent]


def _is_copy(agent: Any) -> bool:
    return all(isinstance(each.llm, RecordedLLM) for each in agents_of(agent))


def _recorded_copy(agent: Any, listener: WorkflowListener, tools: Sequence[BaseTool]) -> Any:
    match agent:
        case AgentWorkflow():
            made: Any = copy(agent)
            made.agents = {name: _copy_agent(each, listener, tools) for name, each in agent.agents.items()}
        case BaseWorkflowAgent():
            made = _copy_agent(agent, listener, tools)
        case _:
            return agent
    made._broker_config = None  # The cached one has the original's number of parallel calls.
    _bind(made, "call_tool", _call_step(_method(agent, "call_tool")))
    _bind(made, "_call_tool", _run_tool)
    return made


def _copy_agent(agent: Any, listener: WorkflowListener, tools: Sequence[BaseTool]) -> Any:
    own = [*(agent.tools or ()), *tools]
    update: dict[str, Any] = {"llm": RecordedLLM(agent, listener), "tools": own or None}
    if listener.options.instructions:
        update["system_prompt"] = listener.options.extend(agent.system_prompt or "")
    made = agent.model_copy(update=update)

    take_step, handle_results = _method(agent, "take_step"), _method(agent, "handle_tool_call_results")

    async def take_step_with_inputs(self: Any, ctx: Any, llm_input: Any, tools: Any, memory: Any) -> Any:
        llm_input = await add_inputs(agent, ctx, llm_input, memory, await listener.take_inputs())
        return await take_step(made, ctx, llm_input, tools, memory)

    async def handle_results_in_order(self: Any, ctx: Any, results: Any, memory: Any) -> None:
        await handle_results(made, ctx, listener.in_order(results), memory)

    _bind(made, "take_step", take_step_with_inputs)
    _bind(made, "handle_tool_call_results", handle_results_in_order)
    return made


def _method(agent: object, name: str) -> Any:
    """Return a method of an agent as its class has it."""
    return getattr(type(agent), name)


def _bind(target: Any, name: str, function: Callable[..., Any]) -> None:
    # Not by `setattr`: a pydantic model refuses names that are no fields.
    object.__setattr__(target, name, MethodType(function, target))


def _call_step(inner: Any) -> Callable[..., Any]:
    """Return the step that calls a tool, with events around it, for any number of parallel calls."""

    @functools.wraps(inner)
    async def call_tool(self: Any, ctx: Any, ev: ToolCall) -> ToolCallResult:
        listener = WorkflowListener.around()
        assert listener is not None
        _tool_call.set(ev)
        is_handoff = ev.tool_name == _HANDOFF
        with listener.working():
            await listener.announce_call(ev, is_shown=not is_handoff)
            result: ToolCallResult = await inner(self, ctx, ev)
            if not is_handoff:
                listener.end_call(ev.tool_id, ev.tool_name, *show_output(result.tool_output))
            elif next_agent := await ctx.store.get("next_agent", default=None):
                listener.put(HandoffEvent(next_agent))
        return result

    config = dataclasses.replace(inner._step_config, num_workers=MAX_PARALLEL_TOOLS)
    call_tool._step_config = config  # type: ignore[attr-defined]
    return call_tool


async def _run_tool(self: Any, ctx: Any, tool: AsyncBaseTool, tool_input: dict[str, Any]) -> ToolOutput:
    listener, call = WorkflowListener.around(), _tool_call.get()
    assert listener is not None
    assert call is not None
    inner = _method(self, "_call_tool")
    if call.tool_name == _HANDOFF:
        return await inner(self, ctx, tool, tool_input)
    try:
        check_arguments(tool, tool_input)
    except BadArgumentsError as error:
        return failed_output(call.tool_name, tool_error_text(call.tool_name, error))
    execute = functools.partial(inner, self, AskingContext(ctx), tool)
    return await listener.run_tool(LlamaStep(listener, call.tool_id, tool, tool_input, ctx.store, execute))


class AskingContext:
    """The context of a run: `wait_for_event(HumanResponseEvent)` in a tool is a question of the turn."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def wait_for_event(self, event_type: type[Any], *args: Any, **options: Any) -> Any:
        if not issubclass(event_type, HumanResponseEvent) or current_journal() is None:
            return await self._ctx.wait_for_event(event_type, *args, **options)
        waiter: Any = options.get("waiter_event") or (args[0] if args else None)
        prompt = getattr(waiter, "prefix", None) or options.get("waiter_id") or "The agent needs an answer."
        value = await ask(str(prompt))
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"response": value}
        return event_type(**{**(options.get("requirements") or {}), **fields})
