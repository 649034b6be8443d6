"""`ai_sdk`: the chunks of the stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import FULL, logged, texts
from tests.wires.sse import parse, parse_carelessly
from tests.wires.ui_message import UIMessage
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent, clean_text
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    Outcome,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.wires.ai_sdk.encoder import AiSdk, AnswerText

VERSIONS = (5, 6, 7)


def frames(log: list[LoggedEvent], version: int = 6) -> list[bytes]:
    return list(map(AiSdk(version).encoder().frame, log))


def stream(*events: Event, version: int = 6) -> bytes:
    return b"".join(frames(logged(events), version))


def chunks_of(*events: Event, version: int = 6) -> list[dict[str, Any]]:
    """Return the chunks of these events alone."""
    body = b"".join(frames(logged(events), version)[2:])
    return [json.loads(frame.data) for frame in parse(body) if frame.data != "[DONE]"]


def message(*events: Event, version: int = 6) -> UIMessage:
    return UIMessage(version).read(stream(*events, version=version))


def done(outcome: Outcome = "completed", reason: str | None = None) -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1", reason)


# A whole stream


def test_whole_stream_has_steps_and_an_end_mark() -> None:
    body = frames(
        logged(
            [
                ReasoningEvent("Look "),
                ReasoningEvent("first"),
                ToolCallEvent("c1", "tides", {"day": "é"}),
                ToolResultEvent("c1", "tides", True, {"high": None}),
                TokenEvent("At noon "),
                TokenEvent("– [1]."),
                UsageEvent("m", 7, 5),
                ResponseEvent("At noon – [1].", (), "direct", ("tides",), Usage(7, 5), {"total_ms": 50.0}),
                done(),
            ]
        )
    )
    assert body == [
        b'data: {"type":"start","messageId":"t1",'
        b'"messageMetadata":{"turnId":"t1","sessionId":"s1","agent":"echo"}}\n\n'
        b'data: {"type":"start-step"}\n\n',
        b"",
        b'data: {"type":"reasoning-start","id":"reasoning-3"}\n\n'
        b'data: {"type":"reasoning-delta","id":"reasoning-3","delta":"Look "}\n\n',
        b'data: {"type":"reasoning-delta","id":"reasoning-3","delta":"first"}\n\n',
        b'data: {"type":"reasoning-end","id":"reasoning-3"}\n\n'
        b'data: {"type":"tool-input-start","toolCallId":"c1","toolName":"tides","dynamic":true}\n\n'
        b'data: {"type":"tool-input-available","toolCallId":"c1","toolName":"tides","dynamic":true,'
        b'"input":{"day":"\\u00e9"}}\n\n',
        b'data: {"type":"tool-output-available","toolCallId":"c1","output":{"high":null},"dynamic":true}\n\n',
        b'data: {"type":"finish-step"}\n\ndata: {"type":"start-step"}\n\n'
        b'data: {"type":"text-start","id":"text-7"}\n\n'
        b'data: {"type":"text-delta","id":"text-7","delta":"At noon "}\n\n',
        b'data: {"type":"text-delta","id":"text-7","delta":"\\u2013 [1]."}\n\n',
        b"",
        b"",
        b'data: {"type":"text-end","id":"text-7"}\n\n'
        b'data: {"type":"message-metadata","messageMetadata":{"outcome":"completed","mode":"direct",'
        b'"toolsUsed":["tides"],"usage":{"inputTokens":7,"outputTokens":5,"totalTokens":12},'
        b'"timings":{"total_ms":50.0}}}\n\n'
        b'data: {"type":"finish-step"}\n\ndata: {"type":"finish","finishReason":"stop"}\n\ndata: [DONE]\n\n',
    ]


def test_heartbeat_and_opening_are_comments() -> None:
    assert parse(AiSdk().opening + AiSdk().heartbeat) == []
    assert (AiSdk().opening, AiSdk().heartbeat) == (b": stream-open\n\n", b": keep-alive\n\n")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gets_only_chunks_that_it_knows(version: int) -> None:
    events = [event for event in FULL[2:] if not isinstance(event, RestartEvent)]
    read = message(*events, version=version)
    assert (read.id, read.text, read.is_done) == ("t1", "a", True)


def test_versions_other_than_5_6_7_are_refused() -> None:
    assert [AiSdk.of_query({"sdk_version": str(version)}).sdk_version for version in VERSIONS] == [5, 6, 7]
    assert (AiSdk.of_query({}).sdk_version, AiSdk.of_query({}, 7).sdk_version) == (6, 7)
    assert len({AiSdk(version).key for version in VERSIONS}) == 3
    for wrong in ("4", "8", "", "six", "٦", "-6", "06"):
        with pytest.raises(ValueError, match="sdk_version"):
            AiSdk.of_query({"sdk_version": wrong})


def test_restart_is_refused() -> None:
    with pytest.raises(RestartedError):
        stream(TokenEvent("a"), RestartEvent(2, "worker_lost"))


# Ends of a turn


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_failed_turn_ends_with_an_error(outcome: Outcome) -> None:
    read = message(TokenEvent("half"), ErrorEvent("it broke", "boom"), done(outcome))
    assert (read.error, read.text, read.metadata["outcome"]) == ("it broke", "half", outcome)
    types = [chunk["type"] for chunk in chunks_of(done(outcome))]
    assert types == ["message-metadata", "error", "finish-step", "finish"]


def test_failure_without_error_event_has_a_default_message() -> None:
    assert message(done("failed")).error == "The answer could not be completed."


def test_cancelled_turn_is_aborted_and_finished() -> None:
    read = message(TokenEvent("half"), UsageEvent("m", 1), done("cancelled", "requested"))
    assert (read.aborted, read.finish_reason, read.error, read.text) == (True, "other", None, "half")
    assert read.metadata["usage"] == {"inputTokens": 1}
    assert {"type": "abort", "reason": "requested"} in chunks_of(done("cancelled", "requested"))


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "failed"])
def test_open_tool_call_is_ended_with_the_turn(outcome: Outcome) -> None:
    read = message(ToolCallEvent("c1", "find", {}), ToolProgressEvent("c1", "half"), done(outcome))
    assert [part["state"] for part in read.of("tool")] == ["output-error"]


# Text and reasoning


@pytest.mark.parametrize(
    "between",
    [
        ReasoningEvent("hm"),
        ToolCallEvent("c1", "find", {}),
        SearchEvent("r1", "started", "find", "x"),
        ReviewEvent("v1", 1, "approved"),
        HandoffEvent("writer"),
        CustomEvent("chart", {}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_with_parts_divide_the_text(between: Event) -> None:
    read = message(TokenEvent("a"), between, TokenEvent("b"), done())
    assert [part["text"] for part in read.of("text")] == ["a", "b"]


@pytest.mark.parametrize(
    "between",
    [StatusEvent("reading"), CitationEvent(1, "d"), UsageEvent("m", 1)],
    ids=lambda event: type(event).__name__,
)
def test_events_about_the_text_do_not_divide_it(between: Event) -> None:
    assert [part["text"] for part in message(TokenEvent("a"), between, TokenEvent("b"), done()).of("text")] == ["ab"]


def test_empty_pieces_open_no_part() -> None:
    assert chunks_of(TokenEvent(""), ReasoningEvent("")) == []


def test_sub_agent_text_is_a_data_part_and_not_in_the_answer() -> None:
    read = message(
        TokenEvent("Mine. "),
        TokenEvent("one ", agent_path=("a",)),
        TokenEvent("uno ", agent_path=("b",)),
        TokenEvent("two", agent_path=("a",)),
        ReasoningEvent("hm", agent_path=("a", "c")),
        TokenEvent("More."),
        done(),
    )
    assert read.text == "Mine. More."
    assert read.of("reasoning") == []
    assert [part["data"] for part in read.of("data-agent")] == [
        {"agent_path": ["a"], "kind": "text", "text": "one two"},
        {"agent_path": ["b"], "kind": "text", "text": "uno "},
        {"agent_path": ["a", "c"], "kind": "reasoning", "text": "hm"},
    ]
    assert [chunk["data"]["delta"] for chunk in read.transient] == ["one ", "uno ", "two", "hm"]


# Tools


def test_progress_is_a_preliminary_output_that_the_result_replaces() -> None:
    call, progress = ToolCallEvent("c1", "find", {"q": 1}), ToolProgressEvent("c1", "half", 0.5)
    assert chunks_of(call, progress)[-1] == {
        "type": "tool-output-available",
        "toolCallId": "c1",
        "output": {"text": "half", "fraction": 0.5},
        "dynamic": True,
        "preliminary": True,
    }
    (part,) = message(call, progress, ToolResultEvent("c1", "find", True), done()).of("tool")
    assert part == {
        "type": "tool",
        "id": "c1",
        "tool": "find",
        "state": "output-available",
        "dynamic": True,
        "input": {"q": 1},
        "output": None,
    }


@pytest.mark.parametrize(("result", "text"), [("no", "no"), ({"a": 1}, '{"a":1}'), (None, "The tool failed.")])
def test_failed_tool_has_an_error_text(result: Any, text: str) -> None:
    (part,) = message(ToolCallEvent("c", "f", {}), ToolResultEvent("c", "f", False, result), done()).of("tool")
    assert (part["state"], part["error"]) == ("output-error", text)


def test_result_without_call_starts_the_call() -> None:
    (part,) = message(ToolResultEvent("c1", "find", True, 1), done()).of("tool")
    assert (part["tool"], part["input"], part["output"]) == ("find", {}, 1)
    assert chunks_of(ToolProgressEvent("c9", "half")) == []


def test_reused_call_id_becomes_another_call() -> None:
    first = (ToolCallEvent("c1", "find", {"q": 1}), ToolResultEvent("c1", "find", True, 1))
    two = (ToolCallEvent("c1", "find", {"q": 2}), ToolResultEvent("c1", "find", True, 2))
    parts = message(*first, *two, done()).of("tool")
    assert [(part["input"], part["output"]) for part in parts] == [({"q": 1}, 1), ({"q": 2}, 2)]
    assert len({part["id"] for part in parts}) == 2


def test_sub_agent_call_carries_its_path() -> None:
    (start, _) = chunks_of(ToolCallEvent("c1", "find", {}, agent_path=("a", "b")))
    assert start["providerMetadata"] == {"turnwire": {"agentPath": ["a", "b"]}}


def test_parallel_calls_are_one_step_and_later_text_begins_the_next() -> None:
    a, b = (ToolCallEvent(name, "find", {}) for name in "ab")
    ended_a, ended_b = (ToolResultEvent(name, "find", True) for name in "ab")
    read = message(a, b, ended_a, TokenEvent("So far. "), ended_b, TokenEvent("All."), done())
    kinds = [part["type"] for part in read.parts]
    assert kinds == ["step-start", "tool", "tool", "text", "step-start", "text"]


@pytest.mark.parametrize(
    "last",
    [
        [],
        [TokenEvent("done")],
        [ToolCallEvent("b", "find", {}), TokenEvent("while it runs")],
        [ToolCallEvent("b", "find", {}), ToolResultEvent("b", "find", False)],
    ],
)
@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_last_step_of_ended_turn_makes_no_client_send_again(last: list[Event], outcome: Outcome) -> None:
    tools = ToolCallEvent("a", "find", {}), ToolResultEvent("a", "find", True)
    assert not message(*tools, *last, done(outcome)).sends_by_itself


# Evidence


def test_search_and_review_replace_their_earlier_part() -> None:
    found = SearchEvent("r1", "finished", "find", "tides", ms=2.0)
    read = message(
        SearchEvent("r1", "started", "find", "tides"),
        SearchEvent("r1", "started", "find", "ebb", agent_path=("sub",)),
        found,
        ReviewEvent("v1", 1, "rejected"),
        ReviewEvent("v1", 2, "approved"),
        done(),
    )
    assert [part["data"]["phase"] for part in read.of("data-search")] == ["finished", "started"]
    assert [part["data"]["verdict"] for part in read.of("data-review")] == ["approved"]
    assert read.of("data-search")[0]["data"] == json.loads(logged([found])[-1].body)


def test_status_is_transient() -> None:
    read = message(StatusEvent("reading"), done())
    assert [part["data"]["text"] for part in read.transient] == ["reading"]
    assert read.of("data-status") == []


@pytest.mark.parametrize(
    ("citation", "source"),
    [
        (
            CitationEvent(2, "d", url="https://x.example/a", title="X"),
            {"type": "source-url", "sourceId": "2", "url": "https://x.example/a", "title": "X"},
        ),
        (
            CitationEvent(1, "notes/tides.md", title="Tides"),
            {
                "type": "source-document",
                "sourceId": "1",
                "mediaType": "text/markdown",
                "title": "Tides",
                "filename": "tides.md",
            },
        ),
        (
            CitationEvent(3, "d", url="javascript:alert(1)"),
            {"type": "source-document", "sourceId": "3", "mediaType": "text/plain", "title": "d"},
        ),
    ],
)
def test_citation_source_is_a_link_only_for_http_urls(citation: CitationEvent, source: dict[str, Any]) -> None:
    assert chunks_of(citation)[0] == source


def test_source_is_sent_once_and_every_citation_of_it() -> None:
    twice = [CitationEvent(1, "d", answer_start=0), CitationEvent(1, "d", answer_start=9)]
    read = message(*twice, done())
    assert len(read.of("source-document")) == 1
    assert [part["data"]["answer_start"] for part in read.of("data-citation")] == [0, 9]


def test_application_event_is_a_data_part_of_its_name() -> None:
    read = message(
        CustomEvent("chart", {"id": "k", "x": 1}),
        CustomEvent("chart", {"id": "k", "x": 2}),
        CustomEvent("search", None),
        done(),
    )
    assert [part["data"] for part in read.of("data-chart")] == [{"id": "k", "x": 2}]
    assert [part["data"] for part in read.of("data-custom-search")] == [None]


# Approvals

PAY, BUY = ApprovalRequestEvent("c1", "pay", {"n": 1}, "dear"), ApprovalRequestEvent("c2", "buy", {})
REQUESTS = (TokenEvent("May I?"), ToolCallEvent("c1", "pay", {"n": 1}), PAY, ToolCallEvent("c2", "buy", {}), BUY)
ALLOWED, DENIED = ApprovalResponseEvent("c1", True, "go", "ann"), ApprovalResponseEvent("c2", False, "no", "ann")


def waiting(version: int = 6) -> tuple[Any, bytes]:
    encoder = AiSdk(version).encoder()
    return encoder, b"".join(map(encoder.frame, logged(REQUESTS)))


@pytest.mark.parametrize("version", VERSIONS)
def test_waiting_turn_pauses_with_a_finish(version: int) -> None:
    encoder, before = waiting(version)
    read = UIMessage(version).read(before + encoder.pause())
    assert (read.finish_reason, read.is_done, read.error) == ("tool-calls", True, None)
    assert not read.sends_by_itself
    if version == 5:
        assert read.of("data-approval")[0]["data"] == {
            "call_id": "c1",
            "tool": "pay",
            "args": {"n": 1},
            "reason": "dear",
            "state": "requested",
        }
    else:
        waits = [(part["state"], part["approval"]) for part in read.last_step if part["type"] == "tool"]
        assert waits == [("approval-requested", "c1"), ("approval-requested", "c2")]


@pytest.mark.parametrize("version", VERSIONS)
def test_decided_turn_continues_in_the_same_message(version: int) -> None:
    rest = (
        ALLOWED,
        DENIED,
        ToolResultEvent("c1", "pay", True, "paid"),
        ToolResultEvent("c2", "buy", False, "Denied: no"),
        TokenEvent("Done."),
        done(),
    )
    read = message(*REQUESTS, *rest, version=version)
    assert (read.id, read.text, read.finish_reason) == ("t1", "May I?Done.", "stop")
    denied = "output-error" if version == 5 else "output-denied"
    assert [part["state"] for part in read.of("tool")] == ["output-available", denied]
    responses = [
        chunk for chunk in chunks_of(*REQUESTS, *rest, version=version) if chunk["type"] == "tool-approval-response"
    ]
    assert [chunk["approved"] for chunk in responses] == ([True, False] if version == 7 else [])
    if version == 5:
        assert [part["data"]["state"] for part in read.of("data-approval")] == ["approved", "denied"]


def test_pause_has_no_side_effect_and_begins_the_next_frame() -> None:
    encoder, before = waiting()
    paused = encoder.pause()
    assert paused == encoder.pause()
    first, last = logged([*REQUESTS, ALLOWED, DENIED])[-2:]
    # The turn waits until everything is decided.
    assert (encoder.frame(first), encoder.pause()) == (b"", paused)
    resumed = encoder.frame(last)
    assert resumed.startswith(paused)
    assert encoder.pause() == b""
    segment = UIMessage().read(before + resumed[len(paused) :])
    assert segment.id == "t1"
    assert AiSdk().encoder().pause() == b""


@pytest.mark.parametrize("outcome", ["cancelled", "interrupted"])
def test_turn_ended_while_waiting_ends_in_another_segment(outcome: Outcome) -> None:
    encoder, _ = waiting()
    paused = encoder.pause()
    (end,) = logged([*REQUESTS, done(outcome)])[-1:]
    assert encoder.frame(end).startswith(paused + b'data: {"type":"start","messageId":"t1"')
    assert [part["state"] for part in message(*REQUESTS, done(outcome)).of("tool")] == ["output-error"] * 2


def test_repeated_approval_request_is_in_the_last_step() -> None:
    again = ApprovalRequestEvent("c1", "pay", {"n": 1})
    encoder = AiSdk().encoder()
    body = b"".join(map(encoder.frame, logged([*REQUESTS[:3], ALLOWED, again]))) + encoder.pause()
    read = UIMessage().read(body)
    (part,) = (part for part in read.last_step if part["type"] == "tool")
    assert (part["state"], part["id"]) == ("approval-requested", part["approval"])
    assert part["id"].rpartition("-")[0] == "c1"


# Any log

names = st.sampled_from(["a", "b"])
paths = st.sampled_from([(), (), ("sub",), ("sub", "deep")])
steps = st.one_of(
    st.builds(TokenEvent, texts, agent_path=paths),
    st.builds(ReasoningEvent, texts, agent_path=paths),
    st.builds(ToolCallEvent, names, texts, st.dictionaries(texts, texts, max_size=1), agent_path=paths),
    st.builds(ToolProgressEvent, names, texts),
    st.builds(ToolResultEvent, names, texts, st.booleans(), texts | st.none()),
    st.builds(CitationEvent, st.integers(1, 3), texts, url=texts | st.none(), title=texts | st.none()),
    st.builds(SearchEvent, names, st.just("started"), texts, texts),
    st.builds(ReviewEvent, names, st.just(1), st.just("approved")),
    st.builds(CustomEvent, texts, texts | st.none()),
    st.builds(StatusEvent, texts),
    st.builds(HandoffEvent, texts),
    st.builds(ApprovalRequestEvent, names, texts, st.just({})),
    st.builds(ApprovalResponseEvent, names, st.booleans(), texts | st.none()),
    st.builds(UsageEvent, texts, st.integers(0, 9) | st.none(), st.integers(0, 9) | st.none()),
)
outcomes = st.sampled_from(["completed", "cancelled", "failed", "interrupted"])


@given(st.lists(steps, max_size=30), outcomes, st.sampled_from(VERSIONS))
def test_any_log_can_be_read_to_the_end(events: list[Event], outcome: Outcome, version: int) -> None:
    log = logged([*events, ErrorEvent("it broke", "boom"), done(outcome)])
    body = b"".join(frames(log, version))
    read = UIMessage(version).read(body)
    assert read.is_done
    own = [e.event for e in log if isinstance(e.event, TokenEvent) and not e.agent_path]
    assert read.text == "".join(clean_text(event.content) for event in own)
    assert len(read.of("data-citation")) == sum(isinstance(event, CitationEvent) for event in events)
    if outcome in ("failed", "interrupted"):
        assert read.error == "it broke"
    else:
        assert (read.aborted, read.error) == (outcome == "cancelled", None)
        assert not read.sends_by_itself
    running = ("input-streaming", "input-available")
    assert not any(part["state"] in running or "preliminary" in part for part in read.of("tool"))


@given(st.lists(steps, max_size=20))
def test_frames_are_one_line_of_ascii_for_every_line_splitter(events: list[Event]) -> None:
    body = stream(*events, done())
    assert body.isascii()
    assert parse(body) == parse_carelessly(body)
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in body.split(b"\n\n")[:-1])


# Answer text


@given(st.lists(steps, max_size=20))
def test_answer_text_is_only_the_answer(events: list[Event]) -> None:
    log = logged([*events, done()])
    encoder = AnswerText().encoder()
    own = [e.event.content for e in log if isinstance(e.event, TokenEvent) and not e.agent_path]
    assert b"".join(map(encoder.frame, log)).decode() == "".join(own)
    with pytest.raises(RestartedError):
        encoder.frame(logged([RestartEvent(2, "worker_lost")])[-1])


# Questions and tools of the client


@pytest.mark.parametrize("version", [5, 6, 7])
def test_question_of_a_running_tool_has_a_step_of_its_own(version: int) -> None:
    asking = (ToolCallEvent("c1", "book", {}), QuestionEvent("q1", "Which?", {"type": "string"}, "c1"))
    waiting = message(*asking, version=version)
    # A client sends its answer when everything in the last step has one, so the running tool must not be there.
    (part,) = waiting.last_step
    assert (part["tool"], part["state"], part["dynamic"]) == ("question", "input-available", False)
    assert part["input"] == {"prompt": "Which?", "schema": {"type": "string"}, "callId": "c1"}
    answered = message(
        *asking, ReplyEvent("q1", "red"), ToolResultEvent("c1", "book", True, 1), done(), version=version
    )
    assert [(each["tool"], each["output"]) for each in answered.of("tool")] == [("book", 1), ("question", "red")]
    assert not answered.sends_by_itself


def test_declined_question_is_an_error_of_its_part() -> None:
    (part,) = message(QuestionEvent("q1", "Which?"), ReplyEvent("q1", declined=True, reason="late"), done()).of("tool")
    assert (part["state"], part["error"]) == ("output-error", "The question was not answered. late")
