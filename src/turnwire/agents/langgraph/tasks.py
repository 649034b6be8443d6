"""The tasks of a graph's run: names that are the same in each run, and agent paths of the graphs around them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any
from uuid import UUID

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.sdk_internals import wrap
from turnwire.core.journal.turn_journal import TurnJournal

Metadata = Mapping[str, Any]
_PUSH = wrap("langgraph", "langgraph._internal._constants", "PUSH")


def namespace_of(metadata: Metadata) -> Path:
    """Return the checkpoint namespace of a task: the graphs and tasks around it, and itself."""
    namespace = metadata.get("langgraph_checkpoint_ns")
    return tuple(str(namespace).split("|")) if namespace else ()


class GraphTasks:
    """The tasks that have begun in a run. `answer_nodes` are the nodes whose text is the answer; None for all."""

    def __init__(self, journal: TurnJournal | None, answer_nodes: Collection[str] | None) -> None:
        self._journal = journal if journal is not None and journal.recording.calls else None
        self._answer_nodes = answer_nodes
        self._names: dict[Path, str] = {}
        self._first_steps: dict[Path, int] = {}
        self._agents: dict[Path, str] = {}
        self._tool_calls: dict[Path, str] = {}
        self._running: dict[UUID, Path] = {}
        self._graphs: set[UUID] = set()
        self.own_tasks: set[UUID] = set()
        """The running tasks of the turn's own graph."""
        self._paths: dict[Path, Path] = {}

    def begin(self, run_id: UUID, parent_id: UUID | None, metadata: Metadata) -> None:
        if parent_id is None:
            self._graphs.add(run_id)
        elif parent_id in self._graphs:
            self.own_tasks.add(run_id)
        self._graph_of(metadata)
        self.name_of(metadata)
        if (space := namespace_of(metadata)) and space not in self._running.values():
            self._running[run_id] = space

    def begin_call(self, metadata: Metadata, call_id: str) -> None:
        """Note the tool call that a task makes: a graph inside the task belongs to it."""
        self._tool_calls[namespace_of(metadata)] = call_id

    def end(self, run_id: UUID) -> None:
        """Release the path of a task that has ended, so that its next run has the same path."""
        self.own_tasks.discard(run_id)
        if (space := self._running.pop(run_id, None)) in self._paths:
            leave_agent(self._paths[space])

    def close(self) -> None:
        """Release the paths of the tasks that were stopped."""
        for path in self._paths.values():
            leave_agent(path)

    # Names, unlike LangGraph's task ids the same when the graph runs again

    def name_of(self, metadata: Metadata) -> str:
        """Return the name of the task that code belongs to; empty outside a graph.

        It has the steps since the first one, the node, and for a `Send` or a `@task` its number; for a task of a
        subgraph it begins with the name of the task around it.
        """
        space = namespace_of(metadata)
        if not space:
            return ""
        if space not in self._names:
            step: int = metadata.get("langgraph_step", 0)
            first = self._first_steps.setdefault(space[:-1], step)
            outer = [self._name_around(space[:-1])] if len(space) > 1 else []
            numbers = "".join(f".{number}" for number in _numbers(metadata.get("langgraph_path", ())))
            self._names[space] = "|".join([*outer, f"{step - first}:{metadata.get('langgraph_node', '')}{numbers}"])
        return self._names[space]

    def _name_around(self, space: Path) -> str:
        """Return the name of the task that a subgraph with this namespace belongs to."""
        # A part without a node of its own is the number of a subgraph that a node calls several times.
        return self._names.get(space) or "|".join(
            filter(None, (self._name_around(space[:-1]) if space[1:] else "", space[-1]))
        )

    # Agent paths

    def path_in(self, metadata: Metadata) -> Path:
        """Return the agent path of the graph that a task belongs to."""
        return self.path_of(self._graph_of(metadata))

    def text_path(self, metadata: Metadata) -> Path:
        """Return the agent path of the text that a task writes."""
        path, node = self.path_in(metadata), metadata.get("langgraph_node")
        is_other = not path and self._answer_nodes is not None and node is not None and node not in self._answer_nodes
        return self.path_of(namespace_of(metadata)) if is_other else path

    def path_of(self, space: Path) -> Path:
        """Return the names of the subgraphs of a namespace; a LangChain agent has a name of its own."""
        if not space:
            return ()
        if space not in self._paths:
            name = self._agents.get(space) or space[-1].partition(":")[0]
            parent, call_id = self.path_of(space[:-1]), self._tool_calls.get(space)
            recorded, reserved = self._recorded_path(parent, call_id, self._name_around(space))
            self._paths[space] = enter_agent(parent, name, call_id, recorded=recorded, reserved=reserved)
        return self._paths[space]

    def _graph_of(self, metadata: Metadata) -> Path:
        """Return the namespace of the graph that a task belongs to, and note the graph's name."""
        # The last part is the task itself; a `@task` belongs to its caller's graph, one part further down.
        depth, path = 1, metadata.get("langgraph_path", ())
        while len(path) == 4 and path[0] == _PUSH and path[-1] is True:
            depth, path = depth + 1, path[1]
        space = namespace_of(metadata)[:-depth]
        if space and (name := metadata.get("lc_agent_name")):
            self._agents.setdefault(space, name)
        return space

    def _recorded_path(self, parent: Path, call_id: str | None, task: str) -> tuple[Path | None, frozenset[Path]]:
        """Return the recorded path of a sub-agent, in a tool call or a subgraph, and the paths of others."""
        if self._journal is None:
            return None, frozenset()
        inside = f":{call_id}/" if call_id else f"{task}|"
        for key, call in self._journal.recording.calls.items():
            path = call.entry.agent_path
            if inside in key and len(path) > len(parent) and path[: len(parent)] == parent:
                return path[: len(parent) + 1], frozenset()
        return None, self._journal.reserved_paths()


def _numbers(path: Any) -> Iterator[int]:
    """Yield the numbers in the path of a task, which tell apart the tasks of one node."""
    for part in path:
        if isinstance(part, tuple | list):
            yield from _numbers(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            yield part
