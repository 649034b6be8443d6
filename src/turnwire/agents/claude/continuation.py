"""The start of a run: of a new turn, or of one that goes on after a wait or a crash.

Claude Code continues from a transcript, which has the replies and results of the turn's journal. Calls without a result
are made here, if their tool is in this process and is ours or was approved. Claude Code runs one of the other calls
itself; the rest get an error as their result, so that the model can repeat them.
"""

import asyncio
from typing import Any

import msgspec

from turnwire.agents.claude.events import NOT_RUN, ClaudeRun
from turnwire.agents.claude.messages import Block, api_messages, tool_result, tool_use, user_blocks
from turnwire.agents.claude.runner import RunStart
from turnwire.agents.claude.tools import call_in_process
from turnwire.core.journal.turn_journal import ToolDeniedError
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.turns import Message, ToolRequest, Turn


async def start_turn(turn: Turn, run: ClaudeRun) -> RunStart | None:
    """Repeat what the journal has, and return what a process goes on with; None if the answer is complete."""
    files = await load_turn_files(turn)
    history = api_messages([_named(each, run) for each in turn.history], files)
    prompt = user_blocks(user_message(turn), files)
    work: list[dict[str, Any]] = []
    deferred: Block | None = None
    while (content := await run.repeat_reply()) is not None:
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return None
        results, deferred = await _run_calls(calls, run)
        work.append({"role": "assistant", "content": content})
        if results:
            work.append({"role": "user", "content": results})
    if not work:
        return RunStart(messages=history, prompt=prompt)
    return RunStart(messages=[*history, {"role": "user", "content": prompt}, *work], deferred=deferred)


def _named(message: Message, run: ClaudeRun) -> Message:
    """Return a message whose tools have the names that the model knows."""
    calls = tuple(ToolRequest(call.call_id, run.tools.model_name(call.tool), call.args) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls) if calls else message


async def _run_calls(calls: list[Block], run: ClaudeRun) -> tuple[list[Block], Block | None]:
    """Run the calls of in-process servers. Return the results, and the call that Claude Code has to run itself.

    Claude Code has its own permission rules, so that call may also be one that is not ours and that nobody has decided.
    """
    running = [asyncio.create_task(_run_call(call, run)) for call in calls]
    try:
        outcomes = await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()  # If one has failed, so has the turn.
    results = [outcome for outcome in outcomes if outcome is not None]
    # Only this run knows the decisions, so a call with a decision goes first.
    unrun = [call for call, outcome in zip(calls, outcomes, strict=True) if outcome is None]
    unrun.sort(key=lambda call: call["id"] not in run.decided)
    if not unrun:
        return results, None
    first, *others = unrun
    run.skip_calls([call["id"] for call in others], after=first["id"])
    results += [tool_result(call["id"], NOT_RUN, is_error=True) for call in others]
    return results, tool_use(first["id"], first["name"], first["input"])


async def _run_call(call: Block, run: ClaudeRun) -> Block | None:
    """Return the recorded result of a call; otherwise run it if it was approved or needs no approval, or return None.

    The arguments that a person has edited replace those in the transcript.
    """
    call_id, tool = call["id"], call["name"]
    permission = run.tools.permission(tool, call["input"])
    if permission == "ask" or run.has_request(call_id):
        decision = await run.decide_once(call_id, call["input"])
        if not decision.approved:
            return _failure(run, call_id, decision.denial)
        permission, call["input"] = "allow", decision.args
    found = await run.tools.server_of(tool) if permission == "allow" else None
    if found is None and not run.has_result(call_id):
        return None
    try:
        journaled = await run.begin_once(call_id, call["input"])
    except ToolDeniedError as denied:
        return _failure(run, call_id, str(denied))
    if journaled is not None and not journaled.is_live:
        recorded: dict[str, Any] = journaled.result
        run.write_result(call_id, recorded["success"], recorded["result"])
        return tool_result(call_id, recorded["text"], is_error=not recorded["success"])
    assert found is not None
    return await call_in_process(*found, call_id, call["input"])


def _failure(run: ClaudeRun, call_id: str, text: str) -> Block:
    run.write_result(call_id, False, text)
    return tool_result(call_id, text, is_error=True)
