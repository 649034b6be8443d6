"""One turn in a terminal: its events shown in a view, and the keys that stop it or decide about a tool."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, contextmanager, suppress
from typing import Any, assert_never

from turnwire.channels.console.host import Host
from turnwire.channels.console.keyboard import KEY_GRACE_SECONDS, Keyboard
from turnwire.channels.console.view import Source, View, call_label, clean_line, one_line
from turnwire.cli.server_errors import HostError
from turnwire.client import ConnectionLost, ConnectionRestored, Gap, ReceivedEvent, Reset, TurnUpdate
from turnwire.core.log.codec import clean_text
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
    Outcome,
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
from turnwire.core.people.schemas import TextForm
from turnwire.extensions.calls import Background

_PAINT_SECONDS = 0.08
_TWICE_SECONDS = 2.0

_THOUGHT_LENGTH = 50
_QUOTE_LENGTH = 100
_HINTS = {
    "rate_limited": "Wait a moment and ask again.",
    "model_unavailable": "Check that the model's server is running, then ask again.",
    "context_too_long": "Start a new session, or ask for less at once.",
    "turn_timeout": "Ask for less at once, or raise TURNWIRE_TURN_TIMEOUT on the server.",
}


class TurnPresenter:
    """Shows a turn's events in a view, and keeps the turn's ids and outcome."""

    def __init__(self, view: View) -> None:
        self.session_id: str | None = None
        self.turn_id: str | None = None
        self.outcome: Outcome | None = None
        self._view = view
        self._has_text = False
        self._citations: dict[int, CitationEvent] = {}
        self._thoughts = ""

    def show(self, event: Event) -> None:
        view, depth = self._view, len(event.agent_path)
        prefix = f"{event.agent_path[-1]}: " if event.agent_path else ""
        if not isinstance(event, SessionEvent | MessageEvent):
            view.hint(None)
        match event:
            case SessionEvent():
                self.session_id, self.turn_id = event.session_id, event.turn_id
                if event.forked_from is not None:
                    view.line(f"branched from turn {event.forked_from} at position {event.forked_at}")
                view.hint("waiting for the agent")
            case MessageEvent() | UsageEvent() | CustomEvent():
                pass
            case InputEvent():
                view.line(f"you: {clean_line(event.content)}", depth=depth)
            case TokenEvent():
                if depth:
                    view.hint(f"{prefix}{self._thought(event.content)}")
                else:
                    self._has_text = True
                    view.write(clean_text(event.content))
            case ReasoningEvent():
                view.hint(f"{prefix}thinking: {self._thought(event.content)}")
            case StatusEvent():
                view.line(f"{prefix}{clean_line(event.text)}", depth=depth)
            case HandoffEvent():
                view.line(f"{prefix}{clean_line(event.agent)} has taken over", depth=depth)
            case SearchEvent():
                self._search(event, prefix, depth)
            case ReviewEvent():
                view.line(f"{prefix}{_review(event)}", "good" if event.verdict == "approved" else "warning", depth)
            case ToolCallEvent():
                view.begin(event.call_id, f"{prefix}{clean_line(call_label(event.tool, event.args))}", depth)
            case ToolProgressEvent():
                view.progress(event.call_id, _progress(event))
            case ToolResultEvent():
                label = prefix + clean_line(event.tool)
                if not event.success and event.result:
                    label += f": {clean_line(_error_text(event.result))}"
                view.end(event.call_id, label, succeeded=event.success, ms=event.ms, depth=depth)
            case CitationEvent():
                self._citations.setdefault(event.index, event)
            case ApprovalRequestEvent():
                view.line(
                    f"{prefix}{clean_line(call_label(event.tool, event.args))} needs your consent", "warning", depth
                )
                if event.reason:
                    view.line(clean_line(event.reason), depth=depth + 1)
            case ApprovalResponseEvent():
                by = f" by {clean_line(event.by)}" if event.by else ""
                verdict = "allowed" if event.approved else "refused"
                view.line(f"{prefix}{verdict}{by}", "good" if event.approved else "bad", depth)
            case QuestionEvent():
                view.line(f"{prefix}{clean_line(event.prompt)}", "warning", depth)
            case ReplyEvent():
                by = f" by {clean_line(event.by)}" if event.by else ""
                view.line(f"{prefix}{'not answered' if event.declined else 'answered'}{by}", depth=depth)
            case RestartEvent():
                what = "goes on from here" if event.reason == "forked" else "continues after a restart"
                view.line(f"{what}; parts of the answer may repeat", "warning")
            case ResponseEvent():
                self._respond(event)
            case ErrorEvent():
                self._fail(event)
            case DoneEvent():
                self._finish(event)
            case _:
                assert_never(event)

    def _thought(self, piece: str) -> str:
        """Add a piece of reasoning, or of a sub-agent's text, and return the last words of it."""
        self._thoughts = (self._thoughts + clean_text(piece))[-_THOUGHT_LENGTH:]
        return one_line(self._thoughts)

    def _search(self, event: SearchEvent, prefix: str, depth: int) -> None:
        label = f"{prefix}{clean_line(event.tool)} “{clean_line(event.query)}”"
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
        self._view.line(clean_line(event.error, 2_000), "bad")
        hint = _HINTS.get(event.code) or ("Ask again." if event.retryable else "")
        if hint:
            self._view.line(hint, depth=1)

    def _finish(self, event: DoneEvent) -> None:
        self.outcome = event.outcome
        self._view.finish()
        if self._citations:
            self._view.cite(list(_sources(self._citations.values())))
        if event.outcome == "cancelled":
            reason = "" if event.reason in (None, "requested") else f" ({clean_line(event.reason)})"
            self._view.line(f"stopped{reason}", "warning")
        elif event.outcome == "joined":
            self._view.line("your message was added to the answer before", "good")
        elif event.outcome == "interrupted":
            self._view.line("the server stopped before the answer was complete; ask again", "warning")


def _sources(citations: Iterable[CitationEvent]) -> Iterable[Source]:
    for citation in sorted(citations, key=lambda citation: citation.index):
        title, heading = clean_line(citation.title or citation.document_id), clean_line(citation.heading or "")
        # `heading` begins with the headings above it, and the first one is often the title.
        title = heading if heading.startswith(title) else f"{title} › {heading}" if heading else title
        if citation.page_number is not None:
            title += f", p. {citation.page_number}"
        yield Source(
            citation.index,
            title,
            clean_line(citation.supporting_quote or "", _QUOTE_LENGTH),
            clean_line(citation.url or ""),
        )


def _review(event: ReviewEvent) -> str:
    parts = [f"review: {event.verdict}"]
    if event.kept or event.dropped:
        parts.append(f"{len(event.kept)} kept, {len(event.dropped)} dropped")
    if event.missing:
        parts.append(f"missing: {', '.join(event.missing)}")
    if event.feedback:
        parts.append(event.feedback)
    if event.next_queries:
        parts.append(f"next: {', '.join(event.next_queries)}")
    return clean_line(" · ".join(parts))


def _progress(event: ToolProgressEvent) -> str:
    text = clean_line(event.text or "")
    return f"{event.fraction:.0%} {text}".rstrip() if event.fraction is not None else text


def _error_text(result: Any) -> str:
    if isinstance(result, dict):
        for name in ("error", "message"):
            if isinstance(text := result.get(name), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                return text
    return str(result)  # pyright: ignore[reportUnknownArgumentType]


class UserLeft(Exception):
    """The person pressed Ctrl-C twice to leave."""


class Conversation:
    """One turn in a terminal. Without a `keyboard`, tools that need consent are refused and questions declined."""

    def __init__(
        self, host: Host, view: View, keyboard: Keyboard | None, *, key_grace: float = KEY_GRACE_SECONDS
    ) -> None:
        self.presenter = TurnPresenter(view)
        self._host = host
        self._view = view
        self._keyboard = keyboard
        self._key_grace = key_grace
        self._question_at = 0.0
        self._pending_calls: list[ApprovalRequestEvent] = []
        self._undecided: set[str] = set()
        """The ids of the calls without a decision, also of those whose decision is on its way."""
        self._questions: dict[str, QuestionEvent] = {}
        """The questions without a reply, by their ids."""
        self._forms: dict[str, TextForm] = {}
        self._background = Background()
        self._stopping_since: float | None = None
        self._leave_requested: asyncio.Future[None] | None = None

    async def show(self, turn: AsyncGenerator[TurnUpdate]) -> None:
        """Show the turn to its end. Raise HostError, or UserLeft if the person does not wait for the end."""
        loop = asyncio.get_running_loop()
        self._leave_requested = loop.create_future()
        reader = asyncio.create_task(self._read(turn))
        painter = asyncio.create_task(self._paint())
        try:
            with _on_interrupt(self.interrupt):
                await asyncio.wait([reader, self._leave_requested], return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                raise UserLeft
            reader.result()
        finally:
            tasks = (reader, painter, *self._background.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._view.ask(None)
            self._view.close()

    def interrupt(self) -> None:
        """Handle Ctrl-C: stop the turn; leave if it is the second within two seconds."""
        now = time.monotonic()
        if self._stopping_since is not None and now - self._stopping_since < _TWICE_SECONDS:
            self._leave()
            return
        self._stopping_since = now
        self._view.notice("stopping; Ctrl-C again to leave")
        self.stop()

    def stop(self) -> None:
        if self.presenter.turn_id is None:
            self._leave()  # No turn has started yet.
        else:
            self._background.run(self._cancel(self.presenter.turn_id))

    def _leave(self) -> None:
        if self._leave_requested is not None and not self._leave_requested.done():
            self._leave_requested.set_result(None)

    async def _read(self, turn: AsyncGenerator[TurnUpdate]) -> None:
        async with aclosing(turn):
            async for update in turn:
                match update:
                    case ReceivedEvent(event=event, body=body):
                        self._view.receive(body)
                        self.presenter.show(event)
                        if isinstance(event, ApprovalRequestEvent):
                            self._request_decision(event)
                        elif isinstance(event, ApprovalResponseEvent):
                            self._on_decided(event.call_id)
                        elif isinstance(event, QuestionEvent):
                            self._request_reply(event)
                        elif isinstance(event, ReplyEvent):
                            self._questions.pop(event.question_id, None)
                            self._forms.pop(event.question_id, None)
                            self._show_question()
                    case ConnectionLost(reason=reason):
                        self._view.notice(f"connection lost ({reason}); reconnecting")
                    case ConnectionRestored():
                        self._view.notice(None)
                        self._view.line("reconnected, nothing was missed", "good")
                    case Gap():
                        self._view.line("the beginning of this log was removed", "warning")
                    case Reset():
                        self._view.line("the server has another log now; it is shown from its start", "warning")

    async def _paint(self) -> None:
        while True:
            self._view.paint()
            await asyncio.sleep(_PAINT_SECONDS)

    async def _cancel(self, turn_id: str) -> None:
        try:
            await self._host.cancel(turn_id)
        except HostError as error:
            self._view.line(f"the turn could not be stopped: {error}", "bad")

    def _request_decision(self, call: ApprovalRequestEvent) -> None:
        if self._keyboard is None:
            self._view.line("refused: there is no terminal to ask for consent", "warning")
            self._background.run(self._decide(call, approved=False, reason="there was no terminal to ask for consent"))
            return
        self._undecided.add(call.call_id)
        self._pending_calls.append(call)
        self._show_question()

    def _request_reply(self, question: QuestionEvent) -> None:
        if self._keyboard is None:
            self._view.line("not answered: there is no terminal to ask", "warning")
            self._background.run(self._reply(question.id, None, reason="there was no terminal to ask"))
            return
        self._questions[question.id] = question
        self._forms[question.id] = TextForm(clean_line(question.prompt), question.schema)
        self._keyboard.collect()
        if self._keyboard.on_line is None:
            self._keyboard.on_line = self._on_line
            self._keyboard.on_change = self._view.type
        self._show_question()

    def _on_line(self, line: str) -> None:
        self.take_line(line)

    def take_line(self, line: str) -> bool:
        """Take a line that answers the open question. Return False if there is none."""
        question_id, form = next(iter(self._forms.items()), ("", None))
        if form is None or self._pending_calls:
            return False
        self._view.line(f"you: {one_line(line)}")
        if problem := form.take(line):
            self._view.line(problem, "warning")
        elif form.is_complete:
            del self._forms[question_id]
            self._background.run(self._reply(question_id, form.value))
        self._show_question()
        return True

    async def _reply(self, question_id: str, value: Any, *, reason: str | None = None) -> None:
        try:
            turn_id = self.presenter.turn_id or ""
            await self._host.reply(turn_id, question_id, value, declined=reason is not None, reason=reason)
        except HostError as error:
            self._view.line(f"the answer was not recorded: {error}", "bad")
            if error.is_away and question_id in self._questions:
                self._request_reply(self._questions[question_id])

    def _show_question(self) -> None:
        if self._keyboard is None:
            return
        call = self._pending_calls[0] if self._pending_calls else None
        form = next(iter(self._forms.values()), None)
        prompt = f"{form.label} " if form is not None else None
        self._view.ask(prompt if call is None else f"Allow {call.tool}? [y/N] ")
        self._question_at = time.monotonic()
        self._keyboard.on_key = None if call is None else self._on_key

    def _on_key(self, key: str) -> None:
        # A key pressed just after the question appeared was meant for the text being typed.
        is_past_grace = time.monotonic() - self._question_at >= self._key_grace
        if is_past_grace and key in "yYnN\r\n" and self._pending_calls:
            call = self._pending_calls.pop(0)
            self._background.run(self._decide(call, approved=key in "yY"))
            self._show_question()

    def _on_decided(self, call_id: str) -> None:
        """Remove the question, also when it was decided in another client."""
        self._undecided.discard(call_id)
        if any(call.call_id == call_id for call in self._pending_calls):
            self._pending_calls = [call for call in self._pending_calls if call.call_id != call_id]
            self._show_question()

    async def _decide(self, call: ApprovalRequestEvent, *, approved: bool, reason: str | None = None) -> None:
        try:
            await self._host.decide(self.presenter.turn_id or "", call.call_id, approved=approved, reason=reason)
        except HostError as error:
            self._view.line(f"the decision was not recorded: {error}", "bad")
            if error.is_away and call.call_id in self._undecided:
                self._pending_calls.insert(0, call)
                self._show_question()


@contextmanager
def _on_interrupt(callback: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    # Some loops, and all loops outside the main thread, cannot handle signals.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, callback)
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
