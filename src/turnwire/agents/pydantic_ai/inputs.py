"""Messages that enter a run: parts of the next request to its model, so that the SDK keeps them in its history."""

from typing import Any

from pydantic_ai import ModelRequestNode
from pydantic_ai import messages as sdk

from turnwire.core.inputs import current_inputs


async def add_inputs(node: Any, place: str | None) -> None:
    """Add the messages that have come to the request of a node, if it is one that calls the model."""
    inputs = current_inputs()
    if inputs is not None and isinstance(node, ModelRequestNode):
        request: sdk.ModelRequest = node.request
        request.parts = [*request.parts, *map(sdk.UserPromptPart, await inputs.take(place))]
