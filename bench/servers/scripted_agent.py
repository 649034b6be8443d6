"""A Pydantic AI agent whose model is the source: a function, no network."""

from collections.abc import AsyncIterator

from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, UserPromptPart
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.sources import tokens


def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    prompt = messages[-1].parts[-1]
    if not isinstance(prompt, UserPromptPart):
        raise TypeError(f"the last part is no user prompt but {prompt!r}")
    return tokens(prompt.content if isinstance(prompt.content, str) else "".join(map(str, prompt.content)))


AGENT = Agent(FunctionModel(stream_function=answer))


async def consume(message: str) -> int:
    """Run the loop of the agent's own documentation and count the events."""
    count = 0
    async with AGENT.run_stream_events(message) as events:
        async for event in events:
            if isinstance(event, PartStartEvent | PartDeltaEvent):
                count += 1
    return count
