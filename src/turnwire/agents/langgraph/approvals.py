"""Approvals and questions by LangGraph's own `interrupt()`.

The graph stops, the adapter waits for the answers, and the graph goes on with them in the same run. Some shapes of
interrupts are approvals: the requests of LangChain's `HumanInTheLoopMiddleware` for several calls and for one, which
are answered in its format, and values that name a `tool` or an `action`. Any other value is a question, and the reply
is what `interrupt()` returns; if the application has a `to_resume`, which takes a decision, it is an approval too.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Interrupt, StateSnapshot

from turnwire.agents.agent_paths import Path
from turnwire.agents.langgraph.events import GraphRun
from turnwire.agents.langgraph.messages import fields_of
from turnwire.core.errors import AgentError, QuestionDeclinedError
from turnwire.core.journal.turn_journal import TurnJournal, fingerprint
from turnwire.core.journal.waits import approval, ask
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ApprovalRequestEvent, ToolResultEvent
from turnwire.core.people.schemas import check_schema
from turnwire.tools.invocation import plain

ToResume = Callable[[Decision, Any], Any]
_PROMPT_FIELDS = ("question", "prompt", "message", "query", "description")


async def answer_interrupts(
    graph: Any,
    config: RunnableConfig,
    run: GraphRun,
    paths: Mapping[str, Path],
    to_resume: ToResume | None,
) -> Command[Any]:
    """Wait for the answers to all interrupts of a graph, and return the input that resumes it.

    `paths` has the agent path of each interrupt. With `to_resume`, every interrupt is an approval: the application
    makes its value from a decision. Raises AgentError if the graph cannot be resumed.
    """
    if not graph.checkpointer:
        raise AgentError(
            "the graph called interrupt() but is compiled with checkpointer=False, so it cannot be resumed"
        )
    if not paths:
        raise AgentError("the graph stopped at a breakpoint, which has nothing to approve; use interrupt() instead")
    if run.queue.journal is None:
        raise AgentError("the graph called interrupt() outside a turn, where nobody can answer")
    state = await graph.aget_state(config, subgraphs=True)
    # The graph was interrupted, and runs these calls again when it resumes.
    for call in run.tools.values():
        run.calls.pause(call.requested_id, call.call_id)
    reader = InterruptReader(run, run.queue.journal, paths, to_resume)
    pending = list(_pending(state))
    answers = await asyncio.gather(*[reader.answer(interrupt, node) for interrupt, node in pending])
    run.interrupt_places.clear()
    for result in reader.results:
        run.put(result)
    return Command(resume=dict(zip([interrupt.id for interrupt, _ in pending], answers, strict=True)))


def _pending(state: StateSnapshot) -> Iterator[tuple[Interrupt[Any], str]]:
    """Yield every interrupt with the name of its node."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _pending(task.state)
        else:
            yield from ((interrupt, task.name) for interrupt in task.interrupts)


class InterruptReader:
    """Asks a person about interrupts. `results` are those of requests that no tool call reports."""

    def __init__(
        self, run: GraphRun, journal: TurnJournal, paths: Mapping[str, Path], to_resume: ToResume | None
    ) -> None:
        self.results: list[ToolResultEvent] = []
        self._calls = run.calls
        self._editable = run.editable
        self._places = run.interrupt_places
        self._journal = journal
        self._paths = paths
        self._to_resume = to_resume
        self._taken: set[str] = set()

    async def answer(self, interrupt: Interrupt[Any], node: str) -> Any:
        """Return the value that `interrupt()` returns, when a person has answered."""
        value, path = fields_of(interrupt.value), self._paths.get(interrupt.id, ())
        with self._journal.inside(self._places.get(interrupt.id, "")):
            match value:
                case {"action_requests": [_, *_] as actions, "review_configs": configs}:
                    return await self._decide_actions(cast("list[Any]", actions), configs, path)
                case {"type": "tool_approval", "tool_call_id": str(call_id), "name": str(tool), "args": dict()}:
                    reason, editable = (
                        value.get("description") or None,
                        value.get("editable") is True or tool in self._editable,
                    )
                    request = ApprovalRequestEvent(
                        call_id, tool, plain(value["args"]), reason, editable=editable, agent_path=path
                    )
                    return _langchain_decision(await self._decide(request))
                case {"tool": str(tool)} | {"action": str(tool)}:
                    return await self._decide_value(interrupt.value, tool, plain(value), path)
                case _ if self._to_resume is not None:
                    args = plain(value) if value else {"value": plain(interrupt.value)}
                    return await self._decide_value(interrupt.value, node, args, path)
                case _:
                    return await _ask(interrupt.value, path)

    def _own_id(self) -> str:
        """Return an id for a request without a tool call: the same when the turn is continued."""
        return f"interrupt-{fingerprint([self._journal.recording.segment, self._journal.place('interrupt')])[:16]}"

    async def _decide(self, request: ApprovalRequestEvent) -> Decision:
        decision = await approval(request)
        self._calls.decided[decision.call_id] = decision
        return decision

    async def _decide_actions(self, actions: list[Any], configs: Any, path: Path) -> Any:
        """Return the decisions about the calls that LangChain's middleware asks about, in its form."""
        requests: list[tuple[ApprovalRequestEvent, bool]] = []
        for action in actions:
            matching = self._calls.find_request(action["name"], action["args"], self._taken)
            call_id = matching or self._own_id()
            self._taken.add(call_id)
            request = ApprovalRequestEvent(
                call_id,
                action["name"],
                plain(action["args"]),
                action.get("description"),
                editable=_may_edit(configs, action["name"]),
                agent_path=path,
            )
            requests.append((request, matching is None))
        decisions = await asyncio.gather(*[self._decide(request) for request, _ in requests])
        answers = [_langchain_decision(decision) for decision in decisions]
        for decision, answer, (_, is_own) in zip(decisions, answers, requests, strict=True):
            if is_own:
                self._write_result(decision, answer)
        return {"decisions": answers}

    async def _decide_value(self, value: Any, tool: str, args: dict[str, Any], path: Path) -> Any:
        """Return the value for an interrupt that is an approval of no tool call."""
        decision = await self._decide(ApprovalRequestEvent(self._own_id(), tool, args, agent_path=path))
        answer = self._to_resume(decision, value) if self._to_resume else decision.approved
        self._write_result(decision, answer)
        return answer

    def _write_result(self, decision: Decision, answer: Any) -> None:
        result = plain(answer) if decision.approved else decision.denial
        self.results.append(ToolResultEvent(decision.call_id, decision.tool, decision.approved, result))


async def _ask(value: Any, path: Path) -> Any:
    """Return the reply to a question, or None if the user has declined it."""
    fields = fields_of(value)
    texts = (value, *(fields.get(name) for name in _PROMPT_FIELDS))
    prompt = next((text for text in texts if isinstance(text, str) and text), None)
    prompt = prompt or msgspec.json.encode(plain(value)).decode()
    try:
        return await ask(prompt, _schema(fields.get("schema")), agent_path=path)
    except QuestionDeclinedError:
        return None


def _schema(schema: Any) -> dict[str, Any] | None:
    """Return the schema that a graph gives with its question, if a form can show it."""
    try:
        check_schema(schema)
    except ValueError:
        return None
    return plain(schema)


def _may_edit(configs: Any, tool: str) -> bool:
    """Return True if LangChain's middleware lets a person change the arguments of a tool."""
    reviews = (fields_of(config) for config in cast("list[Any]", configs if isinstance(configs, list) else []))
    return any(
        review.get("action_name") == tool and "edit" in review.get("allowed_decisions", ()) for review in reviews
    )


def _langchain_decision(decision: Decision) -> dict[str, Any]:
    if decision.approved and decision.requested_args is not None:
        return {"type": "edit", "edited_action": {"name": decision.tool, "args": decision.args}}
    if decision.approved:
        return {"type": "approve"}
    return {"type": "reject", "message": decision.reason} if decision.reason else {"type": "reject"}
