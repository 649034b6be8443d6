"""Events from the messages of one process of Claude Code, and the journal of its replies and tool calls.

The SDK streams the replies of the turn's own agent; those of its sub-agents come block by block. Claude Code begins a
tool call as soon as its block is complete, so `before_tool` holds the call until the whole reply has come.

A sub-agent is one call of the turn's own agent: its replies and tool calls are not recorded.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

from claude_agent_sdk import (
    AssistantMessage,
    PermissionResult,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    ToolPermissionContext,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from msgspec import Struct, field

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.claude.errors import api_failure, reply_failure, run_failure
from turnwire.agents.claude.messages import Block, text_block, tool_use
from turnwire.agents.claude.tools import CALL_ID, InProcessTools, collecting, result_text
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import RunRecorder
from turnwire.agents.sdk_internals import wrap
from turnwire.core.errors import AgentError
from turnwire.core.journal.turn_journal import APPROVAL, JournaledCall, ToolDeniedError
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ReasoningEvent, TokenEvent, ToolCallEvent, ToolResultEvent, Usage, UsageEvent
from turnwire.models.errors import unreachable
from turnwire.tools.invocation import ToolOutcome, elapsed_ms, loggable, running_call

NOT_RUN = "Not run: another call had to wait for an approval. Call the tool again if it is still needed."
# A reply belongs to no model of the journal's: the options may name another one when the turn goes on.
_NAMES = ("", "Claude Code")
# Claude Code starts the parallel calls of a reply one after the other, and does not say when it has started them all.
_SETTLE_SECONDS = 0.5
_MCP = "mcp"
_CALL = "tools/call"
_WRAPPED = "turnwire_wrapped"


class _ToolUse(Struct):
    """A tool call: `is_running` after it was allowed, `is_done` when its result is written.

    `owner` is the id of the call of the turn's own agent that it is, or that runs its sub-agent; `agent` is the type of
    the sub-agent that it runs. `refusal` is the result of a call that was refused before it was logged. `skips` are the
    ids of calls whose result says, when this one ends, that they did not run.
    """

    tool: str
    args: dict[str, Any]
    path: Path
    owner: str
    logged: asyncio.Event
    journaled: JournaledCall | None = None
    agent: str = "agent"
    refusal: Any = None
    is_running: bool = False
    is_done: bool = False
    skips: Sequence[str] = ()


class _Reply(Struct):
    """A reply that is being streamed, as one or more messages, of which `message` is the start of the open one.

    A message that has reached the limit of its length and the rest of it are one call in the journal: `parts` are the
    blocks of the messages before this one. `begun` is the number of usage events before the reply.
    """

    journaled: JournaledCall | None
    begun: int
    message: dict[str, Any] | None = None
    blocks: list[Any] = field(default_factory=list[Any])
    has_text: bool = False
    parts: list[Block] = field(default_factory=list[Block])


class ClaudeRun(RunRecorder):
    """The state of one process: its open reply, its tool calls, its sub-agents, and the decisions about its calls."""

    def __init__(self, queue: EventQueue, tools: InProcessTools) -> None:
        super().__init__(queue)
        self.tools = tools
        self.decided: dict[str, Decision] = {}
        self._calls: dict[str, _ToolUse] = {}
        self._paths: dict[str, Path] = {}
        self._settled = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._reply: _Reply | None = None
        self._result: ResultMessage | None = None
        self._error_kind: str | None = None
        self._model = ""
        self._usage: list[UsageEvent] = []

    @property
    def is_replying(self) -> bool:
        return self._reply is not None and self._reply.message is not None

    @property
    def is_done(self) -> bool:
        return self._result is not None

    # Messages

    async def read(self, message: Any) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                await self._read_stream(message.event)
            case AssistantMessage(parent_tool_use_id=None, error=None):
                if self._reply is not None:
                    self._reply.blocks += message.content
            case AssistantMessage(parent_tool_use_id=None):
                self._error_kind = message.error
            case AssistantMessage(error=None):
                await self._read_sub_agent(message)
            case UserMessage(content=list()):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        await self.finish_call(block.tool_use_id, not block.is_error, result_text(block.content))
            case ResultMessage():
                self._result = message
            case _:
                pass

    async def _read_stream(self, event: dict[str, Any]) -> None:
        reply = self._reply
        match event:
            case {"type": "message_start", "message": message}:
                if reply is None:
                    call = await self.begin_model(_NAMES, lambda: None)
                    reply = self._reply = _Reply(call, len(self._usage))
                if reply.message is not None and reply.has_text:
                    raise unreachable()  # Claude Code repeats a reply that broke off, whose text is shown already.
                reply.message, reply.blocks, reply.has_text = message, [], False
                self._model, self._error_kind = message.get("model", ""), None
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} if text:
                if reply is not None:
                    reply.has_text = True
                self.write(text)
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": text}}:
                self.think(text)
            case {"type": "message_delta", "delta": {"stop_reason": reason}} if reply is not None:
                await self._end_message(reply, reason, event.get("usage"))
            case _:
                pass

    async def _end_message(self, reply: _Reply, stop_reason: str | None, usage: dict[str, Any] | None) -> None:
        began, reply.message = reply.message or {}, None
        self._report_usage({**(began.get("usage") or {}), **(usage or {})})
        if stop_reason is None and self._error_kind is not None:
            raise api_failure(self._error_kind)
        calls = [block for block in reply.blocks if isinstance(block, ToolUseBlock)]
        # Claude Code asks for the rest of a text that has reached the limit of its length.
        is_continued = stop_reason == "max_tokens" and not calls
        if not is_continued and stop_reason not in ("end_turn", "tool_use", "stop_sequence"):
            raise reply_failure(stop_reason)
        reply.parts += filter(None, map(_api_block, reply.blocks))
        if is_continued:
            return
        self._reply = None
        spent = self._usage[reply.begun :]
        await self.finish_model(reply.journaled, lambda: reply.parts, _total(spent) if spent else None)
        for block in calls:
            await self._begin_call(block)

    def _report_usage(self, counts: dict[str, Any]) -> None:
        if not counts:
            return
        cached = counts.get("cache_read_input_tokens")
        inputs = [counts.get(name) for name in ("input_tokens", "cache_creation_input_tokens")] + [cached]
        known = [each for each in inputs if each is not None]
        event = UsageEvent(self._model, sum(known) if known else None, counts.get("output_tokens"), cached or None)
        self._usage.append(event)
        self.put(event)

    async def _read_sub_agent(self, message: AssistantMessage) -> None:
        parent = message.parent_tool_use_id or ""
        path = self._path_of(parent)
        for block in message.content:
            match block:
                case TextBlock(text=text) if text:
                    self.queue.put(TokenEvent(text, agent_path=path))
                case ThinkingBlock(thinking=thinking) if thinking:
                    self.queue.put(ReasoningEvent(thinking, agent_path=path))
                case ToolUseBlock():
                    await self._begin_call(block, path, self._call(parent).owner)
                case _:
                    pass

    def _path_of(self, call_id: str) -> Path:
        """Return the path of the sub-agent that a call runs."""
        if call_id not in self._paths:
            call = self._call(call_id)
            self._paths[call_id] = enter_agent(call.path, call.agent, call_id)
        return self._paths[call_id]

    def finish(self) -> None:
        """Raise the error of a run that ended with one, and report the usage of its sub-agents."""
        result = self._result
        if result is None:
            raise AgentError("Claude Code ended without a result; the server's log tells more")
        for model, total in (result.model_usage or {}).items():
            inputs = total["inputTokens"] + total["cacheReadInputTokens"] + total["cacheCreationInputTokens"]
            known = _total([event for event in self._usage if event.model == model])
            rest = (inputs - (known.input_tokens or 0), total["outputTokens"] - (known.output_tokens or 0))
            if max(rest) > 0:
                self.put(UsageEvent(model, *rest))
        if result.is_error:
            raise run_failure(result, self._error_kind, self._model)

    def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        for path in self._paths.values():
            leave_agent(path)

    # What the journal has

    async def repeat_reply(self) -> list[Block] | None:
        """Return the blocks of the next recorded reply, and write its events again; None if there is none."""
        if not self._is_recorded(self.place):
            return None
        call = await self.begin_model(_NAMES, lambda: None)
        assert call is not None
        content: list[Block] = call.result
        text, thoughts = ("".join(block.get(kind, "") for block in content) for kind in ("text", "thinking"))
        await self.show_again(call, text, thoughts)
        for block in content:
            if block["type"] == "tool_use":
                await self._begin_call(ToolUseBlock(block["id"], block["name"], block["input"]))
        return content

    def has_result(self, call_id: str) -> bool:
        """Return True if the result of a call is in the journal."""
        return self._is_recorded(self._base(call_id))

    def _is_recorded(self, place: str) -> bool:
        journal = self.queue.journal
        return journal is not None and journal.next_call(place)[1]

    def has_request(self, call_id: str) -> bool:
        """Return True if the journal has a request for an approval of a call."""
        journal = self.queue.journal
        entries = [each.entry for each in journal.recording.calls.values()] if journal is not None else []
        return any(entry.names == (APPROVAL,) and (entry.args or {}).get("call_id") == call_id for entry in entries)

    # Tool calls

    async def _begin_call(self, block: ToolUseBlock, path: Path = (), owner: str = "") -> None:
        call = self._call(block.id)
        if call.logged.is_set():
            return
        args: dict[str, Any] = block.input if isinstance(cast("Any", block.input), dict) else {}
        call.args = {} if "__unparsedToolInput" in args else args
        call.tool, call.path, call.owner = block.name, path, owner or block.id
        if block.name in ("Agent", "Task"):
            call.agent = str(call.args.get("subagent_type") or block.name)
        self.queue.put(ToolCallEvent(block.id, self.tools.shown_name(block.name), call.args, agent_path=path))
        call.logged.set()
        if call.refusal is not None:
            await self.finish_call(block.id, False, call.refusal)

    def _call(self, call_id: str) -> _ToolUse:
        return self._calls.setdefault(call_id, _ToolUse("", {}, (), call_id, asyncio.Event()))

    def _base(self, call_id: str) -> str:
        return f"{self.place}:{self._call(call_id).owner}"

    def inside(self, call_id: str) -> AbstractContextManager[None]:
        """Make the waits in this context belong to a call."""
        journal = self.queue.journal
        return journal.inside(self._base(call_id)) if journal is not None else nullcontext()

    async def begin_once(self, call_id: str, args: dict[str, Any]) -> JournaledCall | None:
        """Begin a call in the journal, unless it has begun. Raises ToolDeniedError like `begin_tool`."""
        call = self._call(call_id)
        if not call.path and call.journaled is None:
            await self.queue.flush()
            ours = self.tools.find(call.tool)
            repeatable = ours is not None and ours.idempotent
            name = self.tools.shown_name(call.tool)
            call.journaled = await self.begin_tool(call_id, name, args, repeatable=repeatable)
        return call.journaled

    async def finish_call(
        self, call_id: str, success: bool, result: Any, text: str | None = None, ms: float | None = None
    ) -> None:
        """Write and record the result of a call, once; `text` is the result for the model."""
        call = self._call(call_id)
        if not call.logged.is_set():
            call.refusal = result  # Claude Code refuses a call before the reply that makes it is whole.
        if call.is_done or not call.logged.is_set():
            return
        call.is_done, call.is_running = True, False
        with suppress(ToolDeniedError):
            # A call that Claude Code has refused was not begun.
            journaled = await self.begin_once(call_id, call.args)
            if journaled is not None and journaled.is_live:
                sent = result if text is None else text
                journaled.finish({"success": success, "result": loggable(result), "text": sent})
        self.write_result(call_id, success, result, ms)
        for skipped in call.skips:
            await self.finish_call(skipped, False, NOT_RUN)
        self._settle()

    def write_result(self, call_id: str, success: bool, result: Any, ms: float | None = None) -> None:
        call = self._call(call_id)
        call.is_done, name = True, self.tools.shown_name(call.tool)
        self.queue.put(ToolResultEvent(call_id, name, success, loggable(result), ms, agent_path=call.path))

    def skip_calls(self, call_ids: Sequence[str], *, after: str) -> None:
        """End these calls as not run when the call `after` ends. If that call is suspended, they stay open with it."""
        self._call(after).skips = call_ids

    async def before_tool(self, data: Any, call_id: str | None, context: Any) -> Any:
        """Hold a call until its whole reply is in the log. Our own rules decide about our tools, not the SDK's."""
        name, args = str(data["tool_name"]), cast("dict[str, Any]", data["tool_input"])
        call_id = call_id or str(data["tool_use_id"])
        call = self._call(call_id)
        await call.logged.wait()
        await self.queue.flush()
        try:
            await self.begin_once(call_id, args)
        except ToolDeniedError as denied:
            return _permission("deny", str(denied))
        permission = "allow" if call_id in self.decided else self.tools.permission(name, args)
        call.is_running = True
        self._settle()
        return {} if permission is None else _permission(permission)

    # Approvals

    async def permit_tool(self, tool: str, args: dict[str, Any], context: ToolPermissionContext) -> PermissionResult:
        """Answer a permission request. Without a decision Claude Code gets no answer: the turn waits, its process ends.

        The other calls of the reply run first.
        """
        call_id = context.tool_use_id or ""
        if context.agent_id is not None:
            return PermissionResultDeny(
                message=f"Denied: {tool} needs an approval, which a sub-agent cannot get. Let the main agent call it."
            )
        if call_id not in self.decided:
            self._call(call_id).is_running = False
            self._settle()
            await self._settled.wait()
        decision = await self.decide_once(call_id, args)
        if not decision.approved:
            return PermissionResultDeny(message=decision.denial)
        return PermissionResultAllow(updated_input=decision.args)

    async def decide_once(self, call_id: str, args: dict[str, Any]) -> Decision:
        """Return the decision about a call, once there is one."""
        if call_id not in self.decided:
            tool = self._call(call_id).tool
            ours = self.tools.find(tool)
            editable = ours is not None and ours.editable
            with self.inside(call_id):
                self.decided[call_id] = await self.decide(call_id, self.tools.shown_name(tool), args, editable=editable)
        return self.decided[call_id]

    def _settle(self) -> None:
        """Let the requests for approval through as soon as no call runs and none has begun for a while."""
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self.queue.loop.call_later(_SETTLE_SECONDS, self._check_settled)

    def _check_settled(self) -> None:
        if not any(call.is_running for call in self._calls.values()):
            self._settled.set()


def report_calls(server: Any) -> None:
    """Report the calls of an in-process server that are made in a turn."""
    entry = wrap(_MCP, server, "get_request_handler", "method")(_CALL)
    if entry is None or hasattr(entry.handler, _WRAPPED):
        return
    inner = entry.handler

    async def call(context: Any, params: Any) -> Any:
        meta: dict[str, Any] = params.meta or {}
        run, call_id = ClaudeRun.around(), str(meta.get(CALL_ID, ""))
        if run is None:
            return await inner(context, params)
        began = time.perf_counter()
        with running_call(call_id), run.inside(call_id), collecting() as ours:
            result = await inner(context, params)
        if ours:
            (outcome,) = ours
        else:
            text = result_text([block.model_dump(mode="json", by_alias=True) for block in result.content])
            outcome = ToolOutcome(not result.is_error, text, text, elapsed_ms(began))
        await run.finish_call(call_id, outcome.success, outcome.result, outcome.text, outcome.ms)
        return result

    setattr(call, _WRAPPED, inner)
    wrap(_MCP, server, "add_request_handler", "method, params_type, handler")(_CALL, entry.params_type, call)


def _api_block(block: Any) -> Block | None:
    """Return a block of a reply as the API has it. The model must get its reasoning back with its calls."""
    match block:
        case TextBlock(text=text) if text.strip():
            return text_block(text)
        case ThinkingBlock(thinking=thinking, signature=signature):
            return {"type": "thinking", "thinking": thinking, "signature": signature}
        case ToolUseBlock(id=call_id, name=name, input=args):
            return tool_use(call_id, name, args)
        case _:
            return None


def _total(events: Sequence[UsageEvent]) -> Usage:
    return Usage(sum(each.input_tokens or 0 for each in events), sum(each.output_tokens or 0 for each in events))


def _permission(decision: str, reason: str | None = None) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision}
    return {"hookSpecificOutput": output | ({"permissionDecisionReason": reason} if reason else {})}
