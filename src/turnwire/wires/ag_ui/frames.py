"""Events of the protocol: one server-sent event each, numbered from 1 through the whole turn.

What is absent is left out: a null is fatal to the client. Lines end with LF alone, which is all that it splits at.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, to_builtins

from turnwire.core.codec import ascii_json
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    ResponseEvent,
    ReviewEvent,
    SearchEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.state import add_usage

Told = list[bytes]
"""Events in order, each as its JSON."""


def told(kind: str, **fields: Any) -> bytes:
    """An event, without the fields of which nothing is known."""
    return ascii_json({"type": kind, **known(**fields)})


def known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def custom(name: str, value: Any, agent: str | None = None) -> bytes:
    """What the protocol has no event of its own for. Those of ours begin with `turnwire.`."""
    return told("CUSTOM", name=name, value={} if value is None else value, subagentRunId=agent)


def own_name(name: str) -> str:
    """The name of an application's event; it must not be taken for one of ours."""
    return f"custom-{name}" if name.startswith("turnwire.") else name


def numbered(events: Iterable[bytes], before: int) -> bytes:
    """The frames of these events, if there were so many before them."""
    return b"".join(b"id: %d\ndata: %b\n\n" % (number, event) for number, event in enumerate(events, before + 1))


# What is being said: one message, or one piece of thinking, at a time for each agent.


Path = tuple[str, ...]


class _OpenMessage(Struct, frozen=True):
    message_id: str
    agent: str | None
    thinks: bool

    def begin(self) -> Told:
        of = {"messageId": self.message_id, "subagentRunId": self.agent}
        if not self.thinks:
            return [told("TEXT_MESSAGE_START", **of, role="assistant")]
        return [told("REASONING_START", **of), told("REASONING_MESSAGE_START", **of, role="reasoning")]

    def end(self) -> Told:
        of = {"messageId": self.message_id, "subagentRunId": self.agent}
        if not self.thinks:
            return [told("TEXT_MESSAGE_END", **of)]
        return [told("REASONING_MESSAGE_END", **of), told("REASONING_END", **of)]

    @property
    def prefix(self) -> bytes:
        """A piece of it, up to the text: nearly every event is one, so it is not made anew each time."""
        kind = "REASONING_MESSAGE_CONTENT" if self.thinks else "TEXT_MESSAGE_CONTENT"
        return told(kind, messageId=self.message_id, subagentRunId=self.agent)[:-1] + b',"delta":'


class OpenMessages:
    def __init__(self) -> None:
        self.answering = b""
        """How the next piece of the answer begins, while it is being written."""
        self._open: dict[Path, _OpenMessage] = {}
        self._prefixes: dict[Path, bytes] = {}

    def prefix(self, path: Path, *, thinks: bool) -> bytes | None:
        """How the next piece of what this agent is saying begins; None if it is not saying this."""
        spoken = self._open.get(path)
        return self._prefixes[path] if spoken is not None and spoken.thinks is thinks else None

    def begin(self, path: Path, message_id: str, agent: str | None, *, thinks: bool) -> Told:
        ended = self.end(path)
        spoken = self._open[path] = _OpenMessage(message_id, agent, thinks)
        self._prefixes[path] = spoken.prefix
        if not path and not thinks:
            self.answering = spoken.prefix
        return ended + spoken.begin()

    def say(self, path: Path, content: str, *, thinks: bool) -> bytes:
        return (self.prefix(path, thinks=thinks) or b"") + ascii_json(content) + b"}"

    def end(self, path: Path) -> Told:
        """Something else comes from this agent."""
        spoken = self._open.pop(path, None)
        if not path:
            self.answering = b""
        return [] if spoken is None else spoken.end()

    def ended(self) -> Told:
        """The ends of all that is open. Asking changes nothing."""
        return [event for spoken in self._open.values() for event in spoken.end()]

    def forget(self) -> None:
        self._open.clear()
        self.answering = b""


# How the tool calls of a turn stand.


_UNANSWERED = '{"error":"The turn ended before this tool did."}'


class RunToolCalls:
    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._given: set[str] = set()
        self._open: dict[str, Path] = {}

    def id_of(self, call_id: str) -> str | None:
        return self._ids.get(call_id)

    def is_open(self, call_id: str) -> bool:
        return self._ids.get(call_id) in self._open

    def name(self, turn_id: str, call_id: str, path: Path, position: int) -> str:
        """The id of a call that begins here."""
        call = f"{turn_id}:{call_id}"
        while call in self._given:
            call += f"-{position}"
        self._given.add(call)
        self._ids[call_id] = call
        self._open[call] = path
        return call

    def end(self, call_id: str) -> str:
        """The id of a call that was told of, and has ended."""
        call = self._ids[call_id]
        self._open.pop(call, None)
        return call

    def unanswered(self) -> list[tuple[str, Path]]:
        """RunToolCalls that have not ended, and whose they are."""
        return list(self._open.items())


def call_events(call: str, tool: str, args: dict[str, Any], parent: str, agent: str | None) -> Told:
    of = {"toolCallId": call, "subagentRunId": agent}
    return [
        told("TOOL_CALL_START", **of, toolCallName=tool, parentMessageId=parent),
        told("TOOL_CALL_ARGS", **of, delta=msgspec.json.encode(args).decode()),
        told("TOOL_CALL_END", **of),
    ]


def result_event(message_id: str, call: str, content: str, agent: str | None) -> bytes:
    fields = {"messageId": message_id, "toolCallId": call, "content": content}
    return told("TOOL_CALL_RESULT", **fields, role="tool", subagentRunId=agent)


def unanswered(call: str, agent: str | None) -> bytes:
    """The result of a call that nobody has answered: a client would show it as running for ever."""
    return result_event(f"{call}:unanswered", call, _UNANSWERED, agent)


def result_text(success: bool, result: Any) -> str:
    """What came of a call. The protocol's result is text and has no word for failure, so that is `{"error": …}`."""
    if not success:
        return msgspec.json.encode({"error": "The tool failed." if result in (None, "") else result}).decode()
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


# Searches and reviews as the protocol's activities: what is going on, in a shape of its own, beside the messages.


class Activities:
    """A search is shown when it begins, and then changed; a review is told once."""

    def __init__(self) -> None:
        self._searches: dict[tuple[Path, str], str] = {}

    def tell(self, turn_id: str, event: SearchEvent | ReviewEvent, position: int, agent: str | None) -> bytes:
        kind = "search" if isinstance(event, SearchEvent) else "review"
        content: dict[str, Any] = to_builtins(event)
        del content["type"]
        key = event.agent_path, event.step_id
        of = {"activityType": kind, "subagentRunId": agent}
        if kind == "search" and key in self._searches:
            patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()]
            return told("ACTIVITY_DELTA", messageId=self._searches[key], patch=patch, **of)
        message_id = f"{turn_id}:{kind}-{position}"
        if kind == "search":
            self._searches[key] = message_id
        return told("ACTIVITY_SNAPSHOT", messageId=message_id, content=content, **of)


# How a run ends in the words of this protocol, and what it has cost.


_NO_WORDS = "The answer could not be completed."


class RunUsage:
    """What the models of a run have used; each is told apart. Absent is not zero."""

    def __init__(self) -> None:
        self._by_model: dict[str | None, Usage] = {}

    def add(self, event: UsageEvent) -> None:
        self._by_model[event.model] = add_usage(self._by_model.get(event.model), event)

    def told(self) -> list[dict[str, Any]] | None:
        return [_tokens(model, usage) for model, usage in self._by_model.items()] or None


def run_ended(
    run: dict[str, str],
    version: int,
    done: DoneEvent,
    error: ErrorEvent | None,
    response: ResponseEvent | None,
    usage: list[dict[str, Any]] | None,
) -> bytes:
    if done.outcome in ("failed", "interrupted"):
        message = (error.error if error else "") or _NO_WORDS
        code = error.code if error else done.reason or done.outcome
        return told("RUN_ERROR", message=message, code=code, usage=usage)
    result = known(
        outcome=done.outcome,
        reason=done.reason,
        mode=response.mode if response else None,
        toolsUsed=response.tools_used if response else None,
        timings=response.timings if response else None,
    )
    outcome = {"type": "success" if done.outcome == "completed" else "cancelled"}
    # Clients before 1.0 end the run with an error of their own at an outcome that they do not know.
    is_known = version > 0 or done.outcome == "completed"
    return told("RUN_FINISHED", **run, result=result, outcome=outcome if is_known else None, usage=usage)


def run_interrupted(run: dict[str, str], interrupts: list[dict[str, Any]], usage: list[dict[str, Any]] | None) -> bytes:
    return told("RUN_FINISHED", **run, outcome={"type": "interrupt", "interrupts": interrupts}, usage=usage)


def _tokens(model: str | None, usage: Usage) -> dict[str, Any]:
    spent = usage.input_tokens, usage.output_tokens
    return known(
        model=model,
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=None if None in spent else sum(number or 0 for number in spent),
        cachedInputTokens=usage.cached_input_tokens,
        reasoningTokens=usage.reasoning_tokens,
    )


# What a person is asked, as the protocol's interrupts.


_RESPONSE_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


def interrupt_id(turn_id: str, position: int) -> str:
    return f"{turn_id}:{position}"


def interrupt(own_id: str, asked: ApprovalRequestEvent, call: str, agent: str | None = None) -> dict[str, Any]:
    """`metadata` is how TanStack AI knows an approval that it may answer."""
    return known(
        id=own_id,
        reason="tool_call",
        message=asked.reason,
        toolCallId=call,
        responseSchema=_RESPONSE_SCHEMA,
        metadata={"kind": "approval", "toolName": asked.tool, "input": asked.args},
        subagentRunId=agent,
    )


class Questions:
    """What a run waits for. It goes on when everything is decided; what is decided before is told then."""

    def __init__(self) -> None:
        self.decided: Told = []
        self._asked: dict[Path, list[dict[str, Any]]] = {}
        self._undecided: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, own_id: str, event: ApprovalRequestEvent, call: str, agent: str | None) -> None:
        self._asked.setdefault(event.agent_path, []).append(interrupt(own_id, event, call, agent))
        self._undecided.add(event.call_id)

    def decide(self, event: ApprovalResponseEvent, call: str | None) -> bool:
        """Whether everything is decided now."""
        value = known(toolCallId=call, approved=event.approved, reason=event.reason, by=event.by, callId=event.call_id)
        self.decided.append(custom("turnwire.approval", value))
        self._undecided.discard(event.call_id)
        return not self._undecided

    @property
    def interrupts(self) -> list[dict[str, Any]]:
        return [one for those in self._asked.values() for one in those]

    @property
    def ids(self) -> dict[Path, list[str]]:
        """The interrupts of each agent."""
        return {path: [one["id"] for one in those] for path, those in self._asked.items()}
