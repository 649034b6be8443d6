"""Events from the messages of one process of Claude Code.

The SDK streams the replies of the turn's own agent; those of its sub-agents come block by block. Claude Code begins a
tool call as soon as its block is complete, so `before_tool` holds the call until the whole reply has come.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
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
from turnwire.agents.claude.approvals import PermissionRules
from turnwire.agents.claude.errors import api_failure, reply_failure, run_failure
from turnwire.agents.claude.tools import InProcessTools, result_text
from turnwire.agents.event_queue import EventQueue
from turnwire.core.errors import AgentError
from turnwire.core.log.approvals import Decision, WaitForApproval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.models.errors import unreachable
from turnwire.tools.invocation import ToolOutcome, loggable

PARAGRAPH = "\n\n"
NOT_RUN = "Not run: another call had to wait for an approval. Call the tool again if it is still needed."
# Claude Code starts the parallel calls of a reply one after the other, and does not say when it has started them all.
_SETTLE_SECONDS = 0.5


class _ToolUse(Struct):
    """A tool call: `is_running` after it was allowed, `is_done` when its result is written.

    `agent` is the type of the sub-agent that it runs. `refusal` is the result of a call that was refused before it was
    logged. `skips` are the ids of calls whose result says, when this one ends, that they did not run.
    """

    tool: str
    path: Path
    logged: asyncio.Event
    agent: str = "agent"
    refusal: Any = None
    is_running: bool = False
    is_done: bool = False
    skips: Sequence[str] = ()


class ClaudeRun:
    """The state of one process: its open reply, its tool calls, its sub-agents, and what it waits for."""

    def __init__(self, queue: EventQueue, tools: InProcessTools, rules: PermissionRules) -> None:
        self.queue = queue
        self.tools = tools
        self.rules = rules
        self.has_text = False
        self.is_replying = False
        self.is_done = False
        self.decided: dict[str, Decision] = {}
        self.thoughts: dict[str, list[dict[str, Any]]] = {}
        """The reasoning of the replies with tool calls, by the first call: the model must get it back with them."""
        self.suspended: asyncio.Future[WaitForApproval] = asyncio.get_running_loop().create_future()
        self._calls: dict[str, _ToolUse] = {}
        self._paths: dict[str, Path] = {}
        self._requests: dict[str, ApprovalRequestEvent] = {}
        self._settling: asyncio.TimerHandle | None = None
        self._result: ResultMessage | None = None
        self._error_kind: str | None = None
        self._model = ""
        self._usage: dict[str, tuple[int, int]] = {}
        self._began: dict[str, Any] | None = None
        self._reply: list[Any] = []
        self._has_reply_text = False
        self._is_continued = False

    # Messages

    def read(self, message: Any) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._read_stream(message.event)
            case AssistantMessage(parent_tool_use_id=None, error=None):
                self._reply += message.content
            case AssistantMessage(parent_tool_use_id=None):
                self._error_kind = message.error
            case AssistantMessage(error=None):
                self._read_sub_agent(message)
            case UserMessage(content=list()):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        success = not block.is_error
                        self.end_call(block.tool_use_id, success, loggable(result_text(block.content)), None)
            case ResultMessage():
                self._result, self.is_done = message, True
            case _:
                pass

    def _read_stream(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "message_start", "message": message}:
                if self._began is not None and self._has_reply_text:
                    raise unreachable()  # Claude Code repeats a reply that broke off, whose text is shown already.
                self._began, self._reply, self._has_reply_text = message, [], False
                self._model, self.is_replying, self._error_kind = message.get("model", ""), True, None
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} if text:
                self._write_text(text)
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": text}} if text:
                self.queue.put(ReasoningEvent(text))
            case {"type": "message_delta", "delta": {"stop_reason": reason}}:
                self._end_reply(reason, event.get("usage"))
            case _:
                pass

    def _write_text(self, text: str) -> None:
        if not self._has_reply_text and self.has_text and not self._is_continued:
            self.queue.put(PARAGRAPH)
        self._has_reply_text = self.has_text = True
        self.queue.put(text)

    def _end_reply(self, stop_reason: str | None, usage: dict[str, Any] | None) -> None:
        began, self._began, self.is_replying = self._began or {}, None, False
        self._report_usage(began.get("usage"), usage)
        if stop_reason is None and self._error_kind is not None:
            raise api_failure(self._error_kind)
        calls = [block for block in self._reply if isinstance(block, ToolUseBlock)]
        # Claude Code asks for the rest of a text that has reached the limit of its length.
        self._is_continued = stop_reason == "max_tokens" and not calls
        if not self._is_continued and stop_reason not in ("end_turn", "tool_use", "stop_sequence"):
            raise reply_failure(stop_reason)
        thoughts = [block for block in self._reply if isinstance(block, ThinkingBlock)]
        if calls and thoughts:
            self.thoughts[calls[0].id] = [
                {"type": "thinking", "thinking": each.thinking, "signature": each.signature} for each in thoughts
            ]
        for block in calls:
            self._begin_call(block, ())

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
        self.queue.put(event)

    def _read_sub_agent(self, message: AssistantMessage) -> None:
        path = self._path_of(message.parent_tool_use_id or "")
        for block in message.content:
            match block:
                case TextBlock(text=text) if text:
                    self.queue.put(TokenEvent(text, agent_path=path))
                case ThinkingBlock(thinking=thinking) if thinking:
                    self.queue.put(ReasoningEvent(thinking, agent_path=path))
                case ToolUseBlock():
                    self._begin_call(block, path)
                case _:
                    pass

    def _path_of(self, call_id: str) -> Path:
        """Return the path of the sub-agent that a call runs."""
        if call_id not in self._paths:
            call = self._calls.get(call_id)
            name = call.agent if call else "agent"
            self._paths[call_id] = enter_agent(call.path if call else (), name, call_id)
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
                self.queue.put(UsageEvent(model, *rest))
        if result.is_error:
            raise run_failure(result, self._error_kind, self._model)

    def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self.suspended.cancel()
        for path in self._paths.values():
            leave_agent(path)

    # Tool calls

    def _begin_call(self, block: ToolUseBlock, path: Path) -> None:
        call = self._call(block.id)
        if call.logged.is_set():
            return
        call.tool, call.path = block.name, path
        if block.name in ("Agent", "Task"):
            call.agent = str(block.input.get("subagent_type") or block.name)
        args: dict[str, Any] = block.input if isinstance(cast("Any", block.input), dict) else {}
        args = {} if "__unparsedToolInput" in args else args
        self.queue.put(ToolCallEvent(block.id, self.tools.shown_name(block.name), args, agent_path=path))
        call.logged.set()
        if call.refusal is not None:
            self.end_call(block.id, False, call.refusal, None)

    def _call(self, call_id: str) -> _ToolUse:
        return self._calls.setdefault(call_id, _ToolUse("", (), asyncio.Event()))

    def restore_call(self, call_id: str, tool: str, *, is_done: bool) -> None:
        """Note a call that is in the log already."""
        call = self._call(call_id)
        call.tool, call.is_done = tool, is_done
        call.logged.set()

    def end_call(self, call_id: str, success: bool, result: Any, ms: float | None) -> None:
        """Write the result of a call, once."""
        call = self._call(call_id)
        if not call.logged.is_set():
            call.refusal = result  # Claude Code refuses a call before the reply that makes it is whole.
        if call.is_done or not call.logged.is_set():
            return
        call.is_done, call.is_running = True, False
        self.queue.put(
            ToolResultEvent(call_id, self.tools.shown_name(call.tool), success, result, ms, agent_path=call.path)
        )
        for skipped in call.skips:
            self.end_call(skipped, False, NOT_RUN, None)
        self._settle()

    def skip_calls(self, call_ids: Sequence[str], *, after: str) -> None:
        """End these calls as not run when the call `after` ends. If that call is suspended, they stay open with it."""
        self._call(after).skips = call_ids

    async def report(self, call_id: str, outcome: ToolOutcome) -> None:
        """Write the outcome of a call of an in-process server."""
        self.end_call(call_id, outcome.success, loggable(outcome.result), outcome.ms)

    async def before_tool(self, data: Any, call_id: str | None, context: Any) -> Any:
        """Hold a call until its whole reply is in the log. Our own rules decide about our tools, not the SDK's."""
        name, args = str(data["tool_name"]), cast("dict[str, Any]", data["tool_input"])
        call_id = call_id or str(data["tool_use_id"])
        call = self._call(call_id)
        await call.logged.wait()
        await self.queue.flush()
        permission = self.rules.permission(name, args)
        if call_id in self.decided:
            permission = "allow"
        call.is_running = True
        self._settle()
        return {} if permission is None else _permission(permission)

    async def decide(self, tool: str, args: dict[str, Any], context: ToolPermissionContext) -> PermissionResult:
        """Request an approval for a call. Claude Code gets no answer: the turn is suspended, and the process ends."""
        call_id = context.tool_use_id or ""
        if context.agent_id is not None:
            return PermissionResultDeny(
                message=f"Denied: {tool} needs an approval, which a sub-agent cannot get. Let the main agent call it."
            )
        if (decision := self.decided.get(call_id)) is not None:
            return PermissionResultAllow(updated_input=decision.args)
        call = self._call(call_id)
        self._requests[call_id] = self.rules.request(call_id, tool, args)
        call.is_running = False
        self._settle()
        await asyncio.Event().wait()
        raise AssertionError("a call that waits for an approval is never answered")

    def _settle(self) -> None:
        """Suspend the turn as soon as no call runs and none has begun for a while."""
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self.queue.loop.call_later(_SETTLE_SECONDS, self._suspend)

    def _suspend(self) -> None:
        if self._requests and not self.suspended.done() and not any(call.is_running for call in self._calls.values()):
            self.suspended.set_result(self.suspension(list(self._requests.values())))

    def suspension(self, requests: list[ApprovalRequestEvent]) -> WaitForApproval:
        return WaitForApproval(requests, msgspec.json.encode(self.thoughts))


def _permission(decision: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision}}
