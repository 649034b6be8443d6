"""The tool calls of a run: what the model wished for, what was made of it, and what was told, also before a wait."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from msgspec import Struct

from turnwire.agents.langgraph.messages import Path
from turnwire.core.approvals import Decision
from turnwire.core.events import Event, ToolCallEvent, ToolResultEvent
from turnwire.tools.arguments import read_arguments
from turnwire.tools.running import loggable, plain


class Past(Struct, frozen=True):
    """What was told before a wait: how often each call was tried, and which began and have not ended."""

    tries: dict[str, int]
    paused: dict[str, str]


class Calls:
    """A call is known by the id that the model gave it, and told under it; one that is tried again under its own.

    `unreadable` are those whose arguments are no object.
    """

    def __init__(self) -> None:
        self.unreadable: set[str] = set()
        self._wishes: dict[str, tuple[str, dict[str, Any]]] = {}
        self._tries: Counter[str] = Counter()
        self._told_results: set[str] = set()
        self._paused: dict[str, str] = {}
        self._decided: dict[str, dict[str, Any]] = {}

    def read_wishes(self, message: AIMessage, pieces: Iterable[tuple[list[str], list[str]]]) -> None:
        """LangChain mends arguments that break off, and drops calls whose arguments are no object.

        Neither happens here: such a call is made without arguments, and then refused with what is wrong about it.
        """
        for ids, texts in pieces:
            if read_arguments("".join(texts)) is None:
                self.unreadable.add("".join(ids))
        for call in message.invalid_tool_calls:
            self.unreadable.add(call["id"] or "")
            message.tool_calls.append({"name": call["name"] or "", "args": {}, "id": call["id"], "type": "tool_call"})
        message.invalid_tool_calls = []
        for call in message.tool_calls:
            if call["id"] in self.unreadable:
                call["args"] = {}
            self._wishes[call["id"] or ""] = call["name"], call["args"]

    def begin(self, wished: str) -> tuple[str, bool]:
        """The id that a call is told under, and whether it is new: not if it goes on after a wait."""
        if wished in self._paused:
            return self._paused.pop(wished), False
        # One that is tried again is another call: the first has its result, and an id stands for one pair.
        self._tries[wished] += 1
        return wished if self._tries[wished] == 1 else f"{wished}-{self._tries[wished]}", True

    def arguments(self, wished: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model wrote. But of a call that was decided about, what it is made with: it must be the same."""
        return self._wishes[wished][1] if wished in self._wishes and wished not in self._decided else inputs

    def end(self, call_id: str) -> None:
        self._told_results.add(call_id)

    def pause(self, wished: str, call_id: str) -> None:
        """Somebody is asked in the middle of it."""
        self._paused[wished] = call_id

    def result_of(self, message: ToolMessage, path: Path) -> Iterator[Event]:
        """The result of a call that was answered without running a tool."""
        call_id, tool = message.tool_call_id, message.name or "tool"
        if call_id in self._told_results:
            return
        if call_id not in self._tries:
            self._tries[call_id] += 1
            args = self._decided[call_id] if call_id in self._decided else self.arguments(call_id, {})
            yield ToolCallEvent(call_id, tool, plain(args), agent_path=path)
        self.end(call_id)
        yield ToolResultEvent(call_id, tool, message.status != "error", loggable(message.content), agent_path=path)

    # Over a wait

    def find_wish(self, tool: str, args: dict[str, Any], but: Collection[str]) -> str | None:
        """The id of such a call that the model has wished for and that is not made yet."""
        wished = (call_id for call_id, wish in self._wishes.items() if wish == (tool, args))
        return next((call_id for call_id in wished if call_id not in but and call_id not in self._tries), None)

    def past(self, asked: Collection[str]) -> Past:
        """But what somebody is asked about is told again, so that its arguments are compared."""
        tries = {wished: count for wished, count in self._tries.items() if wished not in asked}
        return Past(tries, {wished: call_id for wished, call_id in self._paused.items() if wished not in asked})

    def take_up(self, past: Past, decisions: Sequence[Decision]) -> None:
        """The run goes on; nothing of this is told twice."""
        self._tries.update(past.tries)
        self._paused.update(past.paused)
        self._decided = {decision.call_id: decision.args for decision in decisions}
