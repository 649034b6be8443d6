"""The start of a run: of a new turn, after an approval, or after a crash.

Claude Code continues from a transcript. Calls without a result are made here, if their tool is in this process and is
ours or was approved. Claude Code runs one of the other calls itself; the rest get an error as their result, so that the
model can repeat them.
"""

import asyncio
from typing import Any

import msgspec

from turnwire.agents.claude.events import NOT_RUN, PARAGRAPH, ClaudeRun
from turnwire.agents.claude.messages import Block, api_messages, tool_result, tool_use, user_blocks
from turnwire.agents.claude.runner import RunStart
from turnwire.agents.claude.tools import call_in_process, reporting
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.turns import Message, ToolRequest, Turn


async def continue_turn(turn: Turn, run: ClaudeRun) -> RunStart:
    """Return what a process begins with. Raises WaitForApproval if a call that has not run needs an approval."""
    files, message = await load_turn_files(turn), user_message(turn)
    history = [_named(each, run) for each in turn.history]
    if not any(step.tool_calls for step in turn.progress):
        return RunStart(messages=api_messages(history, files), prompt=user_blocks(message, files))
    progress = [_named(each, run) for each in _without_paragraphs(turn.progress, run)]
    if turn.resumption is not None:
        run.decided = {decision.call_id: decision for decision in turn.resumption.decisions}
        if turn.resumption.checkpoint:
            run.thoughts = msgspec.json.decode(turn.resumption.checkpoint)
    ended = {step.call_id for step in progress if step.role == "tool"}
    calls = [call for step in progress for call in step.tool_calls]
    for call in calls:
        run.restore_call(call.call_id, call.tool, is_done=call.call_id in ended)
    results, deferred = await _run_calls([call for call in calls if call.call_id not in ended], run)
    messages = api_messages([*history, message, *progress], files)
    for each in messages:
        blocks: list[Block] = each["content"]
        first = next((block for block in blocks if block["type"] == "tool_use"), None)
        if first is not None:
            blocks[:0] = run.thoughts.get(first["id"], [])
            for block in blocks:
                decision = run.decided.get(block.get("id", ""))
                if decision is not None and decision.approved:
                    block["input"] = decision.args
    if results:
        if messages[-1]["role"] == "user":
            messages[-1]["content"] += results
        else:
            messages.append({"role": "user", "content": results})
    return RunStart(messages=messages, deferred=deferred)


def _named(message: Message, run: ClaudeRun) -> Message:
    """Return a message whose tools have the names that the model knows."""
    calls = tuple(ToolRequest(call.call_id, run.tools.model_name(call.tool), call.args) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls) if calls else message


def _without_paragraphs(progress: tuple[Message, ...], run: ClaudeRun) -> list[Message]:
    """Return the messages without the empty lines that the adapter has written between paragraphs."""
    messages: list[Message] = []
    for message in progress:
        if message.role == "assistant" and message.content:
            content = message.content.removeprefix(PARAGRAPH) if run.has_text else message.content
            run.has_text = True
            message = msgspec.structs.replace(message, content=content)
        messages.append(message)
    return messages


async def _run_calls(calls: list[ToolRequest], run: ClaudeRun) -> tuple[list[Block], Block | None]:
    """Run the calls of in-process servers. Return the results, and the call that Claude Code has to run itself.

    Claude Code has its own permission rules, so that call may also be one that is not ours and that nobody has decided.
    """
    token = reporting.set(run.report)
    running = [asyncio.create_task(_run_call(call, run)) for call in calls]
    try:
        outcomes: list[Block | ToolRequest] = await asyncio.gather(*running)
    finally:
        reporting.reset(token)
        for task in running:
            task.cancel()  # If one has failed, so has the turn.
    results = [each for each in outcomes if not isinstance(each, ToolRequest)]
    unrun = [each for each in outcomes if isinstance(each, ToolRequest)]
    # Only this run knows the decisions, so a call with a decision goes first.
    unrun.sort(key=lambda call: call.call_id not in run.decided)
    if not unrun:
        return results, None
    first, *others = unrun
    requests = [request for call in unrun if (request := _request(call, run))]
    if requests and first.call_id not in run.decided:
        raise run.suspension(requests)
    run.skip_calls([call.call_id for call in others], after=first.call_id)
    results += [tool_result(call.call_id, NOT_RUN, is_error=True) for call in others]
    return results, tool_use(first.call_id, first.tool, _args(first, run))


async def _run_call(call: ToolRequest, run: ClaudeRun) -> Block | ToolRequest:
    """Run a call that was approved or needs no approval. Return its result or denial; return any other call."""
    decision = run.decided.get(call.call_id)
    if decision is not None and not decision.approved:
        run.end_call(call.call_id, False, decision.denial, None)
        return tool_result(call.call_id, decision.denial, is_error=True)
    if decision is None and run.rules.permission(call.tool, call.args) != "allow":
        return call
    found = await run.tools.server_of(call.tool)
    if found is None:
        return call
    server, name = found
    outcome = await call_in_process(server, call.call_id, name, _args(call, run))
    return tool_result(call.call_id, outcome.text, is_error=not outcome.success)


def _request(call: ToolRequest, run: ClaudeRun) -> ApprovalRequestEvent | None:
    """Return the request for an approval of a call of our tools that needs one."""
    if call.call_id in run.decided or run.rules.permission(call.tool, call.args) != "ask":
        return None
    return run.rules.request(call.call_id, call.tool, call.args)


def _args(call: ToolRequest, run: ClaudeRun) -> dict[str, Any]:
    decision = run.decided.get(call.call_id)
    return decision.args if decision is not None else call.args
