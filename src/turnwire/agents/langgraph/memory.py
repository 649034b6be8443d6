"""The thread of a graph's checkpointer: the conversation in it, and the thread as it was when a run began.

A turn that has waited or lost its worker runs again from its start, but the application's checkpointer has the
checkpoints of the run before. The repeated run gets a view of the thread without them. A graph without a checkpointer
gets one in memory for each run.
"""

import logging
from copy import copy
from typing import Any, cast

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES  # pyright: ignore[reportMissingTypeStubs]

from turnwire.agents.langgraph.messages import cancelled_results, fields_of, human_message, sdk_messages
from turnwire.agents.langgraph.nodes import has_message_ids
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
    is_other = turn.parent_turn_id == "" or (journal is not None and journal.recording.is_follow_up)
    if messages and is_other and has_message_ids(graph):
        return [RemoveMessage(REMOVE_ALL_MESSAGES), *await whole_conversation(turn)]
    # A stopped turn may have left calls without results, which model providers reject. The messages of its last step
    # are not in the checkpoint yet, and a new message would lose them. Not `state.next`: that is empty when all tasks
    # of the step have ended.
    written = {message.id for message in _messages_in(await graph.aget_state(state.config))} if state.tasks else None
    unwritten = [message for message in messages if written is not None and message.id not in written]
    return [*unwritten, *cancelled_results(messages), await _new_message(turn)]


def _messages_in(state: Any) -> list[BaseMessage]:
    return fields_of(state.values).get("messages", [])


async def whole_conversation(turn: Turn) -> list[BaseMessage]:
    return [*sdk_messages(turn.history, files=await load_turn_files(turn)), await _new_message(turn)]


async def _new_message(turn: Turn) -> BaseMessage:
    # A recorded output of a subgraph may have this message, which must be the same in a repeated run.
    return human_message(user_message(turn), await load_turn_files(turn), f"{turn.id}-message")


# The thread when a run began


async def open_thread(graph: Any, turn: Turn, config: RunnableConfig) -> Any:
    """Return the graph with the thread as it was when the turn began, for its next run.

    A replay neither reads nor writes the application's threads.
    """
    saver: Any = graph.checkpointer
    journal = current_journal()
    if saver is None or (journal is not None and journal.is_replay):
        return graph.copy({"checkpointer": _TurnSaver()})
    if journal is not None and isinstance(saver, BaseCheckpointSaver):
        latest = await saver.aget_tuple(config)
        if latest is not None and fields_of(latest.metadata).get(TURN_ID) == turn.id:
            return graph.copy({"checkpointer": _view_of(cast("BaseCheckpointSaver[Any]", saver), turn.id)})
    return graph


def _view_of(saver: BaseCheckpointSaver[Any], turn_id: str) -> BaseCheckpointSaver[Any]:
    """Return a view of the saver's threads without the earlier runs of a turn. It writes to the saver."""
    kind = type(saver) if isinstance(saver, _ThreadView) else type("ThreadView", (_ThreadView, type(saver)), {})
    view: Any = copy(saver)
    view.__class__ = kind
    view.turnwire_turn_id, view.turnwire_written = turn_id, set()
    return view


class _ThreadView(BaseCheckpointSaver[Any]):
    """Methods of a view, before those of the application's class.

    `turnwire_written` are the namespaces that the current run has written: these are shown as they are.
    """

    turnwire_turn_id: str
    turnwire_written: set[str]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        latest = await super().aget_tuple(config)
        if not self._is_of_earlier_run(config, latest):
            return latest
        async for found in super().alist(_at(config), filter={TURN_ID: self.turnwire_turn_id}):
            latest = found
        return await super().aget_tuple(latest.parent_config) if latest and latest.parent_config else None

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        latest = super().get_tuple(config)
        if not self._is_of_earlier_run(config, latest):
            return latest
        for found in super().list(_at(config), filter={TURN_ID: self.turnwire_turn_id}):
            latest = found
        return super().get_tuple(latest.parent_config) if latest and latest.parent_config else None

    def _is_of_earlier_run(self, config: RunnableConfig, latest: CheckpointTuple | None) -> bool:
        is_shown = get_checkpoint_id(config) or _namespace(config) in self.turnwire_written or latest is None
        return not is_shown and fields_of(latest and latest.metadata).get(TURN_ID) == self.turnwire_turn_id

    async def aput(self, config: RunnableConfig, *rest: Any, **options: Any) -> RunnableConfig:
        self.turnwire_written.add(_namespace(config))
        return await super().aput(config, *rest, **options)

    def put(self, config: RunnableConfig, *rest: Any, **options: Any) -> RunnableConfig:
        self.turnwire_written.add(_namespace(config))
        return super().put(config, *rest, **options)


def _namespace(config: RunnableConfig) -> str:
    return config.get("configurable", {}).get("checkpoint_ns", "")


def _at(config: RunnableConfig) -> RunnableConfig:
    thread_id = config.get("configurable", {})["thread_id"]
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": _namespace(config)}}


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
    """The checkpointer of one run."""

    def __init__(self) -> None:
        super().__init__(serde=_References())  # pyright: ignore[reportUnknownMemberType]

    def with_allowlist(self, extra_allowlist: Any) -> BaseCheckpointSaver[Any]:
        return self
