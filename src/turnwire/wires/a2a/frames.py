"""The objects of A2A 1.0 as plain values, their form in A2A 0.3, and the envelope of a JSON-RPC response."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from turnwire.core.contracts.agents import Agent, description_of, starters_of, takes_attachments
from turnwire.core.contracts.stores import TurnStatus
from turnwire.core.log.codec import ascii_json, time_text
from turnwire.core.log.events import ApprovalRequestEvent, CitationEvent, QuestionEvent, ToolCallEvent
from turnwire.core.log.turns import Question, Step, TurnRecord, TurnState
from turnwire.wires.frames import omit_none
from turnwire.wires.progress import approval_question, open_client_calls, open_questions, status_of, waiting_steps
from turnwire.wires.turn_view import WaitEvent

Version = Literal["1.0", "0.3"]
VERSIONS: Mapping[str, Version] = {"1.0": "1.0", "0.3": "0.3"}

WELL_KNOWN = "/.well-known/agent-card.json"
PREFIX = "/a2a/"
EVENT = "urn:turnwire:event"
"""The name of our extension, under which the metadata of an update has the event of the log."""
ANSWER = "answer"
"""The id of the artifact that is the answer."""

_STATES = {
    "queued": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "waiting": "TASK_STATE_INPUT_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "joined": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "interrupted": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
}
WORKING, INPUT_REQUIRED = _STATES["running"], _STATES["waiting"]
OUTCOME_STATES = {name: state for name, state in _STATES.items() if name not in ("queued", "running", "waiting")}
_FINAL = {*OUTCOME_STATES.values(), INPUT_REQUIRED}
HOW_TO_DECIDE = (
    "Answer this task with `approve` or `deny`, or with a data part"
    ' {"approvals": [{"call_id": "...", "approved": true, "reason": "..."}]}.'
)
HOW_TO_REPLY = (
    "Answer this task with the value, as text or as data, or with a data part"
    ' {"replies": [{"question_id": "...", "value": "..."}]}; `"declined": true` instead of a value declines.'
)
HOW_TO_SEND_RESULTS = (
    'Answer this task with a data part {"tool_results": [{"call_id": "...", "output": "...", "is_error": false}]}.'
)


def statuses_of(state: str | None) -> list[TurnStatus | None]:
    """Return the statuses of turns that are shown as this state of a task; None for any."""
    if state is None or state == "TASK_STATE_UNSPECIFIED":
        return [None]
    return [name for name in get_args(TurnStatus) if _STATES[name] == state]


class TaskIds(Struct, frozen=True):
    """The ids of a task: the turn's, that of its context, and the client's id of the message that began it."""

    task_id: str
    context_id: str
    message_id: str = ""

    @classmethod
    def of_record(cls, record: TurnRecord) -> "TaskIds":
        """Return the ids by which the client of a turn knows its task."""
        options = record.options
        return cls(record.id, options.get("context_id") or record.session_id, options.get("message_id") or "")


class TaskInput(Struct, frozen=True):
    """The input that a task waits for: decisions, replies to questions, results of the client's tools."""

    approvals: Sequence[Step | ApprovalRequestEvent] = ()
    questions: Sequence[Question | QuestionEvent] = ()
    calls: Sequence[Step | ToolCallEvent] = ()

    @classmethod
    def of_events(cls, events: Sequence[WaitEvent]) -> "TaskInput":
        return cls(
            [event for event in events if isinstance(event, ApprovalRequestEvent)],
            [event for event in events if isinstance(event, QuestionEvent)],
            [event for event in events if isinstance(event, ToolCallEvent)],
        )

    @classmethod
    def of_state(cls, state: TurnState) -> "TaskInput":
        return cls(waiting_steps(state), open_questions(state), open_client_calls(state))

    def __bool__(self) -> bool:
        return bool(self.approvals or self.questions or self.calls)


def timestamp(ms: int) -> str:
    return (time_text(ms) or "").replace("+00:00", "Z")


def text_part(text: str | Raw) -> dict[str, Any]:
    return {"text": text}


def message(names: TaskIds, message_id: str, role: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "contextId": names.context_id,
        "taskId": names.task_id,
        "role": role,
        "parts": [*parts],
    }


def user_message(names: TaskIds, text: str, position: int) -> dict[str, Any]:
    """Return a message of the user; the first one has the client's own id."""
    own_id = names.message_id if position <= 2 else ""
    return message(names, own_id or f"{names.task_id}:{position}", "ROLE_USER", [text_part(text)])


def agent_message(names: TaskIds, position: int, *parts: dict[str, Any]) -> dict[str, Any]:
    return message(names, f"{names.task_id}:{position}", "ROLE_AGENT", parts)


def input_message(names: TaskIds, position: int, needed: TaskInput) -> dict[str, Any]:
    return message(names, f"{names.task_id}:{position}-input", "ROLE_AGENT", _input_parts(needed))


def status(state: str, at: int, note: dict[str, Any] | None = None) -> dict[str, Any]:
    return omit_none(state=state, timestamp=timestamp(at), message=note)


def status_update(
    names: TaskIds, status: dict[str, Any], metadata: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    update = omit_none(taskId=names.task_id, contextId=names.context_id, status=status, metadata=metadata)
    return {"statusUpdate": update}


def artifact_update(
    names: TaskIds, text: str | Raw, *, append: bool, last: bool = False, citations: Sequence[CitationEvent] = ()
) -> dict[str, dict[str, Any]]:
    update = {
        "taskId": names.task_id,
        "contextId": names.context_id,
        "artifact": answer(text, citations),
        "append": append,
        "lastChunk": last,
    }
    return {"artifactUpdate": update}


def answer(text: str | Raw, citations: Sequence[CitationEvent] = ()) -> dict[str, Any]:
    """Return the answer, or a piece of it, as an artifact."""
    artifact: dict[str, Any] = {"artifactId": ANSWER, "name": ANSWER, "parts": [text_part(text)]}
    if citations:
        artifact["metadata"] = {"citations": msgspec.to_builtins(citations)}
    return artifact


def _input_parts(needed: TaskInput) -> list[dict[str, Any]]:
    """Return the input that a task waits for, as text and as data."""
    lines: list[str] = []
    data: dict[str, list[dict[str, Any]]] = {}
    if needed.approvals:
        lines += [*map(approval_question, needed.approvals), HOW_TO_DECIDE]
        data["approvals"] = [{**_call_fields(call), **omit_none(reason=call.reason)} for call in needed.approvals]
    if needed.questions:
        lines += [*(question.prompt for question in needed.questions), HOW_TO_REPLY]
        data["questions"] = [
            omit_none(question_id=question.id, prompt=question.prompt, schema=question.schema)
            for question in needed.questions
        ]
    if needed.calls:
        data["tool_calls"] = [_call_fields(call) for call in needed.calls]
        lines += [*(f"Run {call['tool']} and send its result." for call in data["tool_calls"]), HOW_TO_SEND_RESULTS]
    return [text_part("\n".join(lines)), {"data": data}]


def _call_fields(call: Step | ApprovalRequestEvent | ToolCallEvent) -> dict[str, Any]:
    if isinstance(call, Step):
        return {"call_id": call.id, "tool": call.name, "args": call.args}
    return {"call_id": call.call_id, "tool": call.tool, "args": call.args}


# Tasks


def task_status(state: TurnState, record: TurnRecord, names: TaskIds) -> dict[str, Any]:
    note: dict[str, Any] | None = None
    if state.outcome is None and (needed := TaskInput.of_state(state)):
        note = input_message(names, state.position, needed)
    elif state.error is not None:
        note = agent_message(names, state.position, text_part(state.error.error))
    elif state.joined is not None:
        note = agent_message(names, state.position, text_part(joined_text(state.joined.turn_id)))
    elif state.outcome is None and state.status:
        note = agent_message(names, state.position, text_part(state.status))
    name = "queued" if _is_new(record) else status_of(state)
    return status(_STATES[name], changed_at(record), note)


def _is_new(record: TurnRecord) -> bool:
    # A turn that goes on after a wait is queued again.
    return record.phase == "queued" and record.started_at is None


def joined_text(turn_id: str) -> str:
    return f"The message has entered the task {turn_id}, which answers it."


def task_of_state(state: TurnState, record: TurnRecord, history_length: int | None = None) -> dict[str, Any]:
    """Return a task as it stands at the position of the state."""
    names = TaskIds.of_record(record)
    history = [
        user_message(names, state.message or record.message, 2),
        *(user_message(names, follow_up.content, follow_up.position) for follow_up in state.follow_ups),
        *(user_message(names, entered.content, entered.position) for entered in state.inputs),
    ]
    task = _task(names, task_status(state, record, names), history, history_length, record.agent)
    if state.text:
        task["artifacts"] = [answer(state.text, state.citations)]
    if state.usage is not None:
        task["metadata"]["usage"] = msgspec.to_builtins(state.usage)
    return task


def task_of_record(record: TurnRecord, history_length: int | None = None) -> dict[str, Any]:
    """Return a task without its artifacts, for a list."""
    names = TaskIds.of_record(record)
    is_queued_again = record.phase == "queued" and not _is_new(record)
    state = WORKING if is_queued_again else _STATES[record.outcome or record.phase]
    history = [user_message(names, record.message, 2)]
    return _task(names, status(state, changed_at(record)), history, history_length, record.agent)


def new_task(names: TaskIds, agent: str, text: str, at: int) -> dict[str, Any]:
    """Return the task that a stream begins with."""
    status_now = status(_STATES["queued"], at)
    return _task(names, status_now, [user_message(names, text, 2)], None, agent)


def _task(
    names: TaskIds, status: dict[str, Any], history: list[dict[str, Any]], history_length: int | None, agent: str
) -> dict[str, Any]:
    kept = history if history_length is None else history[max(0, len(history) - history_length) :]
    task: dict[str, Any] = {"id": names.task_id, "contextId": names.context_id, "status": status}
    if kept:
        task["history"] = kept
    task["metadata"] = {"agent": agent}
    return task


def changed_at(record: TurnRecord) -> int:
    return record.ended_at or record.started_at or record.created_at


# Cards: what an agent is called, what it does, and where it is reached


def agent_card(name: str, agent: Agent, base_url: str, version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the card of an agent of the server at `base_url`, with the fields of A2A 1.0 and those of 0.3."""
    url = f"{base_url}{PREFIX}{quote(name, safe='')}"
    description = description_of(agent) or f"The agent {name}."
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "version": version,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": True,
            "extendedAgentCard": False,
            "extensions": [
                {"uri": EVENT, "description": "Status updates have the event of the turn's log.", "required": False}
            ],
        },
        "defaultInputModes": ["text/plain", "application/json", *(["*/*"] if takes_attachments(agent) else [])],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": name,
                "name": name,
                "description": description,
                "tags": ["chat"],
                "examples": starters_of(agent),
            }
        ],
        # Of 0.3.
        "protocolVersion": "0.3.0",
        "url": url,
        "preferredTransport": "JSONRPC",
        "supportsAuthenticatedExtendedCard": False,
    }
    if needs_key:
        card["securitySchemes"] = {
            "apiKey": {
                "httpAuthSecurityScheme": {"scheme": "Bearer"},
                "type": "http",
                "scheme": "bearer",
            }
        }
        card["securityRequirements"] = [{"schemes": {"apiKey": {"list": []}}}]
        card["security"] = [{"apiKey": []}]
    return card


# A2A 0.3


def legacy(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response or an event of a stream as A2A 0.3 has it: flat, with a `kind`."""
    ((name, value),) = response.items()
    match name:
        case "task":
            return legacy_task(value)
        case "statusUpdate":
            is_final = value["status"]["state"] in _FINAL
            return {"kind": "status-update", **value, "status": _legacy_status(value["status"]), "final": is_final}
        case _:
            return {"kind": "artifact-update", **value, "artifact": _legacy_parts(value["artifact"])}


def legacy_task(task: dict[str, Any]) -> dict[str, Any]:
    task = {"kind": "task", **task, "status": _legacy_status(task["status"])}
    if "artifacts" in task:
        task["artifacts"] = [*map(_legacy_parts, task["artifacts"])]
    if "history" in task:
        task["history"] = [*map(_legacy_message, task["history"])]
    return task


def legacy_state(state: str) -> str:
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _legacy_status(status: dict[str, Any]) -> dict[str, Any]:
    status = {**status, "state": legacy_state(status["state"])}
    if "message" in status:
        status["message"] = _legacy_message(status["message"])
    return status


def _legacy_message(message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"].removeprefix("ROLE_").lower()
    return {"kind": "message", **_legacy_parts(message), "role": role}


def _legacy_parts(holder: dict[str, Any]) -> dict[str, Any]:
    return {**holder, "parts": [{"kind": next(iter(part)), **part} for part in holder["parts"]]}


# Envelopes


def response_json(response: dict[str, Any], version: Version, request_id: bytes | None) -> bytes:
    """Return a response, or an event of a stream, as it is sent: in JSON-RPC's envelope if the request had an id."""
    body = ascii_json(legacy(response) if version == "0.3" else response)
    return body if request_id is None else rpc_result(request_id, body)


def rpc_result(request_id: bytes, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, body)


def event_metadata(body: bytes) -> dict[str, Any]:
    """Return the event of the log as the metadata of an update."""
    return {EVENT: Raw(body)}
