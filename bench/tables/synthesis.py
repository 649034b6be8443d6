"""The written answer over HTTP: the time from the synthesis call to the first word at the client.

The scripted model, in this process, answers each call at once, so that what is left is Turnwire's own time: the call
over HTTP, the commit of the first token, and its way to the reader. The time of a real model comes on top.
"""

import asyncio
import json
import time
from collections.abc import Sequence

from bench import measure
from bench.job import Job
from bench.plan import P50, P95, P99, Plan, record
from bench.processes import CLIENT_CORE, SERVER_CORE, Server, serving
from bench.results import Table
from bench.tables.answers import spread
from bench.tables.search import latencies
from bench.timed_request import exchange, mark_times
from eval.own import read_questions
from tests.retrieval.shelf import judges, searches
from tests.scripted_model import Request, says, scripted_model
from turnwire.testing.scripted_wires import ScriptedAnswer

CASE = "from the synthesis call to the first word"
LIMIT_MS = 500
_FIRST_WORD = b"Bench"
_MOST_CALLS = 8
"""Of one question: searches, reviews and the synthesis."""


class SynthesisModel:
    """The answers of the model, and the time at which it was last asked to write."""

    def __init__(self) -> None:
        self.called_at = 0.0

    def reply(self, request: Request) -> ScriptedAnswer:
        if "response_format" in request.body:
            return judges()
        if "tools" not in request.body:
            self.called_at = time.perf_counter()
            return says("Bench", *[" token"] * 50, " [1].")
        if request.body["messages"][-1]["role"] != "tool":
            return searches(request.body["messages"][-1]["content"])
        return says("Ready.")


def synthesis(plan: Plan) -> Table:
    questions = spread([own.question for own in read_questions() if own.kind == "answerable"], plan.scale.questions)
    table = Table(
        "synthesis",
        f"{len(questions)} questions to Turnwire's documentation over HTTP, a scripted model; at most {LIMIT_MS} ms",
        P50,
        others=(P95, P99),
    )
    if plan.includes(table.name, CASE) and "written" in plan.variants:
        asyncio.run(_measure(plan, table, questions))
    return table


async def _measure(plan: Plan, table: Table, questions: Sequence[str]) -> None:
    model = SynthesisModel()
    calls = (plan.scale.repeats + 1) * len(questions) * _MOST_CALLS
    async with scripted_model(*[model.reply] * calls) as server:
        with serving(["written"], TURNWIRE_MODEL_URL=server.url) as servers, measure.pinned(CLIENT_CORE):
            for repeat in range(plan.scale.repeats + 1):
                yardstick = measure.Yardstick(SERVER_CORE)
                times = [
                    await asyncio.to_thread(_first_word, servers["written"], model, question, f"{repeat}-{number}")
                    for number, question in enumerate(questions)
                ]
                if repeat:  # The first one warms up.
                    record(table, CASE, "written", latencies(times) | yardstick.result())


def _first_word(server: Server, model: SynthesisModel, question: str, session: str) -> float:
    """Return the milliseconds from the synthesis call to the first word."""
    body = json.dumps({"message": question})
    path = f"/v1/rag/sessions/{session}/messages/stream"
    sent_at, reads = exchange(server.port, Job(server.port, path, "", streams=1, tokens=0, body=body).request())
    _, word = mark_times(reads, [b"\x1d", _FIRST_WORD])
    return (sent_at - model.called_at) * 1000 + word
