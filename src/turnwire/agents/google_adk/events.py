"""Events of SDK runs: from the callbacks of the SDK's plugins to the turn's log.

A turn has one run, and one more for every agent that a tool runs; the further runs have an agent path. Agents that
work in parallel in one run have a branch and an agent path each.
"""

import time
from collections.abc import Sequence
from contextvars import ContextVar
from copy import copy
from typing import Any, cast

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event as SdkEvent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool
from google.genai import types
from msgspec import Struct

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.google_adk.approvals import AdkCheckpoint, Confirmation, confirmations_in
from turnwire.agents.google_adk.continuation import (
    begin_reply,
    name_calls,
    record_reply,
    record_result,
    recorded_reply,
    restore_result,
)
from turnwire.agents.google_adk.errors import CallFailure, explain_failure, reply_failure
from turnwire.agents.google_adk.options import add_to_request
from turnwire.agents.google_adk.tools import AdkClientTool, AdkTool
from turnwire.core.errors import AgentError, ToolError, step_limit_reached
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError
from turnwire.core.journal.waits import ClientTool, check_names
from turnwire.core.log.approvals import Decision, Resumption
from turnwire.core.log.events import (
    HandoffEvent,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.model_options import ModelOptions
from turnwire.core.run.inputs import current_inputs
from turnwire.tools.invocation import elapsed_ms, loggable, plain, set_running_call, tool_error_text


class _ToolCall(Struct):
    """A running tool call. `began` is None for one that began before a suspension."""

    tool: str
    began: float | None
    path: Path
    failure: str | None = None
    journaled: JournaledCall | None = None


class _Branch:
    """The agents of a run that work one after the other: they make one model call at a time."""

    def __init__(self, path: Path, place: str) -> None:
        self.path = path
        self.place = place
        self.has_text = False
        self.begins_reply = False
        self.reply: JournaledCall | None = None
        self.model = ""


class RunPlugin(BasePlugin):
    """Recorder of one run. `place` is the run's place in the turn's journal.

    `pending` are the confirmations that the run waits for, by call id; `editable` are the ids of the calls whose
    arguments a person may change. `options` are the client's model options. `has_called` is True if the turn's own
    agent has called a tool.
    """

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__("turnwire")
        self.queue = queue
        self.path = path
        self.place = place
        self.runner: Runner | None = None
        self.client_tools: Sequence[ClientTool] = ()
        self.options = ModelOptions()
        self.has_called = False
        self.max_calls = 0
        self.model_calls = 0
        self.failure: CallFailure | None = None
        self.pending: dict[str, Confirmation] = {}
        self.editable: set[str] = set()
        self._branches: dict[str, _Branch] = {"": _Branch(path, place)}
        self._calls: dict[str, _ToolCall] = {}
        self._decisions: dict[str, Decision] = {}
        self._replies: list[str] = []
        self._error: SdkEvent | None = None

    def attach(self, runner: Runner) -> Runner:
        """Return a copy of a runner for this run only, whose first plugin this is.

        The runner itself may have other runs at the same time, also of other turns. The plugin of the run that has
        started this one is left out.
        """
        others = [plugin for plugin in runner.plugin_manager.plugins if not isinstance(plugin, RunPlugin)]
        self.runner = copy(runner)
        self.runner.plugin_manager = copy(runner.plugin_manager)
        self.runner.plugin_manager.plugins = [self, *others]
        return self.runner

    def leave_branches(self) -> None:
        for name, branch in self._branches.items():
            if name:
                leave_agent(branch.path)

    @property
    def has_text(self) -> bool:
        return self._branches[""].has_text

    @has_text.setter
    def has_text(self, value: bool) -> None:
        self._branches[""].has_text = value

    def restore(self, checkpoint: AdkCheckpoint, resumption: Resumption) -> None:
        """Restore what a suspended run had reached."""
        self.has_text = checkpoint.has_text
        self.model_calls = checkpoint.model_calls
        self.has_called = True
        self._calls = {request.call_id: _ToolCall(request.tool, None, self.path) for request in checkpoint.pending}
        self._decisions = {decision.call_id: decision for decision in resumption.decisions}

    # Text

    def _write(self, branch: _Branch, text: str) -> None:
        if branch.begins_reply and branch.has_text:
            self._put_text(branch, PARAGRAPH)
        branch.begins_reply, branch.has_text = False, True
        self._put_text(branch, text)

    def _put_text(self, branch: _Branch, text: str) -> None:
        self.queue.put(TokenEvent(text, agent_path=branch.path) if branch.path else text)

    def _write_parts(self, branch: _Branch, response: LlmResponse) -> None:
        for part in _text_parts(response):
            if part.thought:
                self.queue.put(ReasoningEvent(content=part.text or "", agent_path=branch.path))
            else:
                self._write(branch, part.text or "")

    def read(self, event: SdkEvent) -> None:
        """Record what an event of the SDK has that no callback has seen."""
        for request in confirmations_in(event):
            self.pending[request.call_id] = request
        if event.partial or event.author == "user":
            return
        self._error = event if event.error_code else None
        text = _answer_text(event)
        if text in self._replies:
            self._replies.remove(text)
        elif text and not (self.queue.journal and self.queue.journal.is_replaying):
            # An agent without a model, or a callback of the application, has made it.
            branch = self._branches.get(event.branch or "", self._branches[""])
            branch.begins_reply = True
            self._write(branch, text)

    def check_end(self) -> None:
        """Raise AgentError if the run has ended with an error that the SDK reports as an event."""
        if self._error is not None and not self.has_text:
            raise AgentError(f"the agent ended with the error {self._error.error_code}", code="bad_answer")

    def _branch(self, context: CallbackContext) -> _Branch:
        name = context.branch or ""
        if name not in self._branches:
            place = f"{self.place}|{name}" if self.place else ""
            path = enter_agent(self.path, context.agent_name, place=place)
            self._branches[name] = _Branch(path, place)
        return self._branches[name]

    # Models

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        branch = self._branch(callback_context)
        branch.begins_reply = True
        branch.model = llm_request.model or ""
        self.model_calls += 1
        if 0 < self.max_calls < self.model_calls:
            raise step_limit_reached()
        if not branch.path:
            await self._prepare(branch, callback_context, llm_request)
        journal = self.queue.journal
        if journal is None:
            return None
        await self.queue.flush()
        _end(branch)
        call = await begin_reply(journal, branch.place, branch.path, callback_context.agent_name, llm_request)
        if call.is_live:
            branch.reply = call
            return None
        response = recorded_reply(call)
        self._note_reply(response)
        if call.is_shown:
            branch.has_text = branch.has_text or bool(_answer_text(response))
            branch.begins_reply = False
        else:
            self._write_parts(branch, response)
            await self.queue.flush()
            call.show()
        return response

    async def _prepare(self, branch: _Branch, context: CallbackContext, request: LlmRequest) -> None:
        """Add the client's tools and options, and the turn's new messages, to a request of the turn's own agent."""
        if self.client_tools:
            check_names(set(request.tools_dict), self.client_tools)
            request.append_tools([AdkClientTool(tool) for tool in self.client_tools])
        add_to_request(self.options.for_call(has_tools=bool(request.tools_dict), has_called=self.has_called), request)
        if (inputs := current_inputs()) is None:
            return
        await self.queue.flush()
        for text in await inputs.take(branch.place or None):
            content = types.Content(role="user", parts=[types.Part(text=text)])
            request.contents.append(content)
            assert self.runner is not None
            # As events of the session, they are in the later requests of the run too.
            event = SdkEvent(author="user", content=content, invocation_id=context.invocation_id)
            await self.runner.session_service.append_event(context.session, event)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        branch = self._branch(callback_context)
        if llm_response.partial:
            self._write_parts(branch, llm_response)
            await self.queue.wait_for_room()
            return None
        usage = llm_response.usage_metadata
        if usage is not None:
            self.queue.put(_usage_event(usage, llm_response.model_version or branch.model, branch.path))
        if (failure := reply_failure(llm_response)) is not None:
            _end(branch)
            raise failure
        if branch.begins_reply:  # It was not streamed.
            self._write_parts(branch, llm_response)
        name_calls(llm_response)
        self._note_reply(llm_response)
        if branch.reply is not None:
            await self.queue.flush()
            spent = None if usage is None else Usage(usage.prompt_token_count, _output_tokens(usage))
            record_reply(branch.reply, llm_response, spent)
            branch.reply = None
        return None

    def _note_reply(self, response: LlmResponse) -> None:
        if text := _answer_text(response):
            self._replies.append(text)

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        self.failure = CallFailure(error, llm_request.model or "")
        _end(self._branch(callback_context))
        return None

    # Tools

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        if isinstance(tool, TransferToAgentTool):
            return None
        branch, call_id = self._branch(tool_context), tool_context.function_call_id or ""
        if (call := self._calls.get(call_id)) is None:
            call = self._calls[call_id] = _ToolCall(tool.name, time.perf_counter(), branch.path)
            self.has_called = self.has_called or not branch.path
            self.queue.put(ToolCallEvent(call_id, tool.name, plain(tool_args), agent_path=branch.path))
        await self.queue.flush()
        set_running_call(call_id)
        _caller.set(ToolCaller(self.queue, branch.path))
        decision = self._decisions.get(call_id)
        if decision is not None and decision.approved and decision.requested_args is not None:
            tool_args.clear()
            tool_args.update(decision.args)
        if self.queue.journal is None or await self._is_held(tool, tool_args, tool_context):
            return None
        return await self._begin(call, branch, tool, tool_args, tool_context)

    async def _is_held(self, tool: BaseTool, args: dict[str, Any], context: ToolContext) -> bool:
        """Return True if the SDK does not run the tool, since a person has not confirmed the call."""
        confirmation = context.tool_confirmation
        is_confirmed = confirmation is not None and confirmation.confirmed
        return not is_confirmed and await tool.check_require_confirmation(args, context) is True

    async def _begin(
        self, call: _ToolCall, branch: _Branch, tool: BaseTool, args: dict[str, Any], context: ToolContext
    ) -> dict[str, Any] | None:
        """Begin the call in the journal, and return its result if it has finished before."""
        journal = self.queue.journal
        assert journal is not None
        try:
            journaled = await journal.begin_tool(
                branch.place,
                context.function_call_id or "",
                tool.name,
                plain(args),
                agent_path=branch.path,
                repeatable=isinstance(tool, AdkTool) and tool.tool.idempotent,
            )
        except ToolDeniedError as denied:
            return {"error": str(denied)}
        call.journaled = journaled.__enter__()
        if journaled.is_live:
            return None
        call.failure = "" if journaled.result["failed"] else None
        return restore_result(journaled, context)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        if isinstance(tool, TransferToAgentTool):
            self.queue.put(
                HandoffEvent(str(tool_args.get("agent_name", "")), agent_path=self._branch(tool_context).path)
            )
            return None
        call_id = tool_context.function_call_id or ""
        if call_id in tool_context.actions.requested_tool_confirmations:
            if isinstance(tool, AdkTool) and tool.tool.editable:
                self.editable.add(call_id)
            tool_context.actions.skip_summarization = True  # The run ends here, before another model call.
            self._close(self._calls[call_id])
            return None
        if (decision := self._decisions.get(call_id)) is not None and not decision.approved:
            result = {"error": decision.denial}
        self._end_call(call_id, result, tool_context)
        return result if decision is not None and not decision.approved else None

    def _end_call(self, call_id: str, result: Any, context: ToolContext) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        error = _error_in(result)
        failed = call.failure is not None or error is not None
        if call.journaled is not None and call.journaled.is_live:
            record_result(call.journaled, result, failed, context)
        self._close(call)
        self._put_result(call_id, call, not failed, loggable(result if error is None else error))

    def _close(self, call: _ToolCall) -> None:
        if call.journaled is not None:
            call.journaled.__exit__(None, None, None)

    def _put_result(self, call_id: str, call: _ToolCall, success: bool, result: Any) -> None:
        ms = None if call.began is None else elapsed_ms(call.began)
        self.queue.put(ToolResultEvent(call_id, call.tool, success, result, ms, agent_path=call.path))

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        call_id = tool_context.function_call_id or ""
        call = self._calls.get(call_id)
        if call is None or not isinstance(error, Exception):
            return None  # It was cancelled.
        self.failure = CallFailure(error, tool.name, is_tool=True)
        text = tool_error_text(tool.name, error)
        call.failure = text
        if isinstance(error, ToolError):
            return {"error": text}
        if type(tool) is BaseTool:
            # The SDK's stand-in for a tool that does not exist; no other callback follows.
            self._end_call(call_id, {"error": f"Error: there is no tool {tool.name!r}"}, tool_context)
        return None

    def explain(self, error: Exception) -> Exception:
        """Return the error that a failed run ends with, and end the calls that it failed because of."""
        failure = explain_failure(error, self.failure)
        self._end_open_calls(failure)
        return failure

    def _end_open_calls(self, error: Exception) -> None:
        for call_id, call in list(self._calls.items()):
            if call.failure is not None or isinstance(error, AgentError):
                del self._calls[call_id]
                self._put_result(call_id, call, False, call.failure or f"Error: {error}")


class ToolCaller(Struct, frozen=True):
    """The agent whose tool is running, which may start a run."""

    queue: EventQueue
    path: Path


_caller: ContextVar[ToolCaller | None] = ContextVar("turnwire_google_adk_caller", default=None)


def current_caller() -> ToolCaller | None:
    """Return the agent whose tool is running in this context."""
    return _caller.get()


def _end(branch: _Branch) -> None:
    """Give up a model call that has not ended with a reply of the model."""
    if branch.reply is not None:
        branch.reply.__exit__(None, None, None)
        branch.reply = None


def _error_in(result: Any) -> Any:
    """Return the error of a tool that has reported one in the SDK's way, or None."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    return fields["error"] if list(fields) == ["error"] else None


def _text_parts(response: LlmResponse) -> list[types.Part]:
    parts = response.content.parts if response.content else None
    return [part for part in parts or () if part.text]


def _answer_text(response: LlmResponse) -> str:
    return "".join(part.text or "" for part in _text_parts(response) if not part.thought)


def _usage_event(usage: types.GenerateContentResponseUsageMetadata, model: str, path: Path) -> UsageEvent:
    return UsageEvent(
        model=model,
        input_tokens=usage.prompt_token_count,
        output_tokens=_output_tokens(usage),
        cached_input_tokens=usage.cached_content_token_count or None,
        reasoning_tokens=usage.thoughts_token_count or None,
        agent_path=path,
    )


def _output_tokens(usage: types.GenerateContentResponseUsageMetadata) -> int | None:
    """Return the tokens of the answer and the reasoning, which Google counts apart."""
    if usage.candidates_token_count is None and usage.thoughts_token_count is None:
        return None
    return (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
