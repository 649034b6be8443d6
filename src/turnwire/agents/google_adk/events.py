"""Events of SDK runs: from the callbacks of the SDK's plugins to the turn's log.

A turn has one run, and one more for every agent that a tool runs; the further runs have an agent path. Agents that
work in parallel in one run have a branch and an agent path each.
"""

from copy import copy
from typing import Any, cast

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event as SdkEvent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool
from google.genai import types
from msgspec import Struct

from turnwire.agents.agent_paths import Path, enter_agent
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.google_adk.continuation import (
    dump_reply,
    dump_request,
    dump_result,
    load_reply,
    load_result,
    name_calls,
)
from turnwire.agents.google_adk.errors import explain_failure, reply_failure
from turnwire.agents.google_adk.options import add_to_request
from turnwire.agents.google_adk.tools import AdkTool, our_tool
from turnwire.agents.run_recorder import CallFailure, RunRecorder
from turnwire.core.errors import AgentError, ToolError
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError
from turnwire.core.journal.waits import check_names
from turnwire.core.log.events import HandoffEvent, UsageEvent
from turnwire.tools.invocation import plain, set_running_call, tool_error_text


class AdkBranch(RunRecorder):
    """Recorder of the agents of a run that work one after the other: they make one model call at a time."""

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__(queue, path, place)
        self.reply: JournaledCall | None = None
        self.model = ""

    def write_parts(self, response: LlmResponse) -> None:
        for part in _text_parts(response):
            if part.thought:
                self.think(part.text)
            else:
                self.write(part.text or "")

    def give_up_reply(self) -> None:
        """Give up a model call that has not ended with a reply of the model."""
        if self.reply is not None:
            self.reply.__exit__(None, None, None)
            self.reply = None


class _ToolCall(Struct):
    """A running tool call. `failure` is the text of an exception that the tool has raised."""

    tool: str
    branch: AdkBranch
    failure: str | None = None
    journaled: JournaledCall | None = None


class RunPlugin(BasePlugin):
    """Recorder of one run. `main` records the agents that do not work in parallel to others."""

    def __init__(self, main: AdkBranch) -> None:
        super().__init__("turnwire")
        self.main = main
        self.runner: Runner | None = None
        self._branches = {"": main}
        self._calls: dict[str, _ToolCall] = {}
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
        for branch in self._branches.values():
            if branch is not self.main:
                branch.leave()

    def read(self, event: SdkEvent) -> None:
        """Record what an event of the SDK has that no callback has seen."""
        if event.partial or event.author == "user":
            return
        self._error = event if event.error_code else None
        text, journal = _answer_text(event), self.main.queue.journal
        if text in self._replies:
            self._replies.remove(text)
        elif text and not (journal and journal.is_replaying):
            # An agent without a model, or a callback of the application, has made it.
            self._branches.get(event.branch or "", self.main).write_reply(text)

    def check_end(self) -> None:
        """Raise AgentError if the run has ended with an error that the SDK reports as an event."""
        if self._error is not None and not self.main.has_text:
            raise AgentError(f"the agent ended with the error {self._error.error_code}", code="bad_answer")

    def _branch(self, context: CallbackContext) -> AdkBranch:
        name = context.branch or ""
        if name not in self._branches:
            main = self.main
            place = f"{main.place}|{name}" if main.place else ""
            branch = AdkBranch(main.queue, enter_agent(main.path, context.agent_name, place=place), place)
            branch.editable = main.editable
            self._branches[name] = branch
        return self._branches[name]

    # Models

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        branch = self._branch(callback_context)
        branch.model = llm_request.model or ""
        self.main.count_call()
        if not branch.path:
            await self._prepare(branch, callback_context, llm_request)
        branch.give_up_reply()
        names = (callback_context.agent_name, branch.model)
        call = await branch.begin_model(names, lambda: dump_request(llm_request))
        if call is None or call.is_live:
            branch.reply = call
            return None
        response = load_reply(call.result)
        self._note_reply(response)
        thoughts = "".join(part.text or "" for part in _text_parts(response) if part.thought)
        await branch.show_again(call, _answer_text(response), thoughts)
        return response

    async def _prepare(self, branch: AdkBranch, context: CallbackContext, request: LlmRequest) -> None:
        """Add the client's tools and options, and the turn's new messages, to a request of the turn's own agent."""
        if branch.client_tools:
            check_names(set(request.tools_dict), branch.client_tools)
            request.append_tools([AdkTool(tool) for tool in branch.client_tools])
        has_tools = bool(request.tools_dict)
        add_to_request(branch.options.for_call(has_tools=has_tools, has_called=branch.has_called), request)
        for text in await branch.take_inputs():
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
            branch.write_parts(llm_response)
            await branch.queue.wait_for_room()
            return None
        usage = _usage(llm_response, branch.model)
        if usage is not None:
            branch.put(usage)
        if (failure := reply_failure(llm_response)) is not None:
            branch.give_up_reply()
            raise failure
        if branch.begins_reply:  # It was not streamed.
            branch.write_parts(llm_response)
        name_calls(llm_response)
        self._note_reply(llm_response)
        await branch.finish_model(branch.reply, lambda: dump_reply(llm_response), usage)
        branch.reply = None
        return None

    def _note_reply(self, response: LlmResponse) -> None:
        if text := _answer_text(response):
            self._replies.append(text)

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        self.main.failure = CallFailure(error, llm_request.model or "")
        self._branch(callback_context).give_up_reply()
        return None

    # Tools

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        if isinstance(tool, TransferToAgentTool):
            return None
        branch, call_id = self._branch(tool_context), tool_context.function_call_id or ""
        call = self._calls[call_id] = _ToolCall(tool.name, branch)
        branch.begin_call(call_id, tool.name, plain(tool_args))
        await branch.queue.flush()
        set_running_call(call_id)
        branch.enter()
        if await tool.check_require_confirmation(tool_args, tool_context) is True:
            denial = await self._confirm(branch, tool, tool_args, tool_context)
            if denial is not None:
                return denial
        try:
            repeatable = (ours := our_tool(tool)) is not None and ours.idempotent
            journaled = await branch.begin_tool(call_id, tool.name, plain(tool_args), repeatable=repeatable)
        except ToolDeniedError as denied:
            return {"error": str(denied)}
        if journaled is None:
            return None
        call.journaled = journaled.__enter__()
        if journaled.is_live:
            return None
        call.failure = "" if journaled.result["failed"] else None
        return load_result(journaled.result, tool_context)

    async def _confirm(
        self, branch: AdkBranch, tool: BaseTool, args: dict[str, Any], context: ToolContext, reason: str | None = None
    ) -> dict[str, Any] | None:
        """Wait for a person's decision. Return the result of a denied call, or confirm the call to the SDK."""
        editable = (ours := our_tool(tool)) is not None and ours.editable
        call_id = context.function_call_id or ""
        decision = await branch.decide(call_id, tool.name, plain(args), editable=editable, reason=reason)
        if not decision.approved:
            return {"error": decision.denial}
        if decision.requested_args is not None:
            args.clear()
            args.update(decision.args)
        context.tool_confirmation = ToolConfirmation(confirmed=True)
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        if isinstance(tool, TransferToAgentTool):
            self._branch(tool_context).put(HandoffEvent(str(tool_args.get("agent_name", ""))))
            return None
        call_id, requests = tool_context.function_call_id or "", tool_context.actions.requested_tool_confirmations
        is_repeated = call_id in requests
        while call_id in requests:
            result = await self._run_confirmed(tool, tool_args, tool_context, requests.pop(call_id).hint)
        self._end_call(call_id, result, tool_context)
        return result if is_repeated else None

    async def _run_confirmed(self, tool: BaseTool, args: dict[str, Any], context: ToolContext, hint: str) -> Any:
        """Run a tool again that has requested a confirmation while it ran. The SDK would end the run here."""
        denial = await self._confirm(self._branch(context), tool, args, context, hint or None)
        if denial is not None:
            return denial
        context.actions.skip_summarization = None
        try:
            result = await tool.run_async(args=args, tool_context=context)
        except Exception as error:
            result = await self.on_tool_error_callback(tool=tool, tool_args=args, tool_context=context, error=error)
            if result is None:
                raise
        return {"result": None} if result is None else result

    def _end_call(self, call_id: str, result: Any, context: ToolContext) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        error = _error_in(result)
        failed = call.failure is not None or error is not None
        if call.journaled is not None:
            if call.journaled.is_live:
                call.journaled.finish(dump_result(result, failed, context))
            call.journaled.__exit__(None, None, None)
        call.branch.end_call(call_id, call.tool, not failed, result if error is None else error)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        call_id = tool_context.function_call_id or ""
        call = self._calls.get(call_id)
        if call is None or not isinstance(error, Exception):
            return None  # It was cancelled.
        self.main.failure = CallFailure(error, tool.name, is_tool=True)
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
        failure = explain_failure(error, self.main.failure)
        for call_id, call in list(self._calls.items()):
            if call.failure is not None or isinstance(failure, AgentError):
                del self._calls[call_id]
                call.branch.end_call(call_id, call.tool, False, call.failure or f"Error: {failure}")
        return failure


def _error_in(result: Any) -> Any:
    """Return the error of a tool that has reported one in the SDK's way, or None."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    return fields["error"] if list(fields) == ["error"] else None


def _text_parts(response: LlmResponse) -> list[types.Part]:
    parts = response.content.parts if response.content else None
    return [part for part in parts or () if part.text]


def _answer_text(response: LlmResponse) -> str:
    return "".join(part.text or "" for part in _text_parts(response) if not part.thought)


def _usage(response: LlmResponse, model: str) -> UsageEvent | None:
    usage = response.usage_metadata
    if usage is None:
        return None
    counts = [each for each in (usage.candidates_token_count, usage.thoughts_token_count) if each is not None]
    return UsageEvent(
        model=response.model_version or model,
        input_tokens=usage.prompt_token_count,
        output_tokens=sum(counts) if counts else None,  # Google counts the answer and the reasoning apart.
        cached_input_tokens=usage.cached_content_token_count or None,
        reasoning_tokens=usage.thoughts_token_count or None,
    )
