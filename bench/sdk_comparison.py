"""One agent SDK in two ways: `python -m bench.sdk_comparison SDK`, in its own process.

Both ways read the same answer from the same server, one after the other. `adapter`: the streaming loop of the SDK's own
documentation, and the same agent as a turn in the memory store, to its `done`. `journal`: as turns in an SQLite store,
without a journal and with one.
"""

import argparse
import asyncio
import copy
import gc
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import measure
from bench.model_server import WORD
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.stores import Store
from turnwire.core.run.runner import TurnRequest, TurnRunner
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite.store import SqliteStore

WARM_UP = 3
ADAPTER_WAYS = ("bare", "turnwire")
JOURNAL_WAYS = ("unjournaled", "journaled")
Run = Callable[[], Awaitable[str]]


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


async def compare_adapter(sdk: Sdk, tokens: int, turns: int, repeats: int) -> None:
    store = MemoryStore()
    runner = TurnRunner(store, {"agent": as_agent(sdk.agent)})
    await runner.open()
    runs: dict[str, Run] = dict(zip(ADAPTER_WAYS, (sdk.bare, as_turn(store, runner, "agent")), strict=True))
    await take_turns(runs, tokens, turns, repeats)
    await runner.close()


async def compare_journal(sdk: Sdk, tokens: int, turns: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        await store.open()
        runner = TurnRunner(store, {"unjournaled": unjournaled(sdk.agent), "journaled": as_agent(sdk.agent)})
        await runner.open()
        await take_turns({name: as_turn(store, runner, name) for name in JOURNAL_WAYS}, tokens, turns, repeats)
        await runner.close()
        await store.close()


def unjournaled(agent: Any) -> Any:
    """Return the agent of an SDK as one that keeps no journal."""
    adapter = as_agent(agent)
    if adapter is not agent:
        return type(adapter)(agent, on_crash="close")  # type: ignore[call-arg]
    own = copy.copy(agent)
    own.journal, own.on_crash = False, "close"
    return own


def as_turn(store: Store, runner: TurnRunner, agent: str) -> Run:
    async def run() -> str:
        request = TurnRequest(principal="bench", message="Go", agent=agent)
        turn_id = (await runner.start(request)).record.id
        # Without following the log, because the cost of a reader is in other tables.
        ended = asyncio.Event()
        unwatch = store.watch(turn_id, lambda events: ended.set() if events and events[-1].is_last else None)
        await ended.wait()
        unwatch()
        state = await store.turn_state(turn_id)
        return state.text if state and state.outcome == "completed" else ""

    return run


async def take_turns(runs: dict[str, Run], tokens: int, turns: int, repeats: int) -> None:
    for repeat in range(repeats + 1):
        # The order alternates, so that garbage of one does not always burden the other.
        for name in sorted(runs, reverse=bool(repeat % 2)):
            await measured(name, runs[name], tokens, WARM_UP if repeat == 0 else turns, reports=repeat > 0)


async def measured(name: str, run: Run, tokens: int, turns: int, reports: bool) -> None:
    gc.collect()
    began = time.process_time()
    for _ in range(turns):
        if await run() != WORD * tokens:
            raise SystemExit(f"{name}: the answer was incomplete")
    used = time.process_time() - began
    if reports:
        print(json.dumps({"name": name, "us_per_token": used * 1e6 / turns / tokens}), flush=True)


COMPARISONS = {"adapter": compare_adapter, "journal": compare_journal}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sdk", choices=SDKS)
    parser.add_argument("what", choices=COMPARISONS)
    for option in ("port", "core", "tokens", "turns", "repeats"):
        parser.add_argument(f"--{option}", type=int, required=True)
    options = parser.parse_args()
    sdk = SDKS[options.sdk][1](f"http://127.0.0.1:{options.port}/v1")
    print("loaded", flush=True)
    sys.stdin.readline()  # Until the others have loaded too.
    measure.pin(options.core)
    asyncio.run(COMPARISONS[options.what](sdk, options.tokens, options.turns, options.repeats))
