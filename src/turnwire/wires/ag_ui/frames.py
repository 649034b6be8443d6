"""AG-UI events: one server-sent event each, numbered from 1 through the whole turn.

The functions write events; the classes track what is open in a run, so that everything is closed before the run ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from turnwire.core.log.codec import ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CustomEvent,
    DoneEvent,
    QuestionEvent,
    Usage,
)
from turnwire.core.log.shared_state import state_change
from turnwire.wires.frames import TOOL_UNFINISHED, TURN_FAILED, omit_none, text_or_json, usage_fields
from turnwire.wires.turn_view import AgentPath, OpenText, TurnView

Events = list[bytes]
"""Protocol events in order, each as its JSON."""

_PROTOCOL_VERSION = "1.0"
_SUCCESSFUL = ("completed", "joined")
_APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


def numbered(events: Iterable[bytes], sent: int) -> bytes:
    """Return the frames of these events, after `sent` events."""
    return b"".join(b"id: %d\ndata: %b\n\n" % (number, body) for number, body in enumerate(events, sent + 1))


def event_json(kind: str, **fields: Any) -> bytes:
    return ascii_json({"type": kind, **omit_none(**fields)})


def custom(name: str, value: Any, agent: str | None = None) -> bytes:
    """Return an event of a kind that the protocol does not know. Names of Turnwire's own begin with `turnwire.`."""
    return event_json("CUSTOM", name=name, value={} if value is None else value, subagentRunId=agent)


def application_name(name: str) -> str:
    """Return the name of an application's event, so that it cannot pass for one of Turnwire's."""
    return f"custom-{name}" if name.startswith("turnwire.") else name


def shared_state(event: CustomEvent) -> bytes | None:
    """Return the event of a state that the agent shares; None for any other event of an application."""
    change = state_change(event)
    if change is None:
        return None
    if change.snapshot is not None:
        return event_json("STATE_SNAPSHOT", snapshot=change.snapshot)
    return event_json("STATE_DELTA", delta=change.delta)


# Runs


class RunSequence:
    """The runs of a turn: the first, and one more for each time the turn continues after a wait.

    `run_ids` are the client's names for them, in order. A run without a name is named after the first run.
    """

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._thread_id = thread_id
        self._run_ids = run_ids
        self._version = version
        self._turn_id = ""
        self._number = 1

    @property
    def ids(self) -> dict[str, str]:
        return {"threadId": self._thread_id, "runId": self._run_id(self._number)}

    def start(self, session_id: str, turn_id: str, agent: str) -> Events:
        self._thread_id = self._thread_id or session_id
        self._turn_id = turn_id
        return self._started(agent)

    def next(self, agent: str) -> Events:
        self._number += 1
        return self._started(agent)

    def _started(self, agent: str) -> Events:
        started = event_json(
            "RUN_STARTED",
            **self.ids,
            parentRunId=self._run_id(self._number - 1) if self._number > 1 else None,
            protocolVersion=_PROTOCOL_VERSION if self._version else None,
        )
        return [started, event_json("STEP_STARTED", stepName=agent)]

    def _run_id(self, number: int) -> str:
        run_id = self._run_ids[number - 1] if number <= len(self._run_ids) else ""
        if run_id or number == 1:
            return run_id or self._turn_id
        return f"{self._run_id(1)}:{number}"


def run_ended(run: dict[str, str], version: int, done: DoneEvent, turn: TurnView) -> bytes:
    error, response, usage = turn.error, turn.response, run_usage(turn.usage_by_model)
    if done.outcome in ("failed", "interrupted"):
        message = (error.error if error else "") or TURN_FAILED
        code = error.code if error else done.reason or done.outcome
        return event_json("RUN_ERROR", message=message, code=code, usage=usage)
    result = omit_none(
        outcome=done.outcome,
        reason=done.reason,
        mode=response.mode if response else None,
        toolsUsed=response.tools_used if response else None,
        timings=response.timings if response else None,
    )
    outcome = {"type": "success" if done.outcome in _SUCCESSFUL else "cancelled"}
    # Clients before 1.0 raise an error of their own at an outcome other than success.
    has_outcome = version > 0 or done.outcome in _SUCCESSFUL
    return event_json("RUN_FINISHED", **run, result=result, outcome=outcome if has_outcome else None, usage=usage)


def run_suspended(run: dict[str, str], interrupts: list[dict[str, Any]], usage: list[dict[str, Any]] | None) -> bytes:
    """Return the end of a run that waits. Without interrupts it is a success: a client then runs its tools."""
    outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
    return event_json("RUN_FINISHED", **run, outcome=outcome, usage=usage)


def run_usage(by_model: Mapping[str | None, Usage]) -> list[dict[str, Any]] | None:
    return [{**omit_none(model=model), **usage_fields(usage)} for model, usage in by_model.items()] or None


# Sub-agents


class SubAgents:
    """The sub-agents of a turn. A log does not say when one has finished, so all of them finish with the run.

    Ids last for the whole turn: a sub-agent that was suspended with one run keeps its id in the next.
    """

    def __init__(self) -> None:
        self._ids: dict[AgentPath, str] = {}
        self._running: list[AgentPath] = []

    def id_of(self, path: AgentPath) -> str | None:
        """Return None for the turn's own agent."""
        return self._ids.get(path)

    def start(self, path: AgentPath, turn_id: str, position: int) -> Events:
        """Start the agents on the path that have not started in this run, outermost first."""
        started: Events = []
        for depth, name in enumerate(path, 1):
            prefix = path[:depth]
            if prefix in self._running:
                continue
            agent = self._ids.setdefault(prefix, f"{turn_id}:agent-{position}-{depth}")
            self._running.append(prefix)
            parent = self._ids.get(prefix[:-1])
            started.append(event_json("SUBAGENT_STARTED", subagentRunId=agent, name=name, parentSubagentRunId=parent))
        return started

    def ends(self, interrupt_ids: Mapping[AgentPath, Sequence[str]]) -> Events:
        """Return the events that end all running sub-agents, innermost first. They keep running until `clear`.

        `interrupt_ids` are the interrupts that each sub-agent is suspended for.
        """
        return [self._end(path, interrupt_ids.get(path)) for path in reversed(self._running)]

    def clear(self) -> None:
        self._running.clear()

    def _end(self, path: AgentPath, interrupt_ids: Sequence[str] | None) -> bytes:
        outcome = {"type": "suspended", "interruptIds": list(interrupt_ids)} if interrupt_ids else None
        return event_json("SUBAGENT_FINISHED", subagentRunId=self._ids[path], outcome=outcome)


# Messages


def new_text(message_id: str, agent: str | None, *, is_reasoning: bool) -> OpenText:
    kind = "REASONING_MESSAGE_CONTENT" if is_reasoning else "TEXT_MESSAGE_CONTENT"
    prefix = event_json(kind, messageId=message_id, subagentRunId=agent)[:-1] + b',"delta":'
    return OpenText(message_id, is_reasoning, prefix)


def text_started(text: OpenText, agent: str | None) -> Events:
    ids = {"messageId": text.id, "subagentRunId": agent}
    if not text.is_reasoning:
        return [event_json("TEXT_MESSAGE_START", **ids, role="assistant")]
    return [event_json("REASONING_START", **ids), event_json("REASONING_MESSAGE_START", **ids, role="reasoning")]


def text_ended(text: OpenText, agent: str | None) -> Events:
    ids = {"messageId": text.id, "subagentRunId": agent}
    if not text.is_reasoning:
        return [event_json("TEXT_MESSAGE_END", **ids)]
    return [event_json("REASONING_MESSAGE_END", **ids), event_json("REASONING_END", **ids)]


# Tool calls


def call_events(call: str, tool: str, args: dict[str, Any], parent: str, agent: str | None) -> Events:
    ids = {"toolCallId": call, "subagentRunId": agent}
    return [
        event_json("TOOL_CALL_START", **ids, toolCallName=tool, parentMessageId=parent),
        event_json("TOOL_CALL_ARGS", **ids, delta=msgspec.json.encode(args).decode()),
        event_json("TOOL_CALL_END", **ids),
    ]


def result_event(message_id: str, call: str, content: str, agent: str | None) -> bytes:
    fields = {"messageId": message_id, "toolCallId": call, "content": content}
    return event_json("TOOL_CALL_RESULT", **fields, role="tool", subagentRunId=agent)


def unanswered(call: str, agent: str | None) -> bytes:
    """Return a result for a call that has none: a client would show it as running for ever."""
    return result_event(f"{call}:unanswered", call, result_text(False, TOOL_UNFINISHED), agent)


def result_text(success: bool, result: Any) -> str:
    """Return a tool result as text. The protocol has no field for failure, so a failure is `{"error": …}`."""
    if not success:
        return msgspec.json.encode({"error": "The tool failed." if result in (None, "") else result}).decode()
    return "" if result is None else text_or_json(result)


# Interrupts


def interrupt_id(turn_id: str, position: int) -> str:
    return f"{turn_id}:{position}"


def approval_interrupt(own_id: str, request: ApprovalRequestEvent, call: str, agent: str | None) -> dict[str, Any]:
    schema, editable = _APPROVAL_SCHEMA, {}
    if request.editable:
        arguments = {"type": "object", "description": "Arguments that replace the requested ones."}
        schema = {**schema, "properties": {**_APPROVAL_SCHEMA["properties"], "args": arguments}}
        editable = {"editable": True}
    return omit_none(
        id=own_id,
        reason="tool_call",
        message=request.reason,
        toolCallId=call,
        responseSchema=schema,
        # TanStack AI recognises an approval by this.
        metadata={"kind": "approval", "toolName": request.tool, "input": request.args, **editable},
        subagentRunId=agent,
    )


def question_interrupt(own_id: str, question: QuestionEvent, agent: str | None) -> dict[str, Any]:
    return omit_none(
        id=own_id,
        reason="input_required",
        message=question.prompt,
        responseSchema=question.schema,
        metadata=omit_none(kind="question", questionId=question.id, callId=question.call_id),
        subagentRunId=agent,
    )


def decision_event(decision: ApprovalResponseEvent, call: str | None) -> bytes:
    value = omit_none(
        toolCallId=call,
        approved=decision.approved,
        reason=decision.reason,
        by=decision.by,
        callId=decision.call_id,
        args=decision.args,
    )
    return custom("turnwire.approval", value)


class RunInterrupts:
    """The interrupts of a run that waits."""

    def __init__(self) -> None:
        self._by_path: dict[AgentPath, list[dict[str, Any]]] = {}

    def add(self, path: AgentPath, interrupt: dict[str, Any]) -> None:
        self._by_path.setdefault(path, []).append(interrupt)

    @property
    def all(self) -> list[dict[str, Any]]:
        return [interrupt for interrupts in self._by_path.values() for interrupt in interrupts]

    @property
    def ids(self) -> dict[AgentPath, list[str]]:
        return {path: [interrupt["id"] for interrupt in interrupts] for path, interrupts in self._by_path.items()}
