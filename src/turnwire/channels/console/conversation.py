"""Shows one turn to its end, and lets who sits there stop it, allow a tool, or type ahead."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import aclosing, contextmanager, suppress
from typing import Any, assert_never

from turnwire.channels.console.hosts import FoundTurn, Heard, Host, HostError, Lost, Noted
from turnwire.channels.console.keyboard import Keyboard
from turnwire.channels.console.view import Source, View, call_label, one_line
from turnwire.core.codec import clean_text
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

# Tells a view what happens in a turn, event by event.


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


_PAINT_SECONDS = 0.08
_TWICE_SECONDS = 2.0
SETTLE_SECONDS = 0.5
"""Keys that come this soon after a question were meant for something else."""


class Left(Exception):
    """Whoever sits there wants out: Ctrl-C twice."""


class Conversation:
    """One turn in a terminal. `keyboard` is None where nobody sits; then a tool that needs consent is refused it."""

    def __init__(
        self, host: Host, view: View, keyboard: Keyboard | None, *, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self.teller = TurnTeller(view)
        self._host = host
        self._view = view
        self._keyboard = keyboard
        self._settle_seconds = settle_seconds
        self._asked_at = 0.0
        self._calls: list[ApprovalRequestEvent] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping_since: float | None = None
        self._wants_out: asyncio.Future[None] | None = None

    async def show(self, turn: AsyncGenerator[Heard | Lost | FoundTurn | Noted]) -> None:
        """Raises HostError, and Left if it is not to be waited for."""
        loop = asyncio.get_running_loop()
        self._wants_out = loop.create_future()
        reading = asyncio.create_task(self._read(turn))
        painting = asyncio.create_task(self._paint())
        try:
            with _interrupts(self.interrupt):
                await asyncio.wait([reading, self._wants_out], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Left
            reading.result()
        finally:
            for task in (reading, painting, *self._errands):
                task.cancel()
            await asyncio.gather(reading, painting, *self._errands, return_exceptions=True)
            self._view.ask(None)
            self._view.close()

    def interrupt(self) -> None:
        """Ctrl-C: stops the turn; a second time within two seconds it leaves."""
        now = time.monotonic()
        if self._stopping_since is not None and now - self._stopping_since < _TWICE_SECONDS:
            self._leave()
            return
        self._stopping_since = now
        self._view.notice("stopping; Ctrl-C again to leave")
        self.stop()

    def stop(self) -> None:
        if self.teller.turn_id is None:
            self._leave()  # There is no turn yet, as far as anybody knows.
        else:
            self._run(self._cancel(self.teller.turn_id))

    def _leave(self) -> None:
        if self._wants_out is not None and not self._wants_out.done():
            self._wants_out.set_result(None)

    async def _read(self, turn: AsyncGenerator[Heard | Lost | FoundTurn | Noted]) -> None:
        async with aclosing(turn):
            async for heard in turn:
                match heard:
                    case Heard(event=event, body=body):
                        self._view.hear(body)
                        self.teller.tell(event)
                        if isinstance(event, ApprovalRequestEvent):
                            self._ask(event)
                        elif isinstance(event, ApprovalResponseEvent):
                            self._answered(event.call_id)
                    case Lost(why=why):
                        self._view.notice(f"connection lost ({why}); trying again")
                    case FoundTurn():
                        self._view.notice(None)
                        self._view.line("connected again, nothing was missed", "good")
                    case Noted(text=text):
                        self._view.line(text, "warning")

    async def _paint(self) -> None:
        while True:
            self._view.paint()
            await asyncio.sleep(_PAINT_SECONDS)

    async def _cancel(self, turn_id: str) -> None:
        try:
            await self._host.cancel(turn_id)
        except HostError as error:
            self._view.line(f"it could not be stopped: {error}", "bad")

    def _ask(self, call: ApprovalRequestEvent) -> None:
        if self._keyboard is None:
            self._view.line("refused: there is no terminal to ask at", "warning")
            self._run(self._decide(call, approved=False, reason="there was no terminal to ask at"))
            return
        self._calls.append(call)
        self._put_question()

    def _put_question(self) -> None:
        call = self._calls[0] if self._calls else None
        self._view.ask(None if call is None else f"Allow {call.tool}? [y/N] ")
        assert self._keyboard is not None
        self._asked_at = time.monotonic()
        self._keyboard.on_key = None if call is None else self._on_key

    def _on_key(self, key: str) -> None:
        # Whoever was typing when the question came has not answered it.
        is_meant = time.monotonic() - self._asked_at >= self._settle_seconds
        if is_meant and key in "yYnN\r\n" and self._calls:
            call = self._calls.pop(0)
            self._run(self._decide(call, approved=key in "yY"))
            self._put_question()

    def _answered(self, call_id: str) -> None:
        """Also when somebody else did, on another screen."""
        if any(call.call_id == call_id for call in self._calls):
            self._calls = [call for call in self._calls if call.call_id != call_id]
            self._put_question()

    async def _decide(self, call: ApprovalRequestEvent, *, approved: bool, reason: str | None = None) -> None:
        try:
            await self._host.decide(self.teller.turn_id or "", call.call_id, approved=approved, reason=reason)
        except HostError as error:
            self._view.line(f"the decision was not taken: {error}", "bad")

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


@contextmanager
def _interrupts(interrupted: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    # Where the loop cannot take signals, and in a thread, they are for whoever owns the process.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
