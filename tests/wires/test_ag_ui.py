"""`ag_ui`: the events of the stream, and the order that its clients require."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import FULL, logged, texts
from tests.wires.ag_ui_rules import Rules, check, frames_of
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    Hit,
    Outcome,
    ReasoningEvent,
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
from turnwire.core.log.turns import TurnState
from turnwire.wires.ag_ui.encoder import AgUi

WIRE = AgUi()
OLD = AgUi(version=0)


def stream(*events: Event, wire: AgUi = WIRE) -> bytes:
    return b"".join(map(wire.encoder().frame, logged(events)))


def events_of(*events: Event, wire: AgUi = WIRE) -> list[dict[str, Any]]:
    return check(stream(*events, wire=wire))


def done(outcome: Outcome = "completed", reason: str | None = None) -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1", reason)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def custom(events: list[dict[str, Any]], name: str) -> list[Any]:
    return [event["value"] for event in only(events, "CUSTOM") if event["name"] == name]


# Events


def test_whole_turn_has_these_bytes() -> None:
    body = stream(
        ToolCallEvent("c1", "find", {"q": "é"}),
        ToolResultEvent("c1", "find", True, {"n": 1}),
        TokenEvent("At "),
        TokenEvent("noon – é"),
        UsageEvent("m1", 7, 5),
        ResponseEvent("At noon – é", (), "direct", ("find",), Usage(7, 5), {"total_ms": 5.0}),
        done(),
        wire=AgUi("thread", ("run",)),
    )
    assert body == (
        b'id: 1\ndata: {"type":"RUN_STARTED","threadId":"thread","runId":"run","protocolVersion":"1.0"}\n\n'
        b'id: 2\ndata: {"type":"STEP_STARTED","stepName":"echo"}\n\n'
        b'id: 3\ndata: {"type":"TOOL_CALL_START","toolCallId":"t1:c1","toolCallName":"find"'
        b',"parentMessageId":"t1:calls-3"}\n\n'
        b'id: 4\ndata: {"type":"TOOL_CALL_ARGS","toolCallId":"t1:c1","delta":"{\\"q\\":\\"\\u00e9\\"}"}\n\n'
        b'id: 5\ndata: {"type":"TOOL_CALL_END","toolCallId":"t1:c1"}\n\n'
        b'id: 6\ndata: {"type":"TOOL_CALL_RESULT","messageId":"t1:result-4","toolCallId":"t1:c1"'
        b',"content":"{\\"n\\":1}","role":"tool"}\n\n'
        b'id: 7\ndata: {"type":"TEXT_MESSAGE_START","messageId":"t1:text-5","role":"assistant"}\n\n'
        b'id: 8\ndata: {"type":"TEXT_MESSAGE_CONTENT","messageId":"t1:text-5","delta":"At "}\n\n'
        b'id: 9\ndata: {"type":"TEXT_MESSAGE_CONTENT","messageId":"t1:text-5","delta":"noon \\u2013 \\u00e9"}\n\n'
        b'id: 10\ndata: {"type":"TEXT_MESSAGE_END","messageId":"t1:text-5"}\n\n'
        b'id: 11\ndata: {"type":"STEP_FINISHED","stepName":"echo"}\n\n'
        b'id: 12\ndata: {"type":"RUN_FINISHED","threadId":"thread","runId":"run"'
        b',"result":{"outcome":"completed","mode":"direct","toolsUsed":["find"],"timings":{"total_ms":5.0}}'
        b',"outcome":{"type":"success"}'
        b',"usage":[{"model":"m1","inputTokens":7,"outputTokens":5,"totalTokens":12}]}\n\n'
    )


def test_run_without_client_ids_uses_turn_and_session_id() -> None:
    (started,) = only(events_of(done()), "RUN_STARTED")
    assert (started["threadId"], started["runId"]) == ("s1", "t1")


def test_reasoning_is_a_span_with_one_message() -> None:
    events = events_of(ReasoningEvent("hm"), ReasoningEvent("m"), TokenEvent("a"), done())
    assert kinds(events)[2:9] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
    ]
    assert events[3] == {"type": "REASONING_MESSAGE_START", "messageId": "t1:reasoning-3", "role": "reasoning"}


def test_calls_after_text_belong_to_its_message_until_their_results() -> None:
    events = events_of(
        TokenEvent("Let me look."),
        ToolCallEvent("c1", "find", {}),
        ToolCallEvent("c2", "find", {}),
        ToolResultEvent("c1", "find", True, "x"),
        ToolResultEvent("c2", "find", True, "y"),
        ToolCallEvent("c3", "find", {}),
        ToolCallEvent("c4", "find", {}),
        ToolResultEvent("c3", "find", True),
        ToolResultEvent("c4", "find", True),
        TokenEvent("Here."),
        done(),
    )
    parents = [event["parentMessageId"] for event in only(events, "TOOL_CALL_START")]
    assert parents == ["t1:text-3", "t1:text-3", "t1:calls-8", "t1:calls-8"]
    assert [event["messageId"] for event in only(events, "TEXT_MESSAGE_START")] == ["t1:text-3", "t1:text-12"]


def test_tool_progress_is_custom_and_failure_is_an_error_result() -> None:
    events = events_of(
        ToolCallEvent("c1", "find", {}),
        ToolProgressEvent("c1", "half", 0.5, {"n": None}),
        ToolResultEvent("c1", "find", False, "no such page"),
        ToolProgressEvent("c1", "late"),
        ToolResultEvent("c9", "unannounced", False),
        done(),
    )
    assert custom(events, "turnwire.tool_progress") == [
        {"toolCallId": "t1:c1", "text": "half", "fraction": 0.5, "data": {"n": None}}
    ]
    results = {event["toolCallId"]: json.loads(event["content"]) for event in only(events, "TOOL_CALL_RESULT")}
    assert results == {"t1:c1": {"error": "no such page"}, "t1:c9": {"error": "The tool failed."}}
    assert [event["toolCallName"] for event in only(events, "TOOL_CALL_START")] == ["find", "unannounced"]


def test_call_of_a_client_tool_is_followed_by_its_input() -> None:
    events = events_of(
        ToolCallEvent("c1", "locate", {"exact": True}, runs_on="client"), ToolCallEvent("c2", "find", {})
    )
    call = only(events, "TOOL_CALL_START")[0]["toolCallId"]
    expected = {"toolCallId": call, "toolName": "locate", "input": {"exact": True}}
    assert custom(events, "tool-input-available") == [expected]


def test_reused_call_id_becomes_another_call() -> None:
    call, result = ToolCallEvent("c", "find", {}), ToolResultEvent("c", "find", True, "x")
    events = events_of(call, result, call, result, ToolCallEvent("c-5", "find", {}), done())
    started = [event["toolCallId"] for event in only(events, "TOOL_CALL_START")]
    assert started == ["t1:c", "t1:c-5", "t1:c-5-7"]
    assert [event["toolCallId"] for event in only(events, "TOOL_CALL_RESULT")][:2] == started[:2]


def test_searches_update_their_activity_and_reviews_do_not() -> None:
    hit = Hit(1, "d1", title="Tides")
    events = events_of(
        SearchEvent("r1", "started", "web", "tides"),
        SearchEvent("r1", "finished", "web", "tides", hits=(hit,), ms=2.5),
        ReviewEvent("v1", 1, "rejected", missing=("noon",)),
        ReviewEvent("v1", 2, "approved"),
        done(),
    )
    rules = Rules()
    for event in events:
        rules.take(event)
    searched, *reviews = rules.activities.values()
    assert kinds(events)[2:6] == ["ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_SNAPSHOT"]
    assert events[2]["content"] == {"step_id": "r1", "phase": "started", "tool": "web", "query": "tides"}
    assert (searched["phase"], searched["hits"]) == (
        "finished",
        [{"index": 1, "document_id": "d1", "title": "Tides"}],
    )
    assert [item["verdict"] for item in reviews] == ["rejected", "approved"]


def test_unknown_events_are_custom_and_leave_the_message_open() -> None:
    events = events_of(
        TokenEvent("At noon "),
        CitationEvent(1, "d1", title="Tides"),
        StatusEvent("writing"),
        CustomEvent("chart", {"x": [1, None]}),
        CustomEvent("ping"),
        TokenEvent("[1]."),
        done(),
    )
    assert custom(events, "turnwire.citation") == [
        {"type": "citation", "index": 1, "document_id": "d1", "title": "Tides"}
    ]
    assert custom(events, "turnwire.status") == [{"type": "status", "text": "writing"}]
    assert (custom(events, "chart"), custom(events, "ping")) == ([{"x": [1, None]}], [{}])
    assert len(only(events, "TEXT_MESSAGE_START")) == 1


def test_application_event_with_reserved_name_gets_a_prefix() -> None:
    events = events_of(CustomEvent("turnwire.citation", {"index": 1, "document_id": "forged"}), done())
    assert custom(events, "turnwire.citation") == []
    assert custom(events, "custom-turnwire.citation") == [{"index": 1, "document_id": "forged"}]


def test_handoff_starts_a_new_step() -> None:
    events = events_of(HandoffEvent("writer"), TokenEvent("a"), done())
    steps = [(event["type"], event["stepName"]) for event in events if event["type"].startswith("STEP")]
    assert steps == [
        ("STEP_STARTED", "echo"),
        ("STEP_FINISHED", "echo"),
        ("STEP_STARTED", "writer"),
        ("STEP_FINISHED", "writer"),
    ]
    assert custom(events, "turnwire.handoff") == [{"type": "handoff", "agent": "writer"}]


# Sub-agents


def test_sub_agent_events_carry_its_run_id_and_stay_out_of_the_answer() -> None:
    deep = ("research", "web")
    events = events_of(
        TokenEvent("I ask. "),
        TokenEvent("found", agent_path=deep),
        ToolCallEvent("c1", "find", {}, agent_path=("research",)),
        TokenEvent("more", agent_path=deep),
        ReasoningEvent("hm", agent_path=deep),
        ToolResultEvent("c1", "find", True, "x", agent_path=("research",)),
        TokenEvent("Done."),
        done(),
    )
    started = only(events, "SUBAGENT_STARTED")
    assert started == [
        {"type": "SUBAGENT_STARTED", "subagentRunId": "t1:agent-4-1", "name": "research"},
        {
            "type": "SUBAGENT_STARTED",
            "subagentRunId": "t1:agent-4-2",
            "name": "web",
            "parentSubagentRunId": "t1:agent-4-1",
        },
    ]
    ended = [event["subagentRunId"] for event in only(events, "SUBAGENT_FINISHED")]
    assert ended == ["t1:agent-4-2", "t1:agent-4-1"]
    assert text_of(events) == "I ask. Done."
    assert text_of(events, "t1:agent-4-2") == "foundmore"
    assert {event["subagentRunId"] for event in only(events, "TOOL_CALL_RESULT")} == {"t1:agent-4-1"}


def test_sub_agent_text_is_custom_for_clients_before_1_0() -> None:
    events = events_of(
        TokenEvent("inner", agent_path=("web",)),
        ReasoningEvent("hm", agent_path=("web",)),
        ToolCallEvent("c1", "find", {}, agent_path=("web",)),
        ToolResultEvent("c1", "find", True, "x", agent_path=("web",)),
        TokenEvent("outer"),
        done("cancelled", "requested"),
        wire=OLD,
    )
    assert custom(events, "turnwire.agent") == [
        {"agent_path": ["web"], "kind": "text", "delta": "inner"},
        {"agent_path": ["web"], "kind": "reasoning", "delta": "hm"},
    ]
    assert text_of(events) == "outer"
    assert not any("subagentRunId" in event or event["type"].startswith("SUBAGENT") for event in events)
    assert "protocolVersion" not in events[0]
    # These clients raise an error at an unknown outcome, so only the result has it.
    assert "outcome" not in events[-1]
    assert events[-1]["result"] == {"outcome": "cancelled", "reason": "requested"}


def text_of(events: list[dict[str, Any]], agent: str | None = None) -> str:
    pieces = only(events, "TEXT_MESSAGE_CONTENT")
    return "".join(event["delta"] for event in pieces if event.get("subagentRunId") == agent)


# Ends of a run


def test_failed_turn_ends_with_run_error() -> None:
    events = events_of(
        TokenEvent("so f"),
        ToolCallEvent("c1", "find", {}),
        TokenEvent("x", agent_path=("web",)),
        UsageEvent("m1", 3),
        ErrorEvent("it broke", "agent_failed"),
        done("failed", "agent_failed"),
    )
    assert events[-1] == {
        "type": "RUN_ERROR",
        "message": "it broke",
        "code": "agent_failed",
        "usage": [{"model": "m1", "inputTokens": 3}],
    }
    (unanswered,) = only(events, "TOOL_CALL_RESULT")
    assert json.loads(unanswered["content"]) == {"error": "The turn ended before this tool did."}


def test_failure_without_error_event_has_a_default_message() -> None:
    assert events_of(done("interrupted", "worker_lost"))[-1] == {
        "type": "RUN_ERROR",
        "message": "The answer could not be completed.",
        "code": "worker_lost",
    }


def test_error_event_in_completed_turn_is_success() -> None:
    assert events_of(ErrorEvent("no model", "model_failed"), TokenEvent("a"), done())[-1]["outcome"] == {
        "type": "success"
    }


def test_cancelled_turn_finishes_as_cancelled() -> None:
    events = events_of(TokenEvent("so f"), UsageEvent("m1", 3), UsageEvent("m2", 4, 2), done("cancelled", "requested"))
    assert events[-1]["outcome"] == {"type": "cancelled"}
    assert events[-1]["result"] == {"outcome": "cancelled", "reason": "requested"}
    assert [usage["model"] for usage in events[-1]["usage"]] == ["m1", "m2"]


# Waiting for a person

ASKING = [
    TokenEvent("May I?"),
    ToolCallEvent("c1", "pay", {"amount": 40}),
    ApprovalRequestEvent("c1", "pay", {"amount": 40}, "it costs money"),
    ToolCallEvent("c2", "mail", {}, agent_path=("clerk",)),
    ApprovalRequestEvent("c2", "mail", {}, agent_path=("clerk",)),
]


def test_waiting_turn_ends_its_run_with_interrupts_and_continues_in_another() -> None:
    wire = AgUi("thread", ("r1", "r2"))
    encoder = wire.encoder()
    before = b"".join(map(encoder.frame, logged([UsageEvent("m", 1), *ASKING])))
    paused = encoder.pause()
    assert paused == encoder.pause()
    events = check(before + paused)
    assert kinds(events)[-3:] == ["SUBAGENT_FINISHED", "STEP_FINISHED", "RUN_FINISHED"]
    assert events[-3]["outcome"] == {"type": "suspended", "interruptIds": ["t1:8"]}
    assert events[-1]["runId"] == "r1"
    assert events[-1]["usage"] == [{"model": "m", "inputTokens": 1}]
    first, second = events[-1]["outcome"]["interrupts"]
    assert first == {
        "id": "t1:6",
        "reason": "tool_call",
        "message": "it costs money",
        "toolCallId": "t1:c1",
        "responseSchema": {
            "type": "object",
            "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
            "required": ["approved"],
        },
        "metadata": {"kind": "approval", "toolName": "pay", "input": {"amount": 40}},
    }
    assert (second["id"], second["subagentRunId"]) == ("t1:8", "t1:agent-7-1")
    rest = logged(
        [
            UsageEvent("m", 1),
            *ASKING,
            ApprovalResponseEvent("c1", True, None, "ann"),
            ApprovalResponseEvent("c2", False, "not now", "ann"),
            ToolResultEvent("c1", "pay", True, "paid"),
            ToolResultEvent("c2", "mail", False, "Denied", agent_path=("clerk",)),
            TokenEvent("Paid."),
            done(),
        ]
    )[8:]
    assert (encoder.frame(rest[0]), encoder.pause()) == (b"", paused)  # It still waits, for the other decision.
    after = b"".join(map(encoder.frame, rest[1:]))
    assert after.startswith(paused)
    later = check(before + after)[len(events) :]
    assert later[0] == {
        "type": "RUN_STARTED",
        "threadId": "thread",
        "runId": "r2",
        "parentRunId": "r1",
        "protocolVersion": "1.0",
    }
    assert custom(later, "turnwire.approval") == [
        {"toolCallId": "t1:c1", "approved": True, "by": "ann", "callId": "c1"},
        {"toolCallId": "t1:c2", "approved": False, "reason": "not now", "by": "ann", "callId": "c2"},
    ]
    assert (later[-1]["runId"], later[-1]["outcome"]) == ("r2", {"type": "success"})
    assert "usage" not in later[-1]


def test_later_run_without_client_id_is_named_after_the_first() -> None:
    rest = [ApprovalResponseEvent("c1", True), ToolResultEvent("c1", "pay", True), *ASKING[1:3]]
    events = events_of(*ASKING[:3], *rest, done("cancelled"), wire=AgUi(run_ids=("r1",)))
    assert [event["runId"] for event in only(events, "RUN_STARTED")] == ["r1", "r1:2", "r1:3"]
    assert [event["outcome"]["type"] for event in only(events, "RUN_FINISHED")] == [
        "interrupt",
        "interrupt",
        "cancelled",
    ]


def test_pause_of_running_turn_is_empty() -> None:
    encoder = WIRE.encoder()
    for entry in logged(ASKING[:2]):
        encoder.frame(entry)
        assert encoder.pause() == b""


# Framing


def test_restart_is_refused() -> None:
    with pytest.raises(RestartedError):
        stream(TokenEvent("a"), RestartEvent(2, "worker_lost"))


def test_controls_are_not_encoded() -> None:
    assert [WIRE.control(item) for item in (Gap(1, 2, TurnState()), Reset(), Reconnect(5))] == [None, None, None]


@pytest.mark.parametrize(
    "query", [{"version": "2"}, {"version": "-1"}, {"run_id": "a\nb"}, {"thread_id": "é"}, {"run_id": "x" * 161}]
)
def test_invalid_option_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"version|run_id"):
        AgUi.of_query(query)


def test_key_contains_the_options() -> None:
    queries = [{}, {"version": "0"}, {"run_id": "r"}, {"thread_id": "r"}, {"run_id": "r", "thread_id": "r"}]
    assert len({AgUi.of_query(query).key for query in queries}) == len(queries)


# Any log

paths = st.sampled_from([(), ("a",), ("a", "b"), ("b",)])
ids = st.sampled_from(["c1", "c2", "c1-5"])
values = st.one_of(st.none(), texts, st.integers(-9, 9), st.lists(st.none(), max_size=2))
args = st.dictionaries(texts, values, max_size=2)
events = st.one_of(
    st.builds(TokenEvent, texts),
    st.builds(TokenEvent, texts, agent_path=paths),
    st.builds(ReasoningEvent, texts, agent_path=paths),
    st.builds(StatusEvent, texts, agent_path=paths),
    st.builds(HandoffEvent, texts, agent_path=paths),
    st.builds(SearchEvent, ids, st.sampled_from(["started", "finished", "failed"]), texts, texts, agent_path=paths),
    st.builds(ReviewEvent, ids, st.just(1), st.sampled_from(["approved", "rejected"]), agent_path=paths),
    st.builds(ToolCallEvent, ids, texts, args, agent_path=paths),
    st.builds(ToolProgressEvent, ids, st.none() | texts, st.none() | st.floats(0, 1), values, agent_path=paths),
    st.builds(ToolResultEvent, ids, texts, st.booleans(), values, agent_path=paths),
    st.builds(CitationEvent, st.integers(1, 3), texts, agent_path=paths),
    st.builds(ApprovalRequestEvent, ids, texts, args, st.none() | texts, agent_path=paths),
    st.builds(ApprovalResponseEvent, ids, st.booleans(), st.none() | texts, agent_path=paths),
    st.builds(CustomEvent, texts, values, agent_path=paths),
    st.builds(UsageEvent, st.none() | texts, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    st.builds(ErrorEvent, texts, texts),
)
outcomes: Any = st.sampled_from(["completed", "failed", "cancelled", "interrupted"])
wires = st.sampled_from([WIRE, OLD])


@given(st.lists(events, max_size=25), outcomes, wires)
def test_any_log_keeps_the_protocol_rules(log: list[Event], outcome: Outcome, wire: AgUi) -> None:
    entries = logged([*log, done(outcome)])
    body = b"".join(map(wire.encoder().frame, entries))
    read = check(body)
    assert [frame.data for frame in parse(body)] == [frame.data for frame in parse_carelessly(body)]
    # The answer, its tools, sources and outcome are all there.
    kept = [entry.event for entry in entries]
    assert text_of(read) == "".join(e.content for e in kept if isinstance(e, TokenEvent) and not e.agent_path)
    assert [item["document_id"] for item in custom(read, "turnwire.citation")] == [
        e.document_id for e in kept if isinstance(e, CitationEvent)
    ]
    results = [event for event in only(read, "TOOL_CALL_RESULT") if ":result-" in event["messageId"]]
    assert len(results) == sum(isinstance(e, ToolResultEvent) for e in kept)
    last = {"completed": "success", "cancelled": "cancelled" if wire is WIRE else None}
    if outcome in ("failed", "interrupted"):
        assert read[-1]["type"] == "RUN_ERROR"
    else:
        assert read[-1].get("outcome", {}).get("type") == last[outcome]


@given(st.lists(events, max_size=25), outcomes, wires)
def test_pause_ends_the_run_and_begins_the_next_frame(log: list[Event], outcome: Outcome, wire: AgUi) -> None:
    encoder, read, paused = wire.encoder(), b"", b""
    for entry in logged([*log, done(outcome)]):
        frame = encoder.frame(entry)
        if paused and isinstance(entry.event, ApprovalResponseEvent) and not frame:
            assert encoder.pause() == paused  # There is more to decide.
        elif paused and not isinstance(entry.event, ToolCallEvent | ApprovalRequestEvent):
            assert frame.startswith(paused)
        read, paused = read + frame, encoder.pause()
        if isinstance(entry.event, ApprovalRequestEvent):
            assert check(read + paused)[-1]["outcome"]["type"] == "interrupt"
    assert not paused


@given(st.lists(events, max_size=10), outcomes)
def test_frames_depend_only_on_earlier_events(log: list[Event], outcome: Outcome) -> None:
    entries = logged([*log, done(outcome)])
    again = [LoggedEvent(entry.position, entry.epoch, entry.at, entry.body) for entry in entries]
    once, twice = WIRE.encoder(), WIRE.encoder()
    assert [once.frame(entry) for entry in entries] == [twice.frame(entry) for entry in again]


def test_log_with_every_event_type_keeps_the_rules() -> None:
    log = [event for event in FULL[2:-1] if not isinstance(event, RestartEvent)]
    assert {event["type"] for event in events_of(*log, done())} >= {"RUN_STARTED", "ACTIVITY_SNAPSHOT", "RUN_FINISHED"}


def test_rules_notice_every_missing_event() -> None:
    whole = frames_of(stream(ReasoningEvent("hm"), *ASKING, ApprovalResponseEvent("c1", True), TokenEvent("a"), done()))
    for left_out in range(len(whole)):
        kind = whole[left_out][1]["type"]
        if kind in ("CUSTOM", "TOOL_CALL_ARGS", "TOOL_CALL_RESULT") or kind.endswith("CONTENT"):
            continue
        rules = Rules()
        try:
            for index, (_, event) in enumerate(whole):
                if index != left_out:
                    rules.take(event)
        except (AssertionError, KeyError):
            continue
        assert index == left_out, f"{kind} is missing and no rule noticed"
