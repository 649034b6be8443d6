"""Where the SDK tells of tools and handoffs at once: its hooks, and the formatter of what a tool raised."""

from collections.abc import Coroutine
from typing import Any, cast

from agents import (
    Agent,
    AgentHookContext,
    ModelBehaviorError,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    RunItemStreamEvent,
    Tool,
    ToolCallItem,
    ToolCallOutputItem,
    TResponseInputItem,
)
from agents.run_config import ToolErrorFormatter, ToolErrorFormatterArgs
from agents.tool_context import ToolContext

from turnwire.agents.openai_agents.runs import Run
from turnwire.tools.running import set_running_call, why_it_failed


class Hooks(RunHooks[Any]):
    """Tells of a run, and calls the hooks that the run was given."""

    def __init__(self, run: Run, others: RunHooks[Any] | None) -> None:
        self.agent: Agent[Any] | None = None
        """Who is about to ask a model, or has asked it last."""
        self._run = run
        self._others = others or RunHooks[Any]()

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        self.agent = agent
        await self._others.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        await self._others.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        await self._others.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        await self._others.on_agent_end(context, agent, output)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        self._run.hand_over(to_agent.name)
        await self._others.on_handoff(context, from_agent, to_agent)

    def on_tool_start(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> Coroutine[Any, Any, None]:
        # Not `async`: it is awaited in a task of its own, but called in the one that the tool is run from.
        set_running_call(_call_id(context, tool))
        return self._begin(context, agent, tool)

    async def _begin(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        arguments = context.tool_arguments if isinstance(context, ToolContext) else ""
        self._run.begin_call(_call_id(context, tool), tool.name, arguments)
        await self._run.outbox.taken()
        await self._others.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        self._run.has_answered = False
        self._run.end_call(_call_id(context, tool), result)
        await self._others.on_tool_end(context, agent, tool, result)


def _call_id(context: RunContextWrapper[Any], tool: Tool) -> str:
    # Shells, patches and the like are run one after the other, and their hooks are not told of which call.
    return context.tool_call_id if isinstance(context, ToolContext) else tool.name


def error_formatter(run: Run, given: ToolErrorFormatter | None) -> ToolErrorFormatter:
    """Notes which calls failed; the model is told what the application says, or no more than what kind of error."""

    def format_error(args: ToolErrorFormatterArgs[Any]) -> Any:
        run.fail_call(args.call_id)
        if given is not None:
            return given(args)
        # What is wrong with its arguments the model may know. What a tool raised by accident nobody should.
        if args.error is None or isinstance(args.error, ModelBehaviorError):
            return None
        return why_it_failed(args.tool_name, args.error)

    return format_error


def read_item(run: Run, event: object) -> None:
    """Tells of the calls that no hook told of: those that were answered without running a tool."""
    if not isinstance(event, RunItemStreamEvent):
        return
    raw: Any = event.item.raw_item
    call_id = _field(raw, "call_id")
    if call_id is None:
        return
    if isinstance(event.item, ToolCallItem):
        run.note_wish(call_id, _field(raw, "name") or "", _field(raw, "arguments") or "")
    elif isinstance(event.item, ToolCallOutputItem):
        run.note_output(call_id, event.item.output)


def _field(raw: Any, name: str) -> str | None:
    """Of an item that may be a dictionary or an object; the SDK has both."""
    value: object = cast("dict[str, object]", raw).get(name) if isinstance(raw, dict) else getattr(raw, name, None)
    return value if isinstance(value, str) else None
