"""Evaluations: recorded turns run again with a model, and what differs in answers, tools, cost and time.

The model is live; tools are not. A call with the recorded name and arguments gets the recorded result, and any other
call is refused with a text that the model reads. So an evaluation has no effects, unless tools are allowed to run.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import JournalEntry
from turnwire.core.errors import RecordingError
from turnwire.core.journal.turn_journal import APPROVAL, RecordedCall, ToolDeniedError, current_journal
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import ApprovalResponseEvent, Event, ToolCallEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import Turn
from turnwire.core.sentences import citation_coverage
from turnwire.recordings.recording import TurnRecording
from turnwire.recordings.replay import ReplayResult
from turnwire.reporting.timeline import cost_of, timeline_of
from turnwire.settings import ModelPrice
from turnwire.testing.client import AgentClient, AgentTurn

NOT_RECORDED = "Error: this call is not in the recording, and tools do not run in an evaluation."
_MAX_DECISIONS = 20

ChangedPart = Literal["outcome", "answer", "tools", "replay"]


class TurnFigures(Struct, frozen=True, kw_only=True):
    """The answer of one turn and what it used. Times are in ms, the cost in US dollars; None is unknown.

    `cited` is the share of the sentences that have a citation.
    """

    outcome: str
    answer: str
    tools: list[tuple[str, dict[str, Any]]]
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    cited: float = 0.0
    mode: str | None = None


class TurnComparison(Struct, frozen=True, kw_only=True):
    """A recorded turn and the same turn run again now. The `similarity` of the answers is from 0 to 1.

    `divergence` is the first difference of a replay.
    """

    recording: str
    message: str
    recorded: TurnFigures
    now: TurnFigures
    similarity: float
    differences: list[ChangedPart]
    divergence: str | None = None


def figures_of(events: "list[LoggedEvent] | tuple[LoggedEvent, ...]", prices: Mapping[str, ModelPrice]) -> TurnFigures:
    """Return the figures of a whole log."""
    fold = TurnFold()
    for logged in events:
        fold.add(logged)
    state = fold.state()
    cost = cost_of(timeline_of(list(events), None, events[-1].at), prices)
    usage = state.usage
    return TurnFigures(
        outcome=state.outcome or "waiting",
        answer=state.text or (state.error.error if state.error else ""),
        tools=[(event.tool, event.args) for logged in events if isinstance(event := logged.event, ToolCallEvent)],
        input_tokens=usage and usage.input_tokens,
        output_tokens=usage and usage.output_tokens,
        cost=cost and cost.dollars,
        first_token_ms=state.timings.get("first_token_ms"),
        total_ms=state.timings.get("total_ms"),
        # A quoted block has one marker for all its sentences.
        cited=1.0 if state.mode == "extractive" else citation_coverage(state.text),
        mode=state.mode,
    )


def compare_turns(
    name: str, recording: TurnRecording, events: "tuple[LoggedEvent, ...]", prices: Mapping[str, ModelPrice]
) -> TurnComparison:
    """Compare a recorded turn with the log of the same turn now."""
    recorded, now = figures_of(recording.events, prices), figures_of(events, prices)
    differences: list[ChangedPart] = []
    if recorded.outcome != now.outcome:
        differences.append("outcome")
    if recorded.answer != now.answer:
        differences.append("answer")
    if _multiset(recorded.tools) != _multiset(now.tools):
        differences.append("tools")
    return TurnComparison(
        recording=name,
        message=recording.turn.message,
        recorded=recorded,
        now=now,
        similarity=round(SequenceMatcher(None, recorded.answer, now.answer, autojunk=False).ratio(), 3),
        differences=differences,
    )


def compare_replay(
    name: str, recording: TurnRecording, replay: ReplayResult, prices: Mapping[str, ModelPrice]
) -> TurnComparison:
    """Return the comparison of a replay, which has the recorded figures up to its divergence."""
    same = compare_turns(name, recording, recording.events, prices)
    if replay.divergence is None:
        return same
    return replace(same, differences=["replay"], divergence=str(replay.divergence))


async def evaluate_turn(
    client: AgentClient,
    name: str,
    recording: TurnRecording,
    *,
    agent: str,
    options: Mapping[str, Any] | None = None,
    run_tools: bool = False,
) -> TurnComparison:
    """Send a recorded message again, with its history and options, and compare. `options` override the recorded ones.

    Raises RecordingError if the tools of the agent would run and may not.
    """
    agents: Any = client.turnwire.agents
    original: Agent = agents[agent]
    if not run_tools:
        if not recording.has_journal:
            raise RecordingError(
                f"the journal has no tool of {agent!r}, so its tools would run; allow that with --run-tools"
            )
        agents[agent] = _AnsweredAgent(original, recording)
    turn = recording.turn
    try:
        sent = await client.send(
            turn.message,
            agent=agent,
            principal=turn.principal,
            history=turn.history,
            options={**{key: value for key, value in turn.options.items() if key != "history"}, **(options or {})},
        )
        ended = await _decide(client, sent, recording)
    finally:
        agents[agent] = original
    return compare_turns(name, recording, ended.log, client.turnwire.settings.model_prices)


async def _decide(client: AgentClient, turn: AgentTurn, recording: TurnRecording) -> AgentTurn:
    """Answer as in the recording: decide about calls of the same tools, reply to the same questions, and send the
    results of the same calls of the client's tools. All others are denied, declined and reported as failed.
    """
    state = recording.state()
    calls = {step.id: step.name for step in state.steps}
    events = [logged.event for logged in recording.events]
    approved = {
        calls.get(event.call_id, "") for event in events if isinstance(event, ApprovalResponseEvent) and event.approved
    }
    replies = {_key(question.prompt, question.schema): question for question in state.questions}
    results = {_key(step.name, step.args): step for step in state.steps if step.runs_on == "client"}
    for _ in range(_MAX_DECISIONS):
        if turn.outcome is not None:
            break
        if turn.approvals:
            is_allowed = all(request.tool in approved for request in turn.approvals)
            reason = None if is_allowed else "It was not approved then."
            turn = await client.decide(turn, approved=is_allowed, reason=reason)
        elif turn.questions:
            reply = replies.get(_key(turn.questions[0].prompt, turn.questions[0].schema))
            is_answered = reply is not None and reply.state == "answered"
            turn = await client.reply(turn, reply.value if reply and is_answered else None, declined=not is_answered)
        else:
            step = results.get(_key(turn.client_calls[0].tool, turn.client_calls[0].args))
            output = step.result if step else NOT_RECORDED
            turn = await client.send_tool_result(turn, output, is_error=step is None or step.state != "succeeded")
    return turn


def _key(*parts: Any) -> bytes:
    return msgspec.json.encode(parts, order="deterministic")


def _multiset(tools: list[tuple[str, dict[str, Any]]]) -> Counter[bytes]:
    """Return the calls without their order, because parallel calls come in any order."""
    return Counter(_key(*call) for call in tools)


class _AnsweredAgent:
    """An agent whose tools are answered from a recording, found by name and arguments."""

    on_crash = "close"

    def __init__(self, agent: Agent, recording: TurnRecording) -> None:
        self._agent = agent
        self._calls = _finished_tools(recording)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)  # What the agent declares: the options, files and tools that it takes.

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        journal = current_journal()
        if journal is not None:
            journal.find_recorded = self._find
        return self._agent.answer(turn)

    def _find(self, entry: JournalEntry) -> RecordedCall | None:
        if entry.kind != "tool" or entry.names == (APPROVAL,):
            return None  # `_finish_waits` decides about requests for approval.
        for call in self._calls:
            if (call.entry.names, call.entry.args) == (entry.names, entry.args):
                # The same question may be asked again, and has the same answer.
                self._calls.remove(call)
                self._calls.append(call)
                return call
        raise ToolDeniedError(NOT_RECORDED)


def _finished_tools(recording: TurnRecording) -> list[RecordedCall]:
    started: dict[tuple[int, str], JournalEntry] = {}
    found: list[RecordedCall] = []
    for entry in recording.entries:
        if entry.kind != "tool":
            continue
        if entry.state == "started":
            started[entry.segment, entry.key] = entry
        elif entry.state == "finished" and (begun := started.get((entry.segment, entry.key))):
            found.append(RecordedCall(begun, "finished", entry.since, entry.position, entry.result))
    return found
