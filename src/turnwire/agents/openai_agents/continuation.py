"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. Its models are wrapped already (see `runner`); here its tools are, at the point
where the SDK invokes them. A tool that is an agent is not recorded as a call: it runs again, and the calls inside it
are answered.
"""

from functools import partial
from typing import Any

from agents import FunctionTool, Tool, ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from msgspec import convert, to_builtins
from openai.types.responses import Response, ResponseCompletedEvent

from turnwire.agents.context_changes import is_plain
from turnwire.agents.openai_agents.events import Run
from turnwire.agents.openai_agents.internals import invoker_class
from turnwire.agents.run_recorder import CallFailure, ToolStep
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import ToolOutcome

_STRUCTURED = {kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)}


# Models


def dump_reply(response: Response) -> dict[str, Any]:
    return response.to_dict(mode="json", warnings=False)


def load_reply(recorded: dict[str, Any]) -> Response:
    # Servers send less than the types demand, so nothing is validated.
    return Response.construct(**recorded)


def completed(response: Response) -> ResponseCompletedEvent:
    """Return a whole reply as the one event that the SDK needs."""
    return ResponseCompletedEvent.construct(type="response.completed", sequence_number=0, response=response)


# Tools


def journal_tool(tool: Tool) -> None:
    """Make a function tool answer from the journal, inside a turn that has one. Outside, it works as before.

    It is called just before the SDK invokes the tool, with the object that it invokes: tools of MCP servers are new
    objects for each model call.
    """
    if isinstance(tool, FunctionTool) and not getattr(tool.on_invoke_tool, "is_journaled", False):
        tool.on_invoke_tool = _journaled_invoker(tool)


def _journaled_invoker(tool: FunctionTool) -> Any:
    invoker: Any = tool.on_invoke_tool

    async def call(self: object, context: ToolContext[Any], arguments: str) -> Any:
        return await _invoke(tool, invoker, context, arguments)

    # The SDK uses other methods of its own invokers too.
    bases = (invoker.__class__,) if isinstance(invoker, invoker_class()) else ()
    kind: Any = type("JournaledInvoker", bases, {"is_journaled": True, "__call__": call})
    journaled = kind.__new__(kind)
    journaled.__dict__.update(getattr(invoker, "__dict__", {}))
    return journaled


async def _invoke(tool: FunctionTool, invoker: Any, context: ToolContext[Any], arguments: str) -> Any:
    run = Run.current()
    if run is None or (journal := run.queue.journal) is None:
        return await invoker(context, arguments)
    if tool._is_agent_tool:  # pyright: ignore[reportPrivateUsage]
        with journal.inside(f"{run.place}:{context.tool_call_id}"):
            return await invoker(context, arguments)
    await run.queue.flush()
    return await run.run_tool(AgentsStep(run, tool, invoker, context, arguments))


class AgentsStep(ToolStep[Any]):
    """One call of a function tool."""

    def __init__(self, run: Run, tool: FunctionTool, invoker: Any, context: ToolContext[Any], arguments: str) -> None:
        super().__init__(context.tool_call_id, tool.name, read_arguments(arguments) or {})
        self._run = run
        self._invoke = partial(invoker, context, arguments)
        self._changes = run.queue.changes_of(context.context)

    async def run(self, args: dict[str, Any]) -> Any:
        try:
            return await self._invoke()
        except Exception as error:
            self._run.failure = CallFailure(error, self.tool, is_tool=True)
            raise

    def fail(self, text: str) -> str:
        self._run.fail_call(self.call_id, text)
        return text

    def dump(self, outcome: Any) -> dict[str, Any]:
        state = self._run.call_state(self.call_id)
        kind = type(outcome).__name__ if type(outcome) in _STRUCTURED.values() else None
        # Of anything that JSON does not give back as it was, the SDK sends the text to the model.
        value = outcome.model_dump(mode="json") if kind else outcome if is_plain(outcome) else str(outcome)
        return {
            "result": value,
            "kind": kind,
            "failed": state is not None and state.has_failed,
            "failure": state and state.failure,
            "outcome": to_builtins(state.outcome) if state is not None and state.outcome else None,
            "changes": self._changes.take() if self._changes is not None else None,
        }

    async def load(self, recorded: dict[str, Any]) -> Any:
        if self._changes is not None:
            self._changes.restore(recorded["changes"])
        if recorded["outcome"]:
            self._run.note_outcome(self.call_id, convert(recorded["outcome"], ToolOutcome))
        elif recorded["failed"]:
            self._run.fail_call(self.call_id, recorded["failure"])
        kind = _STRUCTURED.get(recorded["kind"])
        return kind.model_validate(recorded["result"]) if kind else recorded["result"]
