"""Messages that enter a run: added to what its models get, since the SDK's run takes none while it runs."""

from typing import Any, cast

from agents import TResponseInputItem

from turnwire.agents.openai_agents.events import Run
from turnwire.core.inputs import current_inputs


async def with_inputs(run: Run, input: Any, options: dict[str, Any]) -> Any:
    """Return the items for a model call, with the messages that have entered the run, each at its place.

    Only the turn's own run takes messages; the agents that its tools run do not. The SDK repeats all items in each
    call, so the messages are added again; where the server keeps the conversation, only the new ones are sent.
    """
    inputs = current_inputs()
    if inputs is None or run.path:
        return input
    await run.queue.flush()
    new = await inputs.take(run.place)
    if not new and not run.inputs:
        return input
    items: list[Any] = [_message(input)] if isinstance(input, str) else list(cast("list[Any]", input))
    if options.get("previous_response_id") or options.get("conversation_id"):
        return [*items, *map(_message, new)]
    if new and run.session is not None:
        await run.session.add_items([_message(content) for content in new])
    run.inputs += [(len(items), content) for content in new]
    for count, (place, content) in enumerate(run.inputs):
        items.insert(place + count, _message(content))
    return items


def _message(content: str) -> TResponseInputItem:
    return {"role": "user", "content": content}
