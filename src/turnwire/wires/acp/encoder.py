"""A turn's log as the `session/update` notifications of ACP.

Tokens are pieces of a message, reasoning and lines about steps are thoughts, searches are tool calls too. The
protocol cannot take text back: after a restart the answer goes on in a new message.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, assert_never, cast

from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.wires.frames import TOOL_UNFINISHED, omit_none, text_or_json
from turnwire.wires.progress import approval_question, question_schema, step_line
from turnwire.wires.turn_view import ShownCalls

Update = dict[str, Any]
Positioned = tuple[int, Event]
"""An event and its position in the log."""
Chunk = Literal["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]

_PLAN = "plan"
_ENTRY = {"priority": "medium", "status": "pending"}


def standing_events(events: Iterable[Positioned]) -> list[Positioned]:
    """Return the events of a whole log, or of its start, that no restart has made void."""
    standing: list[Positioned] = []
    for position, event in events:
        if isinstance(event, RestartEvent):
            standing = [item for item in standing if item[0] <= event.from_position]
        else:
            standing.append((position, event))
    return standing


class SessionUpdates:
    """Encodes the events of one turn, in order."""

    def __init__(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._message = ""
        self._thought = ""
        self._calls = ShownCalls(":")
        self._calls.prefix = f"{turn_id}:"
        self._requests: dict[str, ApprovalRequestEvent] = {}
        self._questions: dict[str, QuestionEvent] = {}

    @property
    def questions(self) -> list[QuestionEvent]:
        """Return the questions that nobody has answered yet."""
        return [*self._questions.values()]

    @property
    def waiting(self) -> list[ApprovalRequestEvent]:
        """Return the requests that nobody has decided yet."""
        return [*self._requests.values()]

    def call_id(self, call_id: str) -> str:
        """Return the id of a call that is unique in the session; a model may use its own id again."""
        return self._calls[call_id]

    def updates(self, position: int, event: Event) -> list[Update]:
        """Return the updates for one event."""
        match event:
            case MessageEvent() | InputEvent():
                self._message = ""
                return [text_chunk("user_message_chunk", event.content, f"{self._turn_id}:user-{position}")]
            case TokenEvent():
                if event.agent_path or not event.content:
                    return []  # What sub-agents write is not in the answer.
                self._message = self._message or f"{self._turn_id}:answer-{position}"
                return [text_chunk("agent_message_chunk", event.content, self._message)]
            case ReasoningEvent():
                if event.agent_path or not event.content:
                    return []
                self._thought = self._thought or f"{self._turn_id}:reasoning-{position}"
                return [text_chunk("agent_thought_chunk", event.content, self._thought)]
            case QuestionEvent():
                self._questions[event.id] = event
                return self._line(position, event)
            case ReplyEvent():
                self._questions.pop(event.question_id, None)
                return self._line(position, event)
            case StatusEvent() | HandoffEvent() | ReviewEvent():
                return self._line(position, event)
            case SearchEvent():
                return self._search(position, event)
            case ToolCallEvent():
                return self._call(position, event.call_id, event.tool, event.args)
            case ToolProgressEvent():
                return self._progress(event)
            case ToolResultEvent():
                return self._result(position, event)
            case ApprovalRequestEvent():
                return self._request(position, event)
            case ApprovalResponseEvent():
                if self._requests.pop(event.call_id, None) is None:
                    return []
                return [_call_update(self.call_id(event.call_id), status="in_progress")]
            case CitationEvent():
                uri = event.url or f"turnwire://documents/{event.document_id}"
                link = {"type": "resource_link", "uri": uri, "name": event.title or event.document_id}
                content = {**link, **omit_none(description=event.supporting_quote), "title": f"[{event.index}]"}
                return [{"sessionUpdate": "agent_message_chunk", "content": content}]
            case CustomEvent():
                return _plan(event)
            case RestartEvent():
                self._message = self._thought = ""
                return [*self._close_calls(), *self._line(position, event)]
            case DoneEvent():
                self._questions = {}
                return self._close_calls()
            case SessionEvent() | UsageEvent() | ResponseEvent() | ErrorEvent():
                return []
            case _:
                assert_never(event)

    def _line(self, position: int, event: Event) -> list[Update]:
        self._thought = ""
        return [text_chunk("agent_thought_chunk", f"{step_line(event) or ''}\n", f"{self._turn_id}:step-{position}")]

    def _call(
        self, position: int, call_id: str, tool: str, args: Any, kind: str = "other", title: str = ""
    ) -> list[Update]:
        own_id = self._calls.start(call_id, position)
        self._message = self._thought = ""
        return [
            {
                "sessionUpdate": "tool_call",
                "toolCallId": own_id,
                "title": title or tool,
                "name": tool,
                "kind": kind,
                "status": "in_progress",
                "rawInput": args,
            }
        ]

    def _search(self, position: int, event: SearchEvent) -> list[Update]:
        own_id = f"search-{event.step_id}"
        begun: list[Update] = []
        if own_id not in self._calls:
            begun = self._call(position, own_id, event.tool, {"query": event.query}, "search", f"Search: {event.query}")
        if event.phase == "started":
            return begun
        status = "completed" if event.phase == "finished" else "failed"
        hits = "\n".join(f"[{hit.index}] {hit.title or hit.document_id}" for hit in event.hits or ())
        return [*begun, _call_update(self._calls.end(own_id), status=status, content=_content(hits))]

    def _progress(self, event: ToolProgressEvent) -> list[Update]:
        if not self._calls.is_open(event.call_id) or not event.text:
            return []
        return [_call_update(self.call_id(event.call_id), content=_content(event.text))]

    def _result(self, position: int, event: ToolResultEvent) -> list[Update]:
        begun = [] if event.call_id in self._calls else self._call(position, event.call_id, event.tool, {})
        self._requests.pop(event.call_id, None)
        status = "completed" if event.success else "failed"
        text = "" if event.result is None else text_or_json(event.result)
        update = _call_update(self._calls.end(event.call_id), status=status, content=_content(text))
        return [*begun, {**update, "rawOutput": event.result}]

    def _request(self, position: int, event: ApprovalRequestEvent) -> list[Update]:
        begun = [] if event.call_id in self._calls else self._call(position, event.call_id, event.tool, event.args)
        call = self.call_id(event.call_id)
        self._calls.open[call], self._requests[event.call_id] = (), event
        return [*begun, _call_update(call, status="pending")]

    def _close_calls(self) -> list[Update]:
        """Return the end of the calls that have none."""
        self._requests = {}
        closing = _content(TOOL_UNFINISHED)
        return [_call_update(call, status="failed", content=closing) for call in self._calls.end_all()]


def state_updates(state: TurnState) -> Iterator[Update]:
    """Yield the updates of a turn whose events are gone, from what is kept of it."""
    yield text_chunk("user_message_chunk", state.message, f"{state.turn_id}:user-2")
    if state.text:
        yield text_chunk("agent_message_chunk", state.text, f"{state.turn_id}:answer")


def permission_request(session_id: str, tool_call_id: str, request: ApprovalRequestEvent) -> dict[str, Any]:
    """Return the parameters of `session/request_permission`."""
    call = {
        "toolCallId": tool_call_id,
        "title": request.tool,
        "status": "pending",
        "rawInput": request.args,
        "content": _content(approval_question(request)),
    }
    options = [
        {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
        {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
    ]
    return {"sessionId": session_id, "toolCall": call, "options": options}


def form_request(session_id: str, question: QuestionEvent, problem: str) -> dict[str, Any]:
    """Return the parameters of `elicitation/create`, with what is wrong with the answer before."""
    schema = question_schema(question)
    # A field of the protocol has a type; a choice without one is text.
    properties = {name: {"type": "string", **part} for name, part in schema["properties"].items()}
    return {
        "sessionId": session_id,
        "mode": "form",
        "message": f"{problem}\n{question.prompt}" if problem else question.prompt,
        "requestedSchema": {**schema, "properties": properties},
    }


def choice_request(session_id: str, turn_id: str, question: QuestionEvent, names: Iterable[str]) -> dict[str, Any]:
    """Return the parameters of `session/request_permission` for a question with these choices."""
    options = [{"optionId": f"choice-{index}", "name": name, "kind": "allow_once"} for index, name in enumerate(names)]
    options.append({"optionId": "decline", "name": "Decline", "kind": "reject_once"})
    call = {"toolCallId": f"{turn_id}:{question.id}", "title": question.prompt, "kind": "other", "status": "pending"}
    return {"sessionId": session_id, "toolCall": call, "options": options}


def choice_call(request: dict[str, Any]) -> Update:
    """Return the call that a request for a choice belongs to."""
    return {"sessionUpdate": "tool_call", **request["toolCall"]}


def choice_made(request: dict[str, Any], outcome: str) -> Update:
    """Return the end of the call of a choice; an empty `outcome` means that the turn ended first."""
    status = "completed" if outcome else "failed"
    return _call_update(request["toolCall"]["toolCallId"], status=status, content=_content(outcome))


def text_chunk(chunk: Chunk, text: str, message_id: str) -> Update:
    return {"sessionUpdate": chunk, "content": {"type": "text", "text": text}, "messageId": message_id}


def _content(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": text}}] if text else []


def _call_update(tool_call_id: str, **fields: Any) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, **fields}


def _plan(event: CustomEvent) -> list[Update]:
    """Return a plan: the custom event `plan`, whose data are entries, or texts of entries."""
    items: Any = event.data
    if event.name != _PLAN or not isinstance(items, list):
        return []
    entries: list[dict[str, Any]] = []
    for item in cast("list[Any]", items):
        fields: Any = {"content": item} if isinstance(item, str) else item
        if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):  # pyright: ignore[reportUnknownMemberType]
            return []
        known = cast("dict[str, Any]", fields)
        entries.append({**_ENTRY, **{name: known[name] for name in ("content", *_ENTRY) if name in known}})
    return [{"sessionUpdate": "plan", "entries": entries}]
