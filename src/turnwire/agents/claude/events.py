"""Events from the messages of one process of Claude Code, and the journal of its replies and tool calls.

The SDK streams the replies of the turn's own agent; those of its sub-agents come block by block. Claude Code begins a
tool call as soon as its block is complete, so `before_tool` holds the call until the whole reply has come.

A sub-agent is one call of the turn's own agent: its replies and tool calls are not recorded.
"""

import asyncio
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
from msgspec import Struct

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.claude.errors import api_failure, reply_failure, run_failure
from turnwire.agents.claude.messages import Block, text_block, tool_use
from turnwire.agents.claude.tools import InProcessTools, result_text
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.errors import AgentError
from turnwire.core.journal.turn_journal import APPROVAL, JournaledCall, ToolDeniedError
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ReasoningEvent, TokenEvent, ToolCallEvent, ToolResultEvent, Usage, UsageEvent
from turnwire.models.errors import unreachable
from turnwire.tools.invocation import ToolOutcome, loggable

NOT_RUN = "Not run: another call had to wait for an approval. Call the tool again if it is still needed."
# A reply belongs to no model of the journal's: the options may name another one when the turn goes on.
_NAMES = ("", "Claude Code")
# Claude Code starts the parallel calls of a reply one after the other, and does not say when it has started them all.
_SETTLE_SECONDS = 0.5


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


class ClaudeRun(RunRecorder):
    """The state of one process: its open reply, its tool calls, its sub-agents, and the decisions about its calls."""

    def __init__(self, queue: EventQueue, tools: InProcessTools) -> None:
        super().__init__(queue)
        self.tools = tools
        self.is_replying = False
        self.is_done = False
        self.decided: dict[str, Decision] = {}
        self._calls: dict[str, _ToolUse] = {}
        self._paths: dict[str, Path] = {}
        self._settled = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._result: ResultMessage | None = None
        self._error_kind: str | None = None
        self._model = ""
        self._usage: dict[str, tuple[int, int]] = {}
        self._message: dict[str, Any] | None = None
        self._reply: list[Any] = []
        self._has_reply_text = False
        # A reply that has reached the limit of its length and the rest of it are one call in the journal.
        self._journaled: JournaledCall | None = None
        self._is_continued = False
        self._parts: list[Block] = []
        self._spent: list[UsageEvent] = []

    # Messages

    async def read(self, message: Any) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                await self._read_stream(message.event)
            case AssistantMessage(parent_tool_use_id=None, error=None):
                self._reply += message.content
            case AssistantMessage(parent_tool_use_id=None):
                self._error_kind = message.error
            case AssistantMessage(error=None):
                await self._read_sub_agent(message)
            case UserMessage(content=list()):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        await self.finish_call(block.tool_use_id, not block.is_error, result_text(block.content))
            case ResultMessage():
                self._result, self.is_done = message, True
            case _:
                pass

    async def _read_stream(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "message_start", "message": message}:
                if self._message is not None and self._has_reply_text:
                    raise unreachable()  # Claude Code repeats a reply that broke off, whose text is shown already.
                if self._message is None and not self._is_continued:
                    self.begins_reply = True
                    self._journaled = await self.begin_model(_NAMES, lambda: None)
                self._message, self._reply, self._has_reply_text = message, [], False
                self._model, self.is_replying, self._error_kind = message.get("model", ""), True, None
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} if text:
                self._has_reply_text = True
                self.write(text)
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": text}}:
                self.think(text)
            case {"type": "message_delta", "delta": {"stop_reason": reason}}:
                await self._end_reply(reason, event.get("usage"))
            case _:
                pass

    async def _end_reply(self, stop_reason: str | None, usage: dict[str, Any] | None) -> None:
        began, self._message, self.is_replying = self._message or {}, None, False
        self._report_usage(began.get("usage"), usage)
        if stop_reason is None and self._error_kind is not None:
            raise api_failure(self._error_kind)
        calls = [block for block in self._reply if isinstance(block, ToolUseBlock)]
        # Claude Code asks for the rest of a text that has reached the limit of its length.
        self._is_continued = stop_reason == "max_tokens" and not calls
        if not self._is_continued and stop_reason not in ("end_turn", "tool_use", "stop_sequence"):
            raise reply_failure(stop_reason)
        self._parts += filter(None, map(_api_block, self._reply))
        if self._is_continued:
            return
        content, self._parts = self._parts, []
        counts = [(event.input_tokens or 0, event.output_tokens or 0) for event in self._spent]
        spent = Usage(sum(each for each, _ in counts), sum(each for _, each in counts)) if counts else None
        self._spent = []
        await self.finish_model(self._journaled, lambda: content, spent)
        for block in calls:
            await self._begin_call(block)

    def _report_usage(self, began: dict[str, Any] | None, ended: dict[str, Any] | None) -> None:
        if not began and not ended:
            return
        counts = {**(began or {}), **(ended or {})}
        cached = counts.get("cache_read_input_tokens")
        inputs = [counts.get(name) for name in ("input_tokens", "cache_creation_input_tokens")] + [cached]
        known = [each for each in inputs if each is not None]
        event = UsageEvent(self._model, sum(known) if known else None, counts.get("output_tokens"), cached or None)
        before = self._usage.get(self._model, (0, 0))
        self._usage[self._model] = (before[0] + (event.input_tokens or 0), before[1] + (event.output_tokens or 0))
        self._spent.append(event)
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
            known = self._usage.get(model, (0, 0))
            rest = (inputs - known[0], total["outputTokens"] - known[1])
            if max(rest) > 0:
                self.put(UsageEvent(model, *rest))
        if result.is_error:
            raise run_failure(result, self._error_kind, self._model)

    def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        for path in self._paths.values():
            leave_agent(path)

    # Recorded replies

    @property
    def has_recorded_reply(self) -> bool:
        """Return True if the next reply is in the journal."""
        journal = self.queue.journal
        return journal is not None and journal.next_call(self.place)[1]

    async def repeat_reply(self) -> list[Block]:
        """Return the blocks of the next recorded reply, and write its events again."""
        self.begins_reply = True
        call = await self.begin_model(_NAMES, lambda: None)
        assert call is not None
        content: list[Block] = call.result
        text, thoughts = ("".join(block.get(kind, "") for block in content) for kind in ("text", "thinking"))
        await self.show_again(call, text, thoughts)
        for block in content:
            if block["type"] == "tool_use":
                await self._begin_call(ToolUseBlock(block["id"], block["name"], block["input"]))
        return content

    def is_recorded(self, call_id: str) -> bool:
        """Return True if the result of a call is in the journal."""
        journal = self.queue.journal
        return journal is not None and journal.next_call(self._base(call_id))[1]

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

    async def report(self, call_id: str, outcome: ToolOutcome) -> None:
        """Write the outcome of a call of an in-process server."""
        await self.finish_call(call_id, outcome.success, outcome.result, outcome.text, outcome.ms)

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


def _permission(decision: str, reason: str | None = None) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision}
    return {"hookSpecificOutput": output | ({"permissionDecisionReason": reason} if reason else {})}
