"""Messages that enter a running graph: between two of its steps, by the SDK's own drain and update of the state.

A graph without a checkpointer gets one for the run, which keeps references and serialises nothing. A graph whose state
has no `messages` takes none; a message to it becomes the next turn.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from turnwire.agents.langgraph.messages import cancelled_results, fields_of
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
        graph = graph.copy(update={"checkpointer": InMemorySaver(serde=cast("Any", _References()))})
        options = {"durability": "exit", **options}
    steps, node = 0, None
    while True:
        control = RunControl()
        try:
            async with aclosing(graph.astream(input, config, control=control, **options)) as items:
                async for space, mode, item in items:
                    yield space, mode, item
                    if mode == "updates" and not space:
                        steps, node = steps + 1, next(iter(item), node)
                        if not control.drain_requested and await inputs.is_due():
                            control.request_drain("input")
            return
        except GraphDrained:
            await flush()
            # The run goes on from its newest checkpoint, which may not be the one that it began with.
            configurable = {**config.get("configurable", {})}
            configurable.pop("checkpoint_id", None)
            config, input = {**config, "configurable": configurable}, None
            await _add_messages(graph, config, inputs, f"step {steps}", node)


async def _add_messages(graph: Any, config: RunnableConfig, inputs: TurnInputs, key: str, node: str | None) -> None:
    state = await graph.aget_state(config)
    # A message between a call and its result would be rejected by model providers.
    if not cancelled_results(fields_of(state.values).get("messages", [])):
        messages = [HumanMessage(content) for content in await inputs.take_at(key)]
        if messages:
            await graph.aupdate_state(config, {"messages": messages}, as_node=node)


class _References:
    """A serialiser for a checkpointer in memory that keeps the objects themselves."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        return "reference", obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return data[1]
