"""The fold of a fork's log that goes on with another message."""

from turnwire.core.log.codec import log_event
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    MessageEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.history import transcript
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.core.run.recovery import progress, unfinished_calls

SHARED: tuple[Event, ...] = (
    SessionEvent("s1", "t2", "echo", forked_from="t1", forked_at=7),
    MessageEvent("Tea?", "ann", "http"),
    TokenEvent("Look: "),
    ToolCallEvent("c1", "find", {}),
    ToolResultEvent("c1", "find", True, "tin"),
    ToolCallEvent("c2", "send", {}),
    ApprovalRequestEvent("c2", "send", {}),
    TokenEvent("\n\n"),
    MessageEvent("Coffee?", "ann", "http"),
)


def folded(*events: Event) -> TurnFold:
    fold = TurnFold()
    for position, event in enumerate(events, start=1):
        fold.add(log_event(event, position, 0))
    return fold


def test_later_message_closes_what_is_open_before_it() -> None:
    fold = folded(*SHARED)
    assert (fold.message, fold.message_position, fold.has_answer) == ("Coffee?", 9, False)
    assert [(step.id, step.state) for step in fold.state().steps] == [("c1", "succeeded"), ("c2", "failed")]
    assert (fold.requests.undecided, unfinished_calls(fold), progress(fold)) == ([], [], ())
    assert fold.restarts.border == 9


def test_transcript_of_a_fork_has_both_messages_and_a_result_for_every_call() -> None:
    requests = (ToolRequest("c1", "find", {}), ToolRequest("c2", "send", {}))
    assert transcript([folded(*SHARED, TokenEvent("Black.")).state()]) == (
        Message("user", "Tea?"),
        Message("assistant", "Look: ", tool_calls=requests),
        Message("tool", "tin", call_id="c1"),
        Message("tool", '{"error":"cancelled"}', call_id="c2"),
        Message("user", "Coffee?"),
        Message("assistant", "Black."),
    )


def test_work_after_the_later_message_is_the_progress() -> None:
    fold = folded(*SHARED, TokenEvent("Bl"), ToolCallEvent("c3", "find", {}))
    assert [call.id for call in unfinished_calls(fold)] == ["c3"]
    assert progress(fold) == (Message("assistant", "Bl", tool_calls=(ToolRequest("c3", "find", {}),)),)


def test_restarts_of_the_forked_turn_do_not_count() -> None:
    opening = (SessionEvent("s1", "t2", "echo", forked_from="t1", forked_at=3), SHARED[1], RestartEvent(2, "shutdown"))
    fold = folded(*opening, RestartEvent(2, "forked"))
    assert (fold.restarts.count, fold.state().restarts) == (0, 0)
    fold = folded(*opening, RestartEvent(2, "forked"), TokenEvent("x"), RestartEvent(4, "worker_lost"))
    assert (fold.restarts.count, fold.state().restarts) == (1, 1)
