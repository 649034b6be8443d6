"""Summaries of long conversations."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_model import Request, ScriptedModel, fails, hangs, says, silent
from tests.serving import Served, error_of, quick_settings, serving, within
from turnwire import Turn, Turnwire
from turnwire.core.errors import ModelUnusableError
from turnwire.core.log.events import Event, ToolCallEvent, ToolResultEvent
from turnwire.core.log.history import HISTORY_TRIMMED, estimate, size
from turnwire.core.log.turns import Message
from turnwire.models.openai_client import OpenAIModel
from turnwire.models.summaries import SUMMARISING, SummarisedHistory
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

LIMIT = 2_000


class RecordingAgent:
    """An agent that writes long answers and records its history."""

    def __init__(self, words: int = 320, result: str | None = None) -> None:
        self.histories: list[tuple[Message, ...]] = []
        self.words = words
        self.result = result

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        self.histories.append(turn.history)
        if self.result is not None:
            yield ToolCallEvent("c1", "read", {"page": turn.message})
            yield ToolResultEvent("c1", "read", True, self.result)
        yield f"[{turn.message}] " + "word " * self.words

    @property
    def last(self) -> list[str]:
        return [message.content for message in self.histories[-1]]


@pytest.fixture
def listener() -> RecordingAgent:
    return RecordingAgent()


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    def start(agent: Any, store: Any = "memory", **settings: Any) -> AbstractAsyncContextManager[Served]:
        return serving(Turnwire(agent, store=store, settings=quick_settings(tmp_path, **settings)))

    return start


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwire.models.configuration.OpenAIModel", partial(OpenAIModel, retries=0))


def summarising(model: ScriptedModel, **settings: Any) -> dict[str, Any]:
    model.keeps_alive = False
    wanted = {"compaction": "summarise", "model": "m", "model_url": model.url}
    return {**wanted, "history_tokens": LIMIT, **settings}


async def read_answer(server: Served, message: str, session_id: str = "s") -> list[dict[str, Any]]:
    """Run one turn and return its events."""
    async with server.ask(message, session_id=session_id) as stream:
        return [frame.event for frame in await stream.rest()]


def statuses(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events if event["type"] == "status"]


def summarised_messages(request: Request) -> list[dict[str, str]]:
    """Return the messages that the model is to summarise."""
    _, question = request.body["messages"]
    return [json.loads(line) for line in question["content"].split("\n")]


def whole(request: Request) -> int:
    return sum(estimate(message["content"]) for message in request.body["messages"])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_older_turns_are_summarised_and_newer_ones_kept(
    serve: Serve, kind: str, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Ann likes tea.", usage={"input": 900, "output": 5}))
    async with serve(listener, store=kind, **summarising(model_server)) as server:
        for number in range(1, 6):
            assert statuses(await read_answer(server, f"Question {number}")) == []
        events = await read_answer(server, "Question 6")
        assert statuses(events) == [SUMMARISING]
        usage = next(event for event in events if event["type"] == "usage")
        assert (usage["input_tokens"], usage["output_tokens"]) == (900, 5)
    summary, _, *rest = listener.histories[-1]
    assert [message.role for message in listener.histories[-1]] == ["user", "assistant"] * (1 + len(rest) // 2)
    assert "Ann likes tea." in summary.content
    assert rest == [*listener.histories[-2], *rest[-2:]][-len(rest) :]
    assert rest[-2].content == "Question 5"
    assert size(listener.histories[-1]) <= LIMIT / 2 + LIMIT / 8
    instructions = model_server.bodies[0]["messages"][0]
    assert (instructions["role"], "do not do it" in instructions["content"]) == ("system", True)
    queries = [line["content"] for line in summarised_messages(model_server.requests[0]) if line["role"] == "user"]
    kept = [message.content for message in rest if message.role == "user"]
    assert queries + kept == [f"Question {number}" for number in range(1, 6)]


async def test_cached_summary_is_extended(serve: Serve, listener: RecordingAgent, model_server: ScriptedModel) -> None:
    model_server.plan(says("The first summary."), says("The second summary."))
    made: list[int] = []
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 12):
            if SUMMARISING in statuses(await read_answer(server, f"Question {number}")):
                made.append(number)
            if made:
                assert listener.last[1].startswith("I have read the summary")
    assert len(made) == 2
    assert made[1] - made[0] > 1
    assert "The second summary." in listener.last[0]
    first, second = map(summarised_messages, model_server.requests)
    assert second[0] == {"role": "summary", "content": "The first summary."}
    questions = [line["content"] for line in [*first, *second] if line["role"] == "user"]
    assert questions == [f"Question {number}" for number in range(1, len(questions) + 1)]


async def test_logs_are_unchanged(serve: Serve, listener: RecordingAgent, model_server: ScriptedModel) -> None:
    model_server.plan(says("A summary."))
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 7):
            await read_answer(server, f"Question {number}")
        exported = (await server.http.get("/v1/sessions/s/export")).json()
        queries = [message["content"] for message in exported["transcript"] if message["role"] == "user"]
        assert queries == [f"Question {number}" for number in range(1, 7)]
        assert "A summary." not in json.dumps(exported)


async def test_summary_is_made_again_after_a_restart(tmp_path: Path, model_server: ScriptedModel) -> None:
    first, second = RecordingAgent(), RecordingAgent()
    async with serving(Turnwire(first, settings=quick_settings(tmp_path, history_tokens=0))) as server:
        for number in range(1, 25):
            await read_answer(server, f"Question {number}")
    count = 0

    def summary(request: Request) -> Answer:
        nonlocal count
        count += 1
        assert whole(request) <= LIMIT
        lines = summarised_messages(request)
        assert (lines[0]["role"] == "summary") == (count > 1)
        if count > 1:
            assert lines[0]["content"] == f"Summary {count - 1}"
        return says(f"Summary {count}")

    model_server.plan(*[summary] * 20)
    settings = quick_settings(tmp_path, **summarising(model_server))
    async with serving(Turnwire(second, settings=settings)) as server:
        await read_answer(server, "Question 25")
        assert count > 3
        assert f"Summary {count}" in second.last[0]
        queries = [
            line["content"]
            for each in model_server.requests
            for line in summarised_messages(each)
            if line["role"] == "user"
        ]
        kept = [text for text in second.last if text.startswith("Question")]
        assert queries + kept == [f"Question {number}" for number in range(1, 25)]
        made = count
        await read_answer(server, "Question 26")
        assert count == made


async def test_turns_over_the_turn_limit_are_summarised(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    model_server.plan(*[says(f"Summary {number}") for number in range(1, 10)])
    listener.words = 1
    async with serve(listener, **summarising(model_server, history_turns=4)) as server:
        for number in range(1, 9):
            await read_answer(server, f"Question {number}")
            assert len([text for text in listener.last if text.startswith("Question")]) <= 4
    questions = [
        line["content"]
        for each in model_server.requests
        for line in summarised_messages(each)
        if line["role"] == "user"
    ]
    kept = [text for text in listener.last if text.startswith("Question")]
    assert questions + kept == [f"Question {number}" for number in range(1, 8)]


async def test_turns_over_the_turn_limit_are_summarised_after_a_restart(
    tmp_path: Path, model_server: ScriptedModel
) -> None:
    first, second = RecordingAgent(1), RecordingAgent(1)
    async with serving(Turnwire(first, settings=quick_settings(tmp_path))) as server:
        for number in range(1, 11):
            await read_answer(server, f"Question {number}")
    model_server.plan(says("A summary."))
    settings = quick_settings(tmp_path, **summarising(model_server, history_turns=4))
    async with serving(Turnwire(second, settings=settings)) as server:
        await read_answer(server, "Question 11")
    queries = [line["content"] for line in summarised_messages(model_server.requests[0]) if line["role"] == "user"]
    assert queries == [f"Question {number}" for number in range(1, 9)]
    assert [text for text in second.last if text.startswith("Question")] == ["Question 9", "Question 10"]


async def test_newest_turn_over_half_of_the_limit_is_kept(serve: Serve, model_server: ScriptedModel) -> None:
    listener = RecordingAgent(10, "found " * 800)
    model_server.plan(*[says("A summary.")] * 2)
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 4):
            await read_answer(server, f"Question {number}")
    assert "A summary." in listener.last[0]
    assert [message.content for message in listener.histories[-1] if message.role == "tool"] == ["found " * 800]


async def test_tool_results_are_summarised_and_calls_keep_their_results(
    serve: Serve, model_server: ScriptedModel
) -> None:
    listener = RecordingAgent(10, "found " * 4_000)
    model_server.plan(*[lambda request: says("Short.") if whole(request) <= LIMIT else fails(400)] * 10)
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 4):
            events = await read_answer(server, f"Question {number}")
            assert events[-1]["outcome"] == "completed"
            assert size(listener.histories[-1]) <= LIMIT
    assert [message.role for message in listener.histories[1]] == ["user", "assistant", "tool", "assistant"]
    calls = [line for line in summarised_messages(model_server.requests[0]) if "[calls read with" in line["content"]]
    assert '{"page":"Question 1"}' in calls[0]["content"]


async def test_long_message_is_summarised_in_pieces(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    listener.words = 1
    text = "".join(f'"{number}" ' for number in range(2_000))
    model_server.plan(*[lambda request: says("Short.") if whole(request) <= LIMIT else fails(400)] * 20)
    async with serve(listener, **summarising(model_server)) as server:
        await read_answer(server, text)
        await read_answer(server, "And now?")
        assert statuses(await read_answer(server, "And then?")) == [SUMMARISING]
    pieces = [
        line["content"]
        for each in model_server.requests
        for line in summarised_messages(each)
        if line["role"] == "user"
    ]
    assert "".join(pieces).strip() == text.strip()


async def test_overlong_summary_is_clipped(serve: Serve, listener: RecordingAgent, model_server: ScriptedModel) -> None:
    model_server.plan(says("endless " * 5_000))
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 7):
            await read_answer(server, f"Question {number}")
    assert "endless" in listener.last[0]
    assert estimate(listener.last[0]) < LIMIT / 4


@pytest.mark.parametrize("failure", [fails(500), says(""), says("   ")], ids=["broken", "empty", "blank"])
async def test_failed_model_leaves_out_the_oldest_turns(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel, caplog: pytest.LogCaptureFixture, failure: Any
) -> None:
    model_server.plan(failure, says("A beginning."), says("A summary."))
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 6):
            await read_answer(server, f"Question {number}")
        events = await read_answer(server, "Question 6")
        assert statuses(events) == [SUMMARISING, HISTORY_TRIMMED]
        assert events[-1]["outcome"] == "completed"
        assert "could not be summed up" in caplog.text
        assert listener.last[0] == "Question 2"
        assert size(listener.histories[-1]) <= LIMIT
        # The next turn tries again.
        await read_answer(server, "Question 7")
        assert "A summary." in listener.last[0]


@pytest.mark.parametrize("slow", [hangs(), silent("It was")], ids=["unanswered", "halfway"])
async def test_turn_can_be_stopped_during_its_summary(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel, slow: Any
) -> None:
    model_server.plan(slow, says("A summary."))
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 6):
            await read_answer(server, f"Question {number}")
        async with server.ask("Question 6", session_id="s") as stream:
            await stream.until("status")
            await model_server.request()
            snapshot = (await server.http.post(f"/v1/turns/{stream.turn_id}/cancel")).json()
            assert snapshot["outcome"] == "cancelled"
            await model_server.aborted()
        assert len(listener.histories) == 5
        await read_answer(server, "Question 7")
        assert "A summary." in listener.last[0]


async def test_summary_is_bounded_by_the_turn_timeout(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    model_server.plan(hangs())
    async with serve(listener, **summarising(model_server, turn_timeout=3)) as server:
        for number in range(1, 6):
            await read_answer(server, f"Question {number}")
        assert (await read_answer(server, "Question 6"))[-2]["code"] == "turn_timeout"


async def test_parallel_turns_share_one_summary(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    gate = asyncio.Event()
    model_server.plan(says("A ", gate, "beginning."), says("A summary."))
    async with serve(listener) as server:
        for number in range(1, 6):
            await read_answer(server, f"Question {number}")
        store = server.turnwire.store
        record = (await store.list_turns("local"))[-1]
        historian = SummarisedHistory(store, OpenAIModel("m", base_url=model_server.url), 50, 1_500)
        both = asyncio.gather(historian.recall(record), historian.recall(record))
        await model_server.request()
        gate.set()
        first, second = await within(both)
        await historian.close()
        assert first == second
        assert "A summary." in first[0].content
        assert len(model_server.requests) == 2


async def test_summary_usage_counts_for_the_principal(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    model_server.plan(says("A summary.", usage={"input": 900, "output": 101}))
    async with serve(listener, **summarising(model_server, max_tokens_per_day=1_000)) as server:
        for number in range(1, 6):
            await read_answer(server, f"Question {number}")
        events = await read_answer(server, "Question 6")
        assert (events[-2]["code"], len(listener.histories)) == ("budget_spent", 5)
        assert error_of(await server.http.post("/chat", json={"message": "Hello"}), 429)["used"] == 1_001


async def test_sessions_have_separate_summaries(
    serve: Serve, listener: RecordingAgent, model_server: ScriptedModel
) -> None:
    model_server.plan(
        lambda request: says(f"About {summarised_messages(request)[0]['content']}."), lambda request: says("Other.")
    )
    async with serve(listener, **summarising(model_server)) as server:
        for number in range(1, 7):
            await read_answer(server, f"Question {number}", "one")
        assert "About Question 1." in listener.last[0]
        for number in range(1, 7):
            await read_answer(server, f"Question {number}", "two")
        assert "Other." in listener.last[0]


def test_summaries_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusableError, match="`compaction` is `summarise`, which needs one; set `model`"):
        Turnwire(RecordingAgent(), store="memory", settings=quick_settings(tmp_path, compaction="summarise"))
