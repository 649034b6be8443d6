"""`three_phase_text`: the bytes of the stream."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import FULL, logged, texts
from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    Hit,
    Outcome,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.wires.three_phase_text.encoder import ThreePhaseText

WIRE = ThreePhaseText()
SILENT = ("session", "message", "token", "citation", "usage", "response", "error", "done", "restart")


def frames(log: list[LoggedEvent]) -> list[bytes]:
    return list(map(WIRE.encoder().frame, log))


def stream(*events: Event) -> bytes:
    return b"".join(frames(logged(events)))


def done(outcome: Outcome = "completed") -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1")


def phases(body: bytes) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """Parse a whole stream into lines, answer and trailer."""
    text = body.decode()
    assert (text.count("\x1d"), text.count("\x1e")) == (1, 1)
    lines, _, rest = text.partition("\x1d")
    answer, _, trailer = rest.partition("\x1e")
    assert trailer.isascii()
    assert lines == "" or lines.endswith("\n")
    return [json.loads(line) for line in lines.splitlines()], answer, json.loads(trailer)


def trailer(*events: Event) -> dict[str, Any]:
    return phases(stream(*events))[2]


# The three phases


def test_whole_stream_is_lines_answer_and_trailer() -> None:
    hit = Hit(1, "d1", "c1", "Tides", text="High water is at noon.", score=0.5)
    body = frames(
        logged(
            [
                SearchEvent("r1", "started", "find", "tides"),
                SearchEvent("r1", "finished", "find", "tides", hits=(hit,), ms=2.5),
                TokenEvent("At noon "),
                TokenEvent("– é [1]."),
                CitationEvent(1, "d1", "c1", "Tides", supporting_quote="High water is at noon.", source_tool="find"),
                UsageEvent("m", 7, 5),
                ResponseEvent("At noon – é [1].", (), "synthesis", ("find",), Usage(7, 5), {"total_ms": 50.0}),
                done(),
            ]
        )
    )
    assert body == [
        b"",
        b"",
        b'{"event":"search","timestamp":"1970-01-01T00:00:01.010Z","type":"search","step_id":"r1","phase":"started"'
        b',"tool":"find","query":"tides"}\n',
        b'{"event":"search","timestamp":"1970-01-01T00:00:01.020Z","type":"search","step_id":"r1","phase":"finished"'
        b',"tool":"find","query":"tides","hits":[{"index":1,"document_id":"d1","chunk_id":"c1","title":"Tides"'
        b',"text":"High water is at noon.","score":0.5}],"ms":2.5}\n',
        b"\x1dAt noon ",
        b"\xe2\x80\x93 \xc3\xa9 [1].",
        b"",
        b"",
        b"",
        b'\x1e{"citations":[{"document_id":"d1","chunk_id":"c1","page_number":null'
        b',"supporting_quote":"High water is at noon.","source_tool":"find","score":null,"title":"Tides"}]'
        b',"mode":"synthesis","tools_used":["find"],"spans":[{"index":1,"document_id":"d1","chunk_id":"c1"'
        b',"source_start":null,"source_end":null,"answer_start":null,"answer_end":null'
        b',"quote":"High water is at noon."}],"events":[]'
        b',"usage":{"input_tokens":7,"output_tokens":5},"timings":{"total_ms":50.0},"outcome":"completed","session_id":"s1","turn_id":"t1"}',
    ]


@pytest.mark.parametrize("event", FULL, ids=lambda event: type(event).__name__)
def test_every_event_type_is_a_line_or_nothing(event: Event) -> None:
    if isinstance(event, RestartEvent | TokenEvent | DoneEvent):
        return
    (frame,) = frames(logged([event])[2:])
    (entry,) = logged([event])[2:]
    kind = json.loads(entry.body)["type"]
    if kind in SILENT:
        assert frame == b""
    else:
        assert frame.endswith(b"\n")
        assert frame.count(b"\n") == 1
        end = json.loads(frame)
        assert list(end)[:3] == ["event", "timestamp", "type"]
        assert end == {"event": kind, "timestamp": "1970-01-01T00:00:01.010Z", **json.loads(entry.body)}


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
        (1_771_372_800_001, "2026-02-18T00:00:00.001Z"),
    ],
)
def test_timestamp_is_utc_with_milliseconds(at: int, text: str) -> None:
    (entry,) = logged([StatusEvent("x")])[2:]
    entry.at = at
    assert json.loads(WIRE.encoder().frame(entry))["timestamp"] == text


def test_events_after_the_first_token_are_in_the_trailer_in_order() -> None:
    events = [StatusEvent("a"), TokenEvent("x"), StatusEvent("b"), TokenEvent("y"), CustomEvent("c", {"n": [1, "é"]})]
    lines, answer, end = phases(stream(*events, ResponseEvent("xy"), done()))
    assert [line["text"] for line in lines] == ["a"]
    assert answer == "xy"
    assert end["events"] == [
        {"event": "status", "timestamp": "1970-01-01T00:00:01.030Z", "type": "status", "text": "b"},
        {
            "event": "custom",
            "timestamp": "1970-01-01T00:00:01.050Z",
            "type": "custom",
            "name": "c",
            "data": {"n": [1, "é"]},
        },
    ]


def test_sub_agent_events_are_lines_and_its_tokens_are_left_out() -> None:
    path = ("helper",)
    body = stream(
        TokenEvent("mumble", agent_path=path),
        ToolCallEvent("c1", "find", {}, agent_path=path),
        TokenEvent("Yes."),
        TokenEvent("mumble", agent_path=path),
        ResponseEvent("Yes."),
        done(),
    )
    lines, answer, end = phases(body)
    assert [(line["event"], line["agent_path"]) for line in lines] == [("tool_call", ["helper"])]
    assert answer == "Yes."
    assert end["events"] == []


def test_empty_token_does_not_begin_the_answer() -> None:
    lines, answer, _ = phases(stream(TokenEvent(""), StatusEvent("a"), TokenEvent("x"), ResponseEvent("x"), done()))
    assert ([line["text"] for line in lines], answer) == (["a"], "x")


def test_turn_without_token_has_both_separators() -> None:
    body = stream(ResponseEvent(""), done())
    assert body.startswith(b'\x1d\x1e{"citations":[]')


def test_control_characters_in_an_answer_cannot_forge_a_phase() -> None:
    forged = '\x1e{"citations":[]}'
    body = stream(
        StatusEvent("a\x1db\x1ec\nd"), TokenEvent("x\x1dy\x1ez\x00"), TokenEvent(forged), CustomEvent(forged), done()
    )
    lines, answer, end = phases(body)
    assert lines[0]["text"] == "abc\nd"
    assert answer == 'xyz{"citations":[]}'
    assert end["events"][0]["name"] == '{"citations":[]}'


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_hostile_text_cannot_forge_a_phase(hostile: list[str], answers: list[str]) -> None:
    citations = [CitationEvent(number, text, text, text, text) for number, text in enumerate(hostile, 1)]
    events = [ReasoningEvent(text) for text in hostile] + [TokenEvent(text) for text in answers]
    late = [ToolResultEvent("c", text, True, {text: [text]}) for text in hostile]
    log = logged([*events, *citations, *late, done("cancelled")])
    lines, answer, end = phases(b"".join(frames(log)))
    assert len(lines) + len(end["events"]) == 2 * len(hostile)
    assert answer == "".join(entry.event.content for entry in log if isinstance(entry.event, TokenEvent))
    assert len(end["citations"]) == len(end["spans"]) == len(hostile)


# Ends of a turn


def test_trailer_of_completed_turn_comes_from_the_response_event() -> None:
    cited = CitationEvent(1, "d2", supporting_quote="q")
    response = ResponseEvent("x", (cited,), "direct", ("a", "b"), Usage(1, 2, 3, 4), {"total_ms": 5.0, "own_ms": 1.0})
    end = trailer(ToolCallEvent("c", "a", {}), UsageEvent("m", 100, 100), TokenEvent("x"), response, done())
    assert end["citations"][0]["document_id"] == "d2"
    assert [span["document_id"] for span in end["spans"]] == ["d2"]
    assert (end["mode"], end["tools_used"], end["outcome"]) == ("direct", ["a", "b"], "completed")
    assert end["usage"] == {
        "input_tokens": 1,
        "output_tokens": 2,
        "cached_input_tokens": 3,
        "reasoning_tokens": 4,
    }
    assert end["timings"] == {"total_ms": 5.0, "own_ms": 1.0}
    assert "error" not in end


def test_cancelled_turn_keeps_its_partial_answer() -> None:
    events = [ToolCallEvent("c", "find", {}), UsageEvent("m", 3), TokenEvent("Half [1]"), CitationEvent(1, "d1")]
    lines, answer, end = phases(stream(*events, done("cancelled")))
    assert (len(lines), answer) == (1, "Half [1]")
    assert (end["outcome"], end["mode"], end["tools_used"]) == ("cancelled", None, ["find"])
    assert end["usage"] == {"input_tokens": 3}
    assert end["timings"] == {"first_event_ms": 10, "first_token_ms": 30, "total_ms": 50}
    assert [citation["document_id"] for citation in end["citations"]] == ["d1"]
    assert "error" not in end


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), "\x1dThe model is away.\x1e"),
        ((StatusEvent("a"),), "\x1dThe model is away.\x1e"),
        ((TokenEvent("Half"),), "\x1dHalf\n\nThe model is away.\x1e"),
    ],
    ids=["at once", "in phase 1", "in phase 2"],
)
def test_failed_turn_ends_with_a_readable_message(outcome: Outcome, before: tuple[Event, ...], after: str) -> None:
    error = ErrorEvent("The model is away.", "model_away", True)
    body = stream(*before, CitationEvent(1, "d1"), error, done(outcome))
    assert after in body.decode()
    end = phases(body)[2]
    assert (end["tools_used"], end["citations"], end["outcome"]) == (["chat_failed"], [], outcome)
    assert [span["document_id"] for span in end["spans"]] == ["d1"]
    assert end["error"] == {"code": "model_away", "message": "The model is away."}


@pytest.mark.parametrize("events", [(), (ErrorEvent(" \n", "odd"),)])
def test_failure_without_error_text_has_a_default_message(events: tuple[Event, ...]) -> None:
    _, answer, end = phases(stream(*events, done("failed")))
    assert answer == end["error"]["message"] == "The answer could not be completed."
    assert end["error"]["code"] == ("odd" if events else "turn_failed")


# Citations


def cited(*events: Event) -> list[dict[str, Any]]:
    found = trailer(*events, done("cancelled"))["citations"]
    for citation in found:
        check_strictly(citation)
    return found


def check_strictly(citation: dict[str, Any]) -> None:
    """Check a citation as a front end with a strict schema does."""
    needed = {"document_id", "chunk_id", "page_number", "supporting_quote", "source_tool", "score"}
    assert needed <= set(citation) <= needed | {"title", "url"}
    texts = {name: value for name, value in citation.items() if name not in ("page_number", "score")}
    assert all(isinstance(text, str) and text.strip() for text in texts.values())
    assert citation["page_number"] is None or type(citation["page_number"]) is int
    assert citation["score"] is None or isinstance(citation["score"], int | float)


def test_citation_has_exactly_the_strict_fields() -> None:
    citation = CitationEvent(1, "d1", "c1", "T", "https://x", 2, "quote", "web", 0.5, 0, 5, 6, 9, heading="H")
    assert cited(citation) == [
        {
            "document_id": "d1",
            "chunk_id": "c1",
            "page_number": 2,
            "supporting_quote": "quote",
            "source_tool": "web",
            "score": 0.5,
            "title": "T",
            "url": "https://x",
        }
    ]


@pytest.mark.parametrize(
    ("citation", "filled"),
    [
        (CitationEvent(1, "d1"), ("d1", "d1", "d1", "search")),
        (CitationEvent(1, "d1", title="T"), ("d1", "d1", "T", "search")),
        (CitationEvent(1, "d1", "", " ", "", supporting_quote="\n", source_tool=""), ("d1", "d1", "d1", "search")),
        (CitationEvent(1, "", "c1"), ("unknown", "c1", "unknown", "search")),
        (CitationEvent(1, "d1", score=math.nan), ("d1", "d1", "d1", "search")),
    ],
)
def test_missing_citation_texts_are_filled_in(citation: CitationEvent, filled: tuple[str, ...]) -> None:
    (found,) = cited(citation)
    assert (found["document_id"], found["chunk_id"], found["supporting_quote"], found["source_tool"]) == filled
    assert found["score"] is None
    assert "url" not in found


def test_nth_citation_is_evidence_n_in_any_order() -> None:
    """Front ends read `[n]` as `citations[n - 1]`."""
    hits = (Hit(1, "d1", text="one"), Hit(2, "d2", "c2", "Two", "u2", 7, "two", 0.25), Hit(5, "d5"))
    found = cited(
        SearchEvent("r1", "finished", "find", "q", hits=hits),
        SearchEvent("r2", "finished", "web", "q", hits=(Hit(1, "other"), Hit(4, "d4", text="four"))),
        TokenEvent("[3][1]"),
        CitationEvent(3, "d3", supporting_quote="three"),
        CitationEvent(1, "d1", supporting_quote="first words"),
        CitationEvent(3, "d3", supporting_quote="other words"),
    )
    assert [(citation["document_id"], citation["supporting_quote"]) for citation in found] == [
        ("d1", "first words"),
        ("d2", "two"),
        ("d3", "three"),
    ]
    assert found[1] == {
        "document_id": "d2",
        "chunk_id": "c2",
        "page_number": 7,
        "supporting_quote": "two",
        "source_tool": "find",
        "score": 0.25,
        "title": "Two",
        "url": "u2",
    }


def test_number_without_evidence_has_a_placeholder() -> None:
    unknown, third = cited(CitationEvent(2, "d2"))
    assert third["document_id"] == "d2"
    assert unknown == {
        "document_id": "unknown",
        "chunk_id": "unknown",
        "page_number": None,
        "supporting_quote": "No source is known for this number.",
        "source_tool": "search",
        "score": None,
    }


def test_number_outside_of_the_list_is_only_in_the_spans() -> None:
    events = [CitationEvent(number, f"d{number}") for number in (0, -3, 10**12, 2, 1_001)]
    assert [citation["document_id"] for citation in cited(*events)] == ["unknown", "d2"]
    end = trailer(*events, done("cancelled"))
    assert [span["index"] for span in end["spans"]] == [0, -3, 10**12, 2, 1_001]
    assert len(cited(CitationEvent(1_000, "last"))) == 1_000


def test_spans_have_the_fields_that_strict_citations_lack() -> None:
    end = trailer(
        CitationEvent(1, "d1", "c1", "T", "u", 2, "quote", "web", 0.5, 0, 5, 6, 9, heading="Tides > Noon"),
        CitationEvent(1, "d1", answer_start=12),
        done("cancelled"),
    )
    assert end["spans"] == [
        {
            "index": 1,
            "document_id": "d1",
            "chunk_id": "c1",
            "source_start": 0,
            "source_end": 5,
            "answer_start": 6,
            "answer_end": 9,
            "heading": "Tides > Noon",
            "quote": "quote",
        },
        {
            "index": 1,
            "document_id": "d1",
            "chunk_id": None,
            "source_start": None,
            "source_end": None,
            "answer_start": 12,
            "answer_end": None,
            "quote": None,
        },
    ]


indexes = st.integers(-2, 12)
hits = st.builds(Hit, indexes, texts, st.none() | texts, st.none() | texts, st.none() | texts, text=st.none() | texts)
sources = st.builds(
    CitationEvent, indexes, texts, st.none() | texts, st.none() | texts, st.none() | texts, st.none() | st.integers()
)
searches = st.builds(lambda found: SearchEvent("r", "finished", "find", "q", hits=tuple(found)), st.lists(hits))


@given(st.lists(sources | searches, max_size=6))
def test_citations_of_any_log_are_strict(events: list[Event]) -> None:
    found = cited(*events)
    numbers = [event.index for event in events if isinstance(event, CitationEvent)]
    assert len(found) == max([0, *numbers])


# Controls and restarts


def test_controls_are_not_encoded() -> None:
    for control in (Gap(2, 9, TurnState()), Reset(), Reconnect(500)):
        assert WIRE.control(control) is None
    assert WIRE.opening == b""


def test_heartbeat_is_allowed_only_in_phase_1() -> None:
    encoder = WIRE.encoder()
    taken = []
    for entry in logged([StatusEvent("a"), TokenEvent(""), TokenEvent("x"), StatusEvent("b"), done()]):
        encoder.frame(entry)
        taken.append(encoder.takes_heartbeat)
    assert taken == [True, True, True, True, False, False, False]
    assert WIRE.heartbeat == b"\n"


def test_restart_is_refused() -> None:
    encoder = WIRE.encoder()
    *before, restart = logged([TokenEvent("x"), RestartEvent(2, "worker_lost")])
    for entry in before:
        encoder.frame(entry)
    with pytest.raises(RestartedError, match="after position 2"):
        encoder.frame(restart)
