"""`ag_ui`, frame by frame: what a client is told, and the order that it insists on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import FULL, logged, texts
from tests.wires.ag_ui_rules import Rules, check, frames_of
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
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
from turnwire.core.turns import TurnState
from turnwire.wires.ag_ui.encoder import AgUi

WIRE = AgUi()
OLD = AgUi(version=0)


def stream(*events: Event, wire: AgUi = WIRE) -> bytes:
    return b"".join(map(wire.encoder().frame, logged(events)))


def told(*events: Event, wire: AgUi = WIRE) -> list[dict[str, Any]]:
    return check(stream(*events, wire=wire))


def done(outcome: Outcome = "completed", reason: str | None = None) -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1", reason)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def custom(events: list[dict[str, Any]], name: str) -> list[Any]:
    return [event["value"] for event in only(events, "CUSTOM") if event["name"] == name]


# What is told


def test_a_whole_turn_byte_by_byte() -> None:
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


def test_without_names_of_the_client_a_run_goes_by_ours() -> None:
    (begun,) = only(told(done()), "RUN_STARTED")
    assert (begun["threadId"], begun["runId"]) == ("s1", "t1")


def test_thinking_is_a_span_with_a_message_in_it() -> None:
    events = told(ReasoningEvent("hm"), ReasoningEvent("m"), TokenEvent("a"), done())
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


def test_calls_after_a_text_are_of_its_message_and_what_follows_their_results_is_another() -> None:
    events = told(
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


def test_a_call_is_told_with_progress_and_a_failure_is_an_error_in_its_result() -> None:
    events = told(
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


def test_an_id_that_is_used_again_is_another_call() -> None:
    call, result = ToolCallEvent("c", "find", {}), ToolResultEvent("c", "find", True, "x")
    events = told(call, result, call, result, ToolCallEvent("c-5", "find", {}), done())
    begun = [event["toolCallId"] for event in only(events, "TOOL_CALL_START")]
    assert begun == ["t1:c", "t1:c-5", "t1:c-5-7"]
    assert [event["toolCallId"] for event in only(events, "TOOL_CALL_RESULT")][:2] == begun[:2]


def test_searches_are_activities_that_change_and_reviews_are_told_once() -> None:
    hit = Hit(1, "d1", title="Tides")
    events = told(
        SearchEvent("r1", "started", "web", "tides"),
        SearchEvent("r1", "finished", "web", "tides", hits=(hit,), ms=2.5),
        ReviewEvent("v1", 1, "rejected", missing=("noon",)),
        ReviewEvent("v1", 2, "approved"),
        done(),
    )
    rules = Rules()
    for event in events:
        rules.take(event)
    searched, *judged = rules.activities.values()
    assert kinds(events)[2:6] == ["ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_SNAPSHOT"]
    assert events[2]["content"] == {"step_id": "r1", "phase": "started", "tool": "web", "query": "tides"}
    assert (searched["phase"], searched["hits"]) == (
        "finished",
        [{"index": 1, "document_id": "d1", "title": "Tides"}],
    )
    assert [one["verdict"] for one in judged] == ["rejected", "approved"]


def test_what_the_protocol_has_no_event_for_is_custom_and_does_not_break_a_sentence() -> None:
    events = told(
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


def test_an_applications_event_is_never_taken_for_one_of_ours() -> None:
    events = told(CustomEvent("turnwire.citation", {"index": 1, "document_id": "forged"}), done())
    assert custom(events, "turnwire.citation") == []
    assert custom(events, "custom-turnwire.citation") == [{"index": 1, "document_id": "forged"}]


def test_who_answers_is_the_step_of_the_run() -> None:
    events = told(HandoffEvent("writer"), TokenEvent("a"), done())
    steps = [(event["type"], event["stepName"]) for event in events if event["type"].startswith("STEP")]
    assert steps == [
        ("STEP_STARTED", "echo"),
        ("STEP_FINISHED", "echo"),
        ("STEP_STARTED", "writer"),
        ("STEP_FINISHED", "writer"),
    ]
    assert custom(events, "turnwire.handoff") == [{"type": "handoff", "agent": "writer"}]


# Sub-agents


def test_what_sub_agents_do_is_theirs_and_never_the_answer() -> None:
    deep = ("research", "web")
    events = told(
        TokenEvent("I ask. "),
        TokenEvent("found", agent_path=deep),
        ToolCallEvent("c1", "find", {}, agent_path=("research",)),
        TokenEvent("more", agent_path=deep),
        ReasoningEvent("hm", agent_path=deep),
        ToolResultEvent("c1", "find", True, "x", agent_path=("research",)),
        TokenEvent("Done."),
        done(),
    )
    begun = only(events, "SUBAGENT_STARTED")
    assert begun == [
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


def test_older_clients_would_take_a_sub_agents_words_for_the_answer_so_they_are_custom() -> None:
    events = told(
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
    # An outcome that they do not know would be an error of theirs; what it was is in the result.
    assert "outcome" not in events[-1]
    assert events[-1]["result"] == {"outcome": "cancelled", "reason": "requested"}


def text_of(events: list[dict[str, Any]], agent: str | None = None) -> str:
    pieces = only(events, "TEXT_MESSAGE_CONTENT")
    return "".join(event["delta"] for event in pieces if event.get("subagentRunId") == agent)


# How a run ends


def test_a_failure_is_an_error_and_nothing_comes_after_it() -> None:
    events = told(
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


def test_a_failure_without_words_still_says_something() -> None:
    assert told(done("interrupted", "worker_lost"))[-1] == {
        "type": "RUN_ERROR",
        "message": "The answer could not be completed.",
        "code": "worker_lost",
    }


def test_an_error_on_the_way_is_no_failure() -> None:
    assert told(ErrorEvent("no model", "model_failed"), TokenEvent("a"), done())[-1]["outcome"] == {"type": "success"}


def test_a_cancelled_run_is_finished_as_cancelled() -> None:
    events = told(TokenEvent("so f"), UsageEvent("m1", 3), UsageEvent("m2", 4, 2), done("cancelled", "requested"))
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


def test_a_turn_that_waits_ends_its_run_with_interrupts_and_goes_on_in_another() -> None:
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


def test_a_run_that_the_client_has_no_name_for_is_called_after_the_first() -> None:
    rest = [ApprovalResponseEvent("c1", True), ToolResultEvent("c1", "pay", True), *ASKING[1:3]]
    events = told(*ASKING[:3], *rest, done("cancelled"), wire=AgUi(run_ids=("r1",)))
    assert [event["runId"] for event in only(events, "RUN_STARTED")] == ["r1", "r1:2", "r1:3"]
    assert [event["outcome"]["type"] for event in only(events, "RUN_FINISHED")] == [
        "interrupt",
        "interrupt",
        "cancelled",
    ]


def test_a_turn_that_does_not_wait_has_no_pause() -> None:
    encoder = WIRE.encoder()
    for entry in logged(ASKING[:2]):
        encoder.frame(entry)
        assert encoder.pause() == b""


# Framing


def test_a_restart_cannot_be_told() -> None:
    with pytest.raises(RestartedError):
        stream(TokenEvent("a"), RestartEvent(2, "worker_lost"))


def test_there_are_no_words_for_what_is_no_event() -> None:
    assert [WIRE.control(one) for one in (Gap(1, 2, TurnState()), Reset(), Reconnect(5))] == [None, None, None]


@pytest.mark.parametrize(
    "query", [{"version": "2"}, {"version": "-1"}, {"run_id": "a\nb"}, {"thread_id": "é"}, {"run_id": "x" * 161}]
)
def test_an_option_that_is_none_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"version|run_id"):
        AgUi.of_query(query)


def test_options_are_in_the_key() -> None:
    queries = [{}, {"version": "0"}, {"run_id": "r"}, {"thread_id": "r"}, {"run_id": "r", "thread_id": "r"}]
    assert len({AgUi.of_query(query).key for query in queries}) == len(queries)


# Every log there can be

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
def test_every_log_keeps_the_order_that_clients_insist_on(log: list[Event], outcome: Outcome, wire: AgUi) -> None:
    entries = logged([*log, done(outcome)])
    body = b"".join(map(wire.encoder().frame, entries))
    said = check(body)
    assert [frame.data for frame in parse(body)] == [frame.data for frame in parse_carelessly(body)]
    # The answer, its tools, its sources and its outcome are all there.
    kept = [entry.event for entry in entries]
    assert text_of(said) == "".join(e.content for e in kept if isinstance(e, TokenEvent) and not e.agent_path)
    assert [one["document_id"] for one in custom(said, "turnwire.citation")] == [
        e.document_id for e in kept if isinstance(e, CitationEvent)
    ]
    results = [event for event in only(said, "TOOL_CALL_RESULT") if ":result-" in event["messageId"]]
    assert len(results) == sum(isinstance(e, ToolResultEvent) for e in kept)
    last = {"completed": "success", "cancelled": "cancelled" if wire is WIRE else None}
    if outcome in ("failed", "interrupted"):
        assert said[-1]["type"] == "RUN_ERROR"
    else:
        assert said[-1].get("outcome", {}).get("type") == last[outcome]


@given(st.lists(events, max_size=25), outcomes, wires)
def test_wherever_a_turn_waits_its_pause_ends_the_run_and_is_repeated(
    log: list[Event], outcome: Outcome, wire: AgUi
) -> None:
    encoder, said, paused = wire.encoder(), b"", b""
    for entry in logged([*log, done(outcome)]):
        frame = encoder.frame(entry)
        if paused and isinstance(entry.event, ApprovalResponseEvent) and not frame:
            assert encoder.pause() == paused  # There is more to decide.
        elif paused and not isinstance(entry.event, ToolCallEvent | ApprovalRequestEvent):
            assert frame.startswith(paused)
        said, paused = said + frame, encoder.pause()
        if isinstance(entry.event, ApprovalRequestEvent):
            assert check(said + paused)[-1]["outcome"]["type"] == "interrupt"
    assert not paused


@given(st.lists(events, max_size=10), outcomes)
def test_a_frame_depends_on_the_events_before_it_alone(log: list[Event], outcome: Outcome) -> None:
    entries = logged([*log, done(outcome)])
    again = [LoggedEvent(entry.position, entry.epoch, entry.at, entry.body) for entry in entries]
    once, twice = WIRE.encoder(), WIRE.encoder()
    assert [once.frame(entry) for entry in entries] == [twice.frame(entry) for entry in again]


def test_one_of_every_kind_keeps_the_order() -> None:
    log = [event for event in FULL[2:-1] if not isinstance(event, RestartEvent)]
    assert {event["type"] for event in told(*log, done())} >= {"RUN_STARTED", "ACTIVITY_SNAPSHOT", "RUN_FINISHED"}


def test_the_rules_are_not_asleep() -> None:
    whole = frames_of(stream(ReasoningEvent("hm"), *ASKING, ApprovalResponseEvent("c1", True), TokenEvent("a"), done()))
    for left_out in range(len(whole)):
        kind = whole[left_out][1]["type"]
        if kind in ("CUSTOM", "TOOL_CALL_ARGS", "TOOL_CALL_RESULT") or kind.endswith("CONTENT"):
            continue
        rules = Rules()
        try:
            for place, (_, event) in enumerate(whole):
                if place != left_out:
                    rules.take(event)
        except (AssertionError, KeyError):
            continue
        assert place == left_out, f"{kind} was not missed"
