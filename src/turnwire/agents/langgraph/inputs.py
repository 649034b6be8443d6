"""Messages that enter a running graph: it is drained, and goes on from a checkpoint that has the message too.

The checkpoint is written with the checkpointer and not with `aupdate_state`, which would forget the steps that come
next, unless they follow from the edges of one node.

A graph without a checkpointer gets one for the run, which keeps references and serialises nothing. A graph whose state
has no `messages` takes none; a message to it becomes the next turn.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import add_messages  # pyright: ignore[reportMissingTypeStubs]
from langgraph.runtime import RunControl

from turnwire.agents.langgraph.messages import cancelled_results
from turnwire.agents.langgraph.nodes import has_message_ids
from turnwire.core.inputs import TurnInputs, current_inputs


async def stream_steered(
    graph: Any, input: Any, config: RunnableConfig, flush: Callable[[], Awaitable[None]], **options: Any
) -> AsyncGenerator[tuple[tuple[str, ...], str, Any]]:
    """Yield what `graph.astream` yields, and take the messages that come meanwhile into the graph's state.

    `flush` waits until the graph's events are in the log.
    """
    inputs = current_inputs()
    if inputs is None or not has_message_ids(graph):
        async with aclosing(graph.astream(input, config, **options)) as items:
            async for item in items:
                yield item
        return
    if not graph.checkpointer:
        graph = graph.copy(update={"checkpointer": InMemorySaver(serde=cast("Any", _ObjectReferences()))})
        options = {"durability": "exit", **options}
    steps = 0
    while True:
        control = RunControl()
        try:
            async with aclosing(graph.astream(input, config, control=control, **options)) as items:
                async for space, mode, item in items:
                    yield space, mode, item
                    if mode == "updates" and not space:
                        steps += 1
                        if not control.drain_requested and await inputs.is_due():
                            control.request_drain("input")
            return
        except GraphDrained:
            await flush()
            # The run goes on from its newest checkpoint, which may not be the one that it began with.
            configurable = {**config.get("configurable", {})}
            configurable.pop("checkpoint_id", None)
            config, input = {**config, "configurable": configurable}, None
            await _add_messages(graph.checkpointer, config, inputs, f"step {steps}")


async def _add_messages(saver: BaseCheckpointSaver[Any], config: RunnableConfig, inputs: TurnInputs, key: str) -> None:
    saved = await saver.aget_tuple(config)
    found: Any = saved.checkpoint["channel_values"].get("messages") if saved else None
    if saved is None or not isinstance(found, list):
        return
    messages = cast("list[Any]", found)
    # A message between a call and its result would be rejected by model providers.
    if cancelled_results(messages):
        return
    new: list[Any] = [HumanMessage(content) for content in await inputs.take_at(key)]
    if not new:
        return
    version = saver.get_next_version(saved.checkpoint["channel_versions"].get("messages"), None)
    checkpoint: Checkpoint = {
        **saved.checkpoint,
        "id": str(uuid6()),
        "channel_values": {**saved.checkpoint["channel_values"], "messages": add_messages(messages, new)},
        "channel_versions": {**saved.checkpoint["channel_versions"], "messages": version},
    }
    await saver.aput(saved.config, checkpoint, {**saved.metadata, "source": "update"}, {"messages": version})


class _ObjectReferences:
    """A serialiser for a checkpointer in memory that keeps the objects themselves."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        return "reference", obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return data[1]
