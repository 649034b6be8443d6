"""One agent SDK, alone and through Turnwire: `python -m bench.sdk_comparison SDK`, in its own process.

Both read the same answer from the same server, one after the other. Alone is the streaming loop of the SDK's own
documentation; through Turnwire the same agent runs as a turn in the memory store, to its `done`.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench import measure
from bench.model_server import WORD
from turnwire.agents.loader import as_agent
from turnwire.core.runner import TurnRequest, TurnRunner
from turnwire.stores.memory import MemoryStore

WARM_UP = 3


@dataclass(frozen=True)
class Sdk:
    """An agent, and its SDK's own streaming loop."""

    agent: Any
    bare: Callable[[], Awaitable[str]]


def chat_completions(url: str) -> Sdk:
    from openai import AsyncOpenAI

    from turnwire import ChatCompletionsAgent

    client = AsyncOpenAI(base_url=url, api_key="none")

    async def bare() -> str:
        text = ""
        stream: Any = await client.chat.completions.create(
            model="bench",
            messages=[{"role": "user", "content": "Go"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
        return text

    return Sdk(ChatCompletionsAgent("bench", base_url=url, api_key="none"), bare)


def openai_agents(url: str) -> Sdk:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel("bench", AsyncOpenAI(base_url=url, api_key="none"))
    agent = Agent(name="Bench", model=model, model_settings=ModelSettings(include_usage=True))

    async def bare() -> str:
        text = ""
        async for event in Runner.run_streamed(agent, "Go").stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        return text

    return Sdk(agent, bare)


def langgraph(url: str) -> Sdk:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    agent: Any = create_agent(ChatOpenAI(model="bench", base_url=url, api_key=SecretStr("none"), stream_usage=True))

    async def bare() -> str:
        text = ""
        inputs = {"messages": [{"role": "user", "content": "Go"}]}
        async for chunk, _ in agent.astream(inputs, stream_mode="messages"):
            text += chunk.text
        return text

    return Sdk(agent, bare)


def pydantic_ai(url: str) -> Sdk:
    from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("bench", provider=OpenAIProvider(base_url=url, api_key="none")))

    async def bare() -> str:
        text = ""
        async with agent.run_stream_events("Go") as events:
            async for event in events:
                match event:
                    case PartStartEvent(part=TextPart(content=piece)):
                        text += piece
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                        text += piece
                    case _:
                        pass
        return text

    return Sdk(agent, bare)


SDKS: dict[str, tuple[str, Callable[[str], Sdk]]] = {
    "chat-completions": ("Chat Completions, the openai client", chat_completions),
    "openai-agents": ("OpenAI Agents SDK", openai_agents),
    "langgraph": ("LangChain agent", langgraph),
    "pydantic-ai": ("Pydantic AI", pydantic_ai),
}


async def compare(sdk: Sdk, tokens: int, turns: int, repeats: int) -> None:
    store = MemoryStore()
    runner = TurnRunner(store, {"agent": as_agent(sdk.agent)})
    await runner.open()

    async def through_turnwire() -> str:
        turn_id = (await runner.start(TurnRequest(principal="bench", message="Go"))).record.id
        # Without following the log, because the cost of a reader is in other tables.
        ended = asyncio.Event()
        unwatch = store.watch(turn_id, lambda events: ended.set() if events[-1].is_last else None)
        await ended.wait()
        unwatch()
        state = await store.turn_state(turn_id)
        return state.text if state and state.outcome == "completed" else ""

    runs = {"bare": sdk.bare, "turnwire": through_turnwire}
    for repeat in range(repeats + 1):
        # The order alternates, so that garbage of one does not always burden the other.
        for name in sorted(runs, reverse=bool(repeat % 2)):
            await measured(name, runs[name], tokens, WARM_UP if repeat == 0 else turns, reports=repeat > 0)
    await runner.close()


async def measured(name: str, run: Callable[[], Awaitable[str]], tokens: int, turns: int, reports: bool) -> None:
    gc.collect()
    began = time.process_time()
    for _ in range(turns):
        if await run() != WORD * tokens:
            raise SystemExit(f"{name}: the answer was incomplete")
    used = time.process_time() - began
    if reports:
        print(json.dumps({"name": name, "us_per_token": used * 1e6 / turns / tokens}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sdk", choices=SDKS)
    for option in ("port", "core", "tokens", "turns", "repeats"):
        parser.add_argument(f"--{option}", type=int, required=True)
    options = parser.parse_args()
    measure.pin(options.core)
    sdk = SDKS[options.sdk][1](f"http://127.0.0.1:{options.port}/v1")
    asyncio.run(compare(sdk, options.tokens, options.turns, options.repeats))
