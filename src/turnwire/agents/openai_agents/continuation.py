"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. Its models are wrapped already (see `runner`); here its tools are, at the point
where the SDK invokes them. A tool that is an agent is not recorded as a call: it runs again, and the calls inside it
are answered.
"""

from typing import Any

from agents import Agent, FunctionTool, Tool, ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from msgspec import convert, to_builtins
from openai.types.responses import Response, ResponseCompletedEvent

from turnwire.agents.context_changes import is_plain
from turnwire.agents.openai_agents.events import Run, running_run
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, TurnJournal, fingerprint
from turnwire.core.log.events import Usage
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import ToolOutcome

_STRUCTURED = {kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)}


# Models


async def begin_reply(
    journal: TurnJournal, run: Run, agent: Agent[Any] | None, model: str, request: Any
) -> JournaledCall:
    """Begin a model call of a run, when everything before it is in the log."""
    await run.queue.flush()
    names = (agent.name if agent else "", model)
    return await journal.begin_model(run.place, names=names, fingerprint=fingerprint(request), agent_path=run.path)


async def finish_reply(call: JournaledCall, run: Run, response: Response) -> None:
    """Record a reply, when its text is in the log."""
    await run.queue.flush()
    usage = response.usage and Usage(response.usage.input_tokens, response.usage.output_tokens)
    call.finish(response.to_dict(mode="json", warnings=False), usage=usage)


async def recorded_reply(call: JournaledCall, run: Run, *, is_value: bool) -> ResponseCompletedEvent:
    """Return a recorded reply as the one event that the SDK needs, and show its text again if that was taken back."""
    # Servers send less than the types demand, so nothing is validated.
    response = Response.construct(**call.result)
    text = response.output_text
    run.begin_reply(is_value=is_value)
    if call.is_shown:
        run.note_text(text)
    else:
        if text:
            run.add_text(text)
            await run.queue.flush()
        call.show()
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
    bases = (invoker.__class__,) if hasattr(invoker, "__agents_bind_function_tool__") else ()
    kind: Any = type("JournaledInvoker", bases, {"is_journaled": True, "__call__": call})
    journaled = kind.__new__(kind)
    journaled.__dict__.update(getattr(invoker, "__dict__", {}))
    return journaled


async def _invoke(tool: FunctionTool, invoker: Any, context: ToolContext[Any], arguments: str) -> Any:
    run = running_run()
    if run is None or (journal := run.queue.journal) is None:
        return await invoker(context, arguments)
    call_id = context.tool_call_id
    if tool._is_agent_tool:  # pyright: ignore[reportPrivateUsage]
        with journal.inside(f"{run.place}:{call_id}"):
            return await invoker(context, arguments)
    await run.queue.flush()
    try:
        call = await journal.begin_tool(run.place, call_id, tool.name, read_arguments(arguments), agent_path=run.path)
    except ToolDeniedError as denied:
        run.fail_call(call_id, str(denied))
        return str(denied)
    with call:
        changes = run.queue.changes_of(context.context)
        if not call.is_live:
            if changes is not None:
                changes.restore(call.result.get("changes"))
            return _restore(run, call_id, call.result)
        result = await invoker(context, arguments)
        call.finish({**_record(run, call_id, result), "changes": changes.take() if changes is not None else None})
    return result


def _record(run: Run, call_id: str, result: Any) -> dict[str, Any]:
    state = run.call_state(call_id)
    kind = type(result).__name__ if type(result) in _STRUCTURED.values() else None
    # Of anything that JSON does not give back as it was, the SDK sends the text to the model.
    value = result.model_dump(mode="json") if kind else result if is_plain(result) else str(result)
    return {
        "result": value,
        "kind": kind,
        "failed": state is not None and state.has_failed,
        "failure": state and state.failure,
        "outcome": to_builtins(state.outcome) if state is not None and state.outcome else None,
    }


def _restore(run: Run, call_id: str, recorded: dict[str, Any]) -> Any:
    if recorded["outcome"]:
        run.note_outcome(call_id, convert(recorded["outcome"], ToolOutcome))
    elif recorded["failed"]:
        run.fail_call(call_id, recorded["failure"])
    kind = _STRUCTURED.get(recorded["kind"])
    return kind.model_validate(recorded["result"]) if kind else recorded["result"]
