"""Tells a view what happens in a turn, event by event.

What a server sends is not trusted: a control character could move the cursor, or worse, so none gets through.
"""

from collections.abc import Iterable
from typing import Any, assert_never

from turnwire.channels.console.view import Source, View, call_label, one_line
from turnwire.core.encoding import clean_text
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    MessageEvent,
    Outcome,
    ReasoningEvent,
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

_THOUGHT_LENGTH = 50
_QUOTE_LENGTH = 100
_HINTS = {
    "rate_limited": "Wait a moment and ask again.",
    "model_unavailable": "Look whether the model's server is running, then ask again.",
    "context_too_long": "Begin a new session, or ask for less at once.",
    "turn_timeout": "Ask for less at once, or raise TURNWIRE_TURN_TIMEOUT on the server.",
}


class TurnTeller:
    def __init__(self, view: View) -> None:
        self.session_id: str | None = None
        self.turn_id: str | None = None
        self.outcome: Outcome | None = None
        self._view = view
        self._has_text = False
        self._citations: dict[int, CitationEvent] = {}
        self._thoughts = ""

    def tell(self, event: Event) -> None:
        view, depth = self._view, len(event.agent_path)
        within = f"{event.agent_path[-1]}: " if event.agent_path else ""
        if not isinstance(event, SessionEvent | MessageEvent):
            view.hint(None)
        match event:
            case SessionEvent():
                self.session_id, self.turn_id = event.session_id, event.turn_id
                view.hint("waiting for the agent")
            case MessageEvent() | UsageEvent() | CustomEvent():
                pass
            case TokenEvent():
                if depth:
                    view.hint(f"{within}{self._thought(event.content)}")
                else:
                    self._has_text = True
                    view.write(clean_text(event.content))
            case ReasoningEvent():
                view.hint(f"{within}thinking: {self._thought(event.content)}")
            case StatusEvent():
                view.line(f"{within}{_tidy(event.text)}", depth=depth)
            case HandoffEvent():
                view.line(f"{within}{_tidy(event.agent)} has taken over", depth=depth)
            case SearchEvent():
                self._search(event, within, depth)
            case ReviewEvent():
                view.line(f"{within}{_review(event)}", "good" if event.verdict == "approved" else "warning", depth)
            case ToolCallEvent():
                view.begin(event.call_id, f"{within}{_tidy(call_label(event.tool, event.args))}", depth)
            case ToolProgressEvent():
                view.progress(event.call_id, _progress(event))
            case ToolResultEvent():
                label = within + _tidy(event.tool)
                if not event.success and event.result:
                    label += f": {_tidy(_said(event.result))}"
                view.end(event.call_id, label, succeeded=event.success, ms=event.ms, depth=depth)
            case CitationEvent():
                self._citations.setdefault(event.index, event)
            case ApprovalRequestEvent():
                view.line(f"{within}{_tidy(call_label(event.tool, event.args))} needs your consent", "warning", depth)
                if event.reason:
                    view.line(_tidy(event.reason), depth=depth + 1)
            case ApprovalResponseEvent():
                by = f" by {_tidy(event.by)}" if event.by else ""
                verdict = "allowed" if event.approved else "refused"
                view.line(f"{within}{verdict}{by}", "good" if event.approved else "bad", depth)
            case RestartEvent():
                view.line("begun again on another worker: some of this may be said twice", "warning")
            case ResponseEvent():
                self._respond(event)
            case ErrorEvent():
                self._fail(event)
            case DoneEvent():
                self._finish(event)
            case _:
                assert_never(event)

    def _thought(self, piece: str) -> str:
        """The last words of what is not part of the answer."""
        self._thoughts = (self._thoughts + clean_text(piece))[-_THOUGHT_LENGTH:]
        return one_line(self._thoughts)

    def _search(self, event: SearchEvent, within: str, depth: int) -> None:
        label = f"{within}{_tidy(event.tool)} “{_tidy(event.query)}”"
        if event.phase == "started":
            self._view.begin(event.step_id, label, depth)
            return
        if event.hits is not None:
            label += f" · {len(event.hits)} hit{'' if len(event.hits) == 1 else 's'}"
        self._view.end(event.step_id, label, succeeded=event.phase == "finished", ms=event.ms, depth=depth)

    def _respond(self, event: ResponseEvent) -> None:
        if not self._has_text and event.content:
            self._has_text = True
            self._view.write(clean_text(event.content))
        for citation in event.citations:
            self._citations.setdefault(citation.index, citation)

    def _fail(self, event: ErrorEvent) -> None:
        self._view.line(_tidy(event.error, 2_000), "bad")
        hint = _HINTS.get(event.code) or ("Ask again." if event.retryable else "")
        if hint:
            self._view.line(hint, depth=1)

    def _finish(self, event: DoneEvent) -> None:
        self.outcome = event.outcome
        self._view.finish()
        if self._citations:
            self._view.cite(list(_sources(self._citations.values())))
        if event.outcome == "cancelled":
            why = "" if event.reason in (None, "requested") else f" ({_tidy(event.reason)})"
            self._view.line(f"stopped{why}", "warning")
        elif event.outcome == "interrupted":
            self._view.line("the server stopped before the answer was complete; ask again", "warning")


def _sources(citations: Iterable[CitationEvent]) -> Iterable[Source]:
    for citation in sorted(citations, key=lambda one: one.index):
        title, heading = _tidy(citation.title or citation.document_id), _tidy(citation.heading or "")
        # A heading is told with those above it, and the first of them is often the title.
        title = heading if heading.startswith(title) else f"{title} › {heading}" if heading else title
        if citation.page_number is not None:
            title += f", p. {citation.page_number}"
        yield Source(
            citation.index, title, _tidy(citation.supporting_quote or "", _QUOTE_LENGTH), _tidy(citation.url or "")
        )


def _review(event: ReviewEvent) -> str:
    told = [f"{len(event.kept)} kept, {len(event.dropped)} dropped"] if event.kept or event.dropped else []
    if event.missing:
        told.append(f"missing: {', '.join(event.missing)}")
    if event.feedback:
        told.append(event.feedback)
    if event.next_queries:
        told.append(f"next: {', '.join(event.next_queries)}")
    return _tidy(" · ".join([f"review: {event.verdict}", *told]))


def _progress(event: ToolProgressEvent) -> str:
    text = _tidy(event.text or "")
    return f"{event.fraction:.0%} {text}".rstrip() if event.fraction is not None else text


def _said(result: Any) -> str:
    if isinstance(result, dict):
        for name in ("error", "message"):
            if isinstance(told := result.get(name), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                return told
    return str(result)  # pyright: ignore[reportUnknownArgumentType]


def _tidy(text: str, length: int = 200) -> str:
    return one_line(clean_text(text), length)
