"""The tool calls of a graph's run."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage

from turnwire.agents.agent_paths import Path
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import Event, ToolCallEvent, ToolResultEvent
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import elapsed_ms, loggable, plain


class ToolRun:
    """A running tool call: the id the model gave it, and the id it has in the log."""

    def __init__(self, requested_id: str, call_id: str, tool: str, args: dict[str, Any], path: Path) -> None:
        self.requested_id = requested_id
        self.call_id = call_id
        self.tool = tool
        self.args = args
        self.path = path
        self.began = time.perf_counter()

    def result(self, success: bool, result: Any) -> ToolResultEvent:
        ms = elapsed_ms(self.began)
        return ToolResultEvent(self.call_id, self.tool, success, result, ms, agent_path=self.path)


class GraphToolCalls:
    """The tool calls of a run: requested by the model, decided by a person, begun, ended.

    A call has the id that the model gave it; a retry of the graph has an id of its own. `invalid` are the calls whose
    arguments are no JSON object.
    """

    def __init__(self) -> None:
        self.invalid: set[str] = set()
        self.decided: dict[str, Decision] = {}
        self._requests: dict[str, tuple[str, dict[str, Any]]] = {}
        self._tries: Counter[str] = Counter()
        self._results: set[str] = set()
        self._paused: dict[str, str] = {}

    def read_requests(self, message: AIMessage, pieces: Iterable[tuple[list[str], list[str]]]) -> None:
        """Read the calls of a reply, with the streamed pieces of their ids and arguments.

        LangChain repairs truncated arguments and drops calls whose arguments are no object. Here such a call is made
        without arguments and then rejected with the reason.
        """
        for ids, texts in pieces:
            if read_arguments("".join(texts)) is None:
                self.invalid.add("".join(ids))
        for call in message.invalid_tool_calls:
            self.invalid.add(call["id"] or "")
            message.tool_calls.append({"name": call["name"] or "", "args": {}, "id": call["id"], "type": "tool_call"})
        message.invalid_tool_calls = []
        for call in message.tool_calls:
            if call["id"] in self.invalid:
                call["args"] = {}
            self._requests[call["id"] or ""] = call["name"], call["args"]

    def begin(self, requested_id: str) -> tuple[str, bool]:
        """Return the id of a call in the log, and False if the call goes on after an interrupt."""
        if requested_id in self._paused:
            return self._paused.pop(requested_id), False
        # A retry is another call: the first one has its result, and an id stands for one call and result.
        self._tries[requested_id] += 1
        tries = self._tries[requested_id]
        return requested_id if tries == 1 else f"{requested_id}-{tries}", True

    def arguments(self, requested_id: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments the model wrote; for a decided call the actual ones, which must match the decision."""
        is_requested = requested_id in self._requests and requested_id not in self.decided
        return self._requests[requested_id][1] if is_requested else inputs

    def shown_arguments(self, requested_id: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for the log: of a call that a person has changed, those of the model."""
        decision = self.decided.get(requested_id)
        is_changed = decision is not None and decision.requested_args is not None and decision.args == args
        return (decision.requested_args or {}) if decision is not None and is_changed else args

    def end(self, call_id: str) -> None:
        self._results.add(call_id)

    def pause(self, requested_id: str, call_id: str) -> None:
        """Mark a call as interrupted by an approval request inside it."""
        self._paused[requested_id] = call_id

    def result_of(self, message: ToolMessage, path: Path) -> Iterator[Event]:
        """Yield the events of a call that was answered without running a tool."""
        call_id, tool = message.tool_call_id, message.name or "tool"
        if call_id in self._results:
            return
        if call_id not in self._tries:
            self._tries[call_id] += 1
            args = self.decided[call_id].args if call_id in self.decided else self.arguments(call_id, {})
            yield ToolCallEvent(call_id, tool, plain(args), agent_path=path)
        self.end(call_id)
        yield ToolResultEvent(call_id, tool, message.status != "error", loggable(message.content), agent_path=path)

    def find_request(self, tool: str, args: dict[str, Any], excluded: Collection[str]) -> str | None:
        """Return the id of a requested call with this tool and arguments that has not begun."""
        matching = (call_id for call_id, request in self._requests.items() if request == (tool, args))
        return next((call_id for call_id in matching if call_id not in excluded and call_id not in self._tries), None)
