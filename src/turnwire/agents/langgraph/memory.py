"""The thread of a graph's checkpointer: the conversation in it, and the thread as it was when a run began.

A turn that lost its worker runs again from its start or its last suspension, but the application's checkpointer has
the checkpoints of the lost run already. The repeated run gets a view of the thread without them. A graph without a
checkpointer gets one that is kept with the turn while it waits for a person.
"""

import base64
import logging
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
)
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.message import REMOVE_ALL_MESSAGES  # pyright: ignore[reportMissingTypeStubs]
from langgraph.types import StateSnapshot
from msgspec import Struct, field

from turnwire.agents.langgraph.messages import cancelled_results, fields_of, human_message, sdk_messages
from turnwire.agents.langgraph.nodes import has_message_ids
from turnwire.core.errors import AgentError
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.turns import Turn

logger = logging.getLogger("turnwire.agents")

TURN_ID = "turnwire_turn_id"
"""The name of the turn's id in the metadata of checkpoints."""


# The conversation


async def branch_from_parent(graph: Any, turn: Turn, config: RunnableConfig) -> RunnableConfig:
    """Return the config with the checkpoint of the turn that this one continues, if the thread has gone on since."""
    if is_own(graph) or not graph.checkpointer or not turn.parent_turn_id:
        return config
    state = await graph.aget_state(config)
    if fields_of(state.metadata).get(TURN_ID) in (None, turn.parent_turn_id):
        return config
    async for earlier in graph.aget_state_history(config, filter={TURN_ID: turn.parent_turn_id}, limit=1):
        return {**config, "configurable": {**config.get("configurable", {}), **earlier.config["configurable"]}}
    return config  # Another agent of the session answered that turn.


async def graph_messages(graph: Any, turn: Turn, config: RunnableConfig) -> list[BaseMessage]:
    """Return the messages that are new for the graph."""
    if is_own(graph) or not graph.checkpointer:
        return await whole_conversation(turn)
    state = await graph.aget_state(config)
    messages = _messages_in(state)
    if not messages and turn.history:
        logger.warning(
            "the thread of session %s is empty, so it gets the conversation from Turnwire's log; use a checkpointer "
            "that writes to a disk or database",
            turn.session_id,
        )
        return await whole_conversation(turn)
    journal = current_journal()
    is_other = turn.parent_turn_id == "" or (journal is not None and journal.is_follow_up)
    if messages and is_other and has_message_ids(graph):
        return [RemoveMessage(REMOVE_ALL_MESSAGES), *await whole_conversation(turn)]
    # A stopped turn may have left calls without results, which model providers reject. The messages of its last step
    # are not in the checkpoint yet, and a new message would lose them. Not `state.next`: that is empty when all tasks
    # of the step have ended.
    written = {message.id for message in _messages_in(await graph.aget_state(state.config))} if state.tasks else None
    unwritten = [message for message in messages if written is not None and message.id not in written]
    return [*unwritten, *cancelled_results(messages), human_message(user_message(turn), await load_turn_files(turn))]


def _messages_in(state: Any) -> list[BaseMessage]:
    return fields_of(state.values).get("messages", [])


async def whole_conversation(turn: Turn) -> list[BaseMessage]:
    files = await load_turn_files(turn)
    return [*sdk_messages(turn.history, files=files), human_message(user_message(turn), files)]


# The thread when a run began


class SavedCheckpoint(Struct, frozen=True):
    """A checkpoint of a suspended thread: of the graph, or of a subgraph with that namespace.

    `writes` are those of the tasks that had ended or asked a person: task, channel, and the serialised value.
    """

    namespace: str
    id: str
    writes: list[tuple[str, str, str, str]]


class SavedThread(Struct, frozen=True):
    """A thread when its run was suspended.

    `own` is all of it, if the graph has no checkpointer. Otherwise the checkpointer has it, and checkpoints with an id
    after `before` do not belong to it.
    """

    own: str = ""
    before: str = ""
    checkpoints: list[SavedCheckpoint] = field(default_factory=list[SavedCheckpoint])


async def open_thread(
    graph: Any, turn: Turn, config: RunnableConfig, saved: SavedThread | None = None, *, is_recorded: bool
) -> Any:
    """Return the graph with the thread as it was when the turn began or was suspended, for its next run.

    Only a run that is recorded can be a repeated one. A replay neither reads nor writes the application's threads.
    """
    saver: Any = graph.checkpointer
    journal = current_journal()
    if saver is None or (journal is not None and journal.is_replay):
        own = _TurnSaver()
        if saved is not None and saved.own:
            own.restore(turn.session_id, saved.own)
        return graph.copy({"checkpointer": own})
    if not is_recorded or not _is_saver(saver):
        return graph
    if saved is not None and saved.before:
        return graph.copy({"checkpointer": _view_of(saver, _base_of(saver, turn, saved))})
    if turn.resumption is None:
        latest = await saver.aget_tuple(config)
        if latest is not None and fields_of(latest.metadata).get(TURN_ID) == turn.id:
            return graph.copy({"checkpointer": _view_of(saver, _ThreadBase(turn.id))})
    return graph


async def save_thread(graph: Any, config: RunnableConfig, state: StateSnapshot) -> SavedThread | None:
    """Return the thread of an interrupted graph. Raises AgentError if it cannot be serialised."""
    saver: Any = graph.checkpointer
    if isinstance(saver, _TurnSaver):
        return SavedThread(own=saver.dump(config))
    if not _is_saver(saver):
        return None
    checkpoints: list[SavedCheckpoint] = []
    for snapshot in _snapshots(state):
        found: CheckpointTuple | None = await saver.aget_tuple(snapshot.config)
        if found is None:
            continue
        writes = [
            (task, channel, kind, base64.b64encode(data).decode())
            for task, channel, value in found.pending_writes or ()
            for kind, data in (saver.serde.dumps_typed(value),)
        ]
        checkpoints.append(SavedCheckpoint(_namespace(found.config), found.checkpoint["id"], writes))
    return SavedThread(before=str(uuid6(clock_seq=-2)), checkpoints=checkpoints)


def _is_saver(checkpointer: Any) -> bool:
    return isinstance(checkpointer, BaseCheckpointSaver)


def _snapshots(state: StateSnapshot) -> Iterator[StateSnapshot]:
    yield state
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _snapshots(task.state)


class _ThreadBase(Struct):
    """The thread that a view shows: the namespaces in `written` as they are now, and all others as they were."""

    turn_id: str
    before: str = ""
    ids: dict[str, str] = field(default_factory=dict[str, str])
    writes: dict[str, dict[tuple[str, int], PendingWrite]] = field(
        default_factory=dict[str, dict[tuple[str, int], PendingWrite]]
    )
    written: set[str] = field(default_factory=set[str])

    def note_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str) -> None:
        if (kept := self.writes.get(get_checkpoint_id(config) or "")) is not None:
            for number, (channel, value) in enumerate(writes):
                kept[task_id, WRITES_IDX_MAP.get(channel, number)] = (task_id, channel, value)

    def shown(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return the checkpoint with the writes that belong to it, instead of those that the lost run has added."""
        if found is None or (kept := self.writes.get(found.checkpoint["id"])) is None:
            return found
        return found._replace(pending_writes=list(kept.values()))


def _base_of(saver: BaseCheckpointSaver[Any], turn: Turn, saved: SavedThread) -> _ThreadBase:
    base = _ThreadBase(turn.id, saved.before)
    for checkpoint in saved.checkpoints:
        base.ids[checkpoint.namespace] = checkpoint.id
        kept = base.writes[checkpoint.id] = {}
        for task, channel, kind, data in checkpoint.writes:
            number = WRITES_IDX_MAP.get(channel, len(kept))
            kept[task, number] = (task, channel, saver.serde.loads_typed((kind, base64.b64decode(data))))
    return base


def _view_of(saver: BaseCheckpointSaver[Any], base: _ThreadBase) -> BaseCheckpointSaver[Any]:
    """Return a view of the saver's threads. It writes to the saver."""
    kind = type(saver) if isinstance(saver, _ThreadView) else type("ThreadView", (_ThreadView, type(saver)), {})
    view: Any = copy(saver)
    view.__class__ = kind
    view.turnwire_base = base
    return view


class _ThreadView(BaseCheckpointSaver[Any]):
    """Methods of a view, before those of the application's class."""

    turnwire_base: _ThreadBase

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        base, namespace = self.turnwire_base, _namespace(config)
        if get_checkpoint_id(config) or namespace in base.written:
            return base.shown(await super().aget_tuple(config))
        if namespace in base.ids:
            return base.shown(await super().aget_tuple(_at(config, base.ids[namespace])))
        if base.before:
            async for found in super().alist(_at(config), before=_at(config, base.before), limit=1):
                return found
            return None
        latest = await super().aget_tuple(config)
        if latest is None or fields_of(latest.metadata).get(TURN_ID) != base.turn_id:
            return latest
        async for found in super().alist(_at(config), filter={TURN_ID: base.turn_id}):
            latest = found
        return await super().aget_tuple(latest.parent_config) if latest.parent_config else None

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        base, namespace = self.turnwire_base, _namespace(config)
        if get_checkpoint_id(config) or namespace in base.written:
            return base.shown(super().get_tuple(config))
        if namespace in base.ids:
            return base.shown(super().get_tuple(_at(config, base.ids[namespace])))
        if base.before:
            return next(iter(super().list(_at(config), before=_at(config, base.before), limit=1)), None)
        latest = super().get_tuple(config)
        if latest is None or fields_of(latest.metadata).get(TURN_ID) != base.turn_id:
            return latest
        *_, latest = super().list(_at(config), filter={TURN_ID: base.turn_id})
        return super().get_tuple(latest.parent_config) if latest.parent_config else None

    async def aput(self, config: RunnableConfig, *rest: Any, **options: Any) -> RunnableConfig:
        self.turnwire_base.written.add(_namespace(config))
        return await super().aput(config, *rest, **options)

    def put(self, config: RunnableConfig, *rest: Any, **options: Any) -> RunnableConfig:
        self.turnwire_base.written.add(_namespace(config))
        return super().put(config, *rest, **options)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, *rest: Any, **options: Any
    ) -> None:
        self.turnwire_base.note_writes(config, writes, task_id)
        await super().aput_writes(config, writes, task_id, *rest, **options)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, *rest: Any, **options: Any
    ) -> None:
        self.turnwire_base.note_writes(config, writes, task_id)
        super().put_writes(config, writes, task_id, *rest, **options)


def _namespace(config: RunnableConfig) -> str:
    return config.get("configurable", {}).get("checkpoint_ns", "")


def _at(config: RunnableConfig, checkpoint_id: str | None = None) -> RunnableConfig:
    place = {"thread_id": config.get("configurable", {})["thread_id"], "checkpoint_ns": _namespace(config)}
    return {"configurable": {**place, "checkpoint_id": checkpoint_id} if checkpoint_id else place}


# A graph without a checkpointer


def is_own(graph: Any) -> bool:
    """Return True if the graph has no checkpointer of the application."""
    return isinstance(graph.checkpointer, _TurnSaver)


class _References:
    """A serializer that keeps the values themselves: the state of a graph without a checkpointer may be anything."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        return "reference", obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return data[1]


class _TurnSaver(InMemorySaver):
    """The checkpointer of one run; `dump` and `restore` keep a thread over a suspension."""

    def __init__(self) -> None:
        super().__init__(serde=_References())  # pyright: ignore[reportUnknownMemberType]

    def with_allowlist(self, extra_allowlist: Any) -> BaseCheckpointSaver[Any]:
        return self

    def dump(self, config: RunnableConfig) -> str:
        thread: RunnableConfig = {"configurable": {"thread_id": config.get("configurable", {})["thread_id"]}}
        checkpoints = [
            (_namespace(found.config), found.checkpoint, found.metadata, found.pending_writes)
            for found in self.list(thread)
        ]
        try:
            kind, data = JsonPlusSerializer().dumps_typed(checkpoints)
        except Exception as error:
            raise AgentError(
                f"the graph's state cannot be stored while a person decides ({type(error).__name__})"
            ) from error
        return f"{kind}:{base64.b64encode(data).decode()}"

    def restore(self, thread_id: str, dumped: str) -> None:
        kind, _, data = dumped.partition(":")
        for namespace, checkpoint, metadata, writes in JsonPlusSerializer().loads_typed((kind, base64.b64decode(data))):
            config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
            place = self.put(config, checkpoint, metadata, checkpoint["channel_versions"])
            for task in dict.fromkeys(task for task, _, _ in writes):
                self.put_writes(place, [(channel, value) for other, channel, value in writes if other == task], task)
