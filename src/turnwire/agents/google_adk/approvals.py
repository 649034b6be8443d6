"""Approvals by the SDK's own tool confirmations: the checkpoint of a suspended turn has the events of its session."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from google.adk.events.event import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.genai import types
from msgspec import Struct

from turnwire.core.log.approvals import Resumption, WaitForApproval
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.tools.invocation import plain

# The SDK's own hint says how a client of the SDK answers.
_DEFAULT_HINT = "Please approve or reject the tool call"


class Confirmation(Struct, frozen=True):
    """The SDK's request for a confirmation: its own id, and the call that it is for."""

    id: str
    call_id: str
    tool: str
    args: dict[str, Any]
    hint: str | None = None


class AdkCheckpoint(Struct, frozen=True):
    """A suspended run: the events of its session, and the requests for confirmation.

    `model_calls` were made so far; `has_text` is True if the answer has text already.
    """

    events: list[dict[str, Any]]
    pending: list[Confirmation]
    model_calls: int
    has_text: bool = False

    @staticmethod
    def decode(body: bytes) -> "AdkCheckpoint":
        return msgspec.json.decode(body, type=AdkCheckpoint)

    def sdk_events(self) -> list[Event]:
        return [Event.model_validate_json(json.dumps(event)) for event in self.events]


def confirmations_in(event: Event) -> Iterator[Confirmation]:
    """Yield the confirmations that an event of the SDK requests."""
    for call in event.get_function_calls():
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME:
            args = call.args or {}
            original: dict[str, Any] = args["originalFunctionCall"]
            confirmation: dict[str, Any] = args.get("toolConfirmation") or {}
            hint = str(confirmation.get("hint") or "")
            yield Confirmation(
                call.id or "",
                original["id"],
                original["name"],
                plain(original.get("args") or {}),
                None if not hint or hint.startswith(_DEFAULT_HINT) else hint,
            )


def suspend_run(
    events: Sequence[Event],
    pending: Sequence[Confirmation],
    *,
    editable: Callable[[Confirmation], bool],
    model_calls: int,
    has_text: bool,
) -> WaitForApproval:
    """Return the approval requests and the checkpoint of a run that has ended with requests for confirmation."""
    dumped = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events]
    checkpoint = AdkCheckpoint(dumped, list(pending), model_calls, has_text)
    requests = [
        ApprovalRequestEvent(each.call_id, each.tool, each.args, each.hint, editable=editable(each)) for each in pending
    ]
    return WaitForApproval(requests, msgspec.json.encode(checkpoint))


def decisions_message(checkpoint: AdkCheckpoint, resumption: Resumption) -> types.Content:
    """Return the decisions in the form in which the SDK takes them: as results of its own requests."""
    approved = {decision.call_id: decision.approved for decision in resumption.decisions}
    name = REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
    responses = [
        types.FunctionResponse(id=each.id, name=name, response={"confirmed": approved[each.call_id]})
        for each in checkpoint.pending
    ]
    return types.Content(role="user", parts=[types.Part(function_response=response) for response in responses])
