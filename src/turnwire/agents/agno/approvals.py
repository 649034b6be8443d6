"""Approvals by the SDK's own paused runs: the checkpoint of a suspended turn is the SDK's `RunOutput`."""

import json
from collections.abc import Collection
from typing import Any

import msgspec
from agno.run.agent import RunOutput
from msgspec import Struct

from turnwire.agents.agno.events import AgnoRun
from turnwire.core.errors import AgentError
from turnwire.core.log.approvals import Resumption, WaitForApproval
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.tools.invocation import plain


class AgnoCheckpoint(Struct, frozen=True):
    """A paused run: what the SDK continues it from, and how many model calls it has made.

    `has_text` is True if the answer has text already.
    """

    output: dict[str, Any]
    model_calls: int
    has_text: bool = False

    @staticmethod
    def decode(body: bytes) -> "AgnoCheckpoint":
        return msgspec.json.decode(body, type=AgnoCheckpoint)


def suspend_run(output: RunOutput, run: AgnoRun, editable: Collection[str]) -> WaitForApproval:
    """Return the approval requests and the checkpoint of a paused run. Raises AgentError for any other pause."""
    tools = [tool for tool in output.tools or () if tool.requires_confirmation and tool.confirmed is None]
    if output.tools_requiring_user_input or output.tools_awaiting_external_execution or not tools:
        raise AgentError(
            "the agent waits for input or for a tool that runs elsewhere, which Turnwire cannot bring to the SDK; "
            "use `ask()` in a tool, or tools of the client"
        )
    requests = [
        ApprovalRequestEvent(
            tool.tool_call_id or "",
            tool.tool_name or "",
            plain(tool.tool_args or {}),
            editable=tool.tool_name in editable or tool.tool_call_id in run.editable,
        )
        for tool in tools
    ]
    body = json.loads(json.dumps(output.to_dict(), default=str))
    checkpoint = AgnoCheckpoint(body, run.model_calls, run.has_text)
    return WaitForApproval(requests, msgspec.json.encode(checkpoint))


def resume_output(checkpoint: AgnoCheckpoint, resumption: Resumption, run: AgnoRun) -> RunOutput:
    """Return the paused run with the decisions, and write the results of denied calls, which the SDK does not run."""
    run.has_text, run.model_calls = checkpoint.has_text, checkpoint.model_calls
    decisions = {decision.call_id: decision for decision in resumption.decisions}
    run.decided = set(decisions)
    output = RunOutput.from_dict(checkpoint.output)
    executions = [requirement.tool_execution for requirement in output.requirements or ()]
    for tool in [*(output.tools or ()), *executions]:
        decision = decisions.get(tool.tool_call_id or "") if tool is not None else None
        if tool is None or decision is None:
            continue
        tool.confirmed = decision.approved
        if decision.approved and decision.requested_args is not None:
            tool.tool_args = decision.args
        elif not decision.approved:
            tool.confirmation_note = decision.denial
    for requirement in output.requirements or ():
        decision = decisions.get((requirement.tool_execution and requirement.tool_execution.tool_call_id) or "")
        if decision is not None:
            requirement.confirmation = decision.approved
            requirement.confirmation_note = None if decision.approved else decision.denial
    for decision in resumption.decisions:
        if not decision.approved:
            run.end_call(decision.call_id, decision.tool, False, decision.denial, None)
    return output
