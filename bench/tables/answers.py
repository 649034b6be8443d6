"""A whole turn over HTTP: the time from a question to its first event, first word and end.

One question at a time, each on a new connection, alternating with `GET /healthz`, which shows the share of the
connection, the server and the machine. Some questions have no answer and are searched for in three rounds.
"""

import json
from collections.abc import Sequence

from bench import measure
from bench.job import Job
from bench.plan import P50, P95, P99, Plan, record
from bench.processes import CLIENT_CORE, SERVER_CORE, Server, serving
from bench.results import Sample, Table
from bench.tables.search import latencies
from bench.timed_request import ask
from eval.own import read_questions

FIRST_EVENT, FIRST_WORD, END = "first event", "first word", "the end"
MARKS = {FIRST_EVENT: b'{"event":', FIRST_WORD: b"\x1d", END: b'"outcome":"completed"'}
QUESTIONS_A_SESSION = 10
WARM = 10


def answers(plan: Plan) -> Table:
    questions = spread([own.question for own in read_questions()], plan.scale.questions)
    table = Table(
        "answers",
        f"{len(questions)} questions to Turnwire's documentation over HTTP, no model: from the request to",
        P50,
        against=("healthz",),
        others=(P95, P99),
        subject="request",
    )
    if "documents" not in plan.variants:
        return table
    with serving(["documents"]) as servers, measure.pinned(CLIENT_CORE):
        server = servers["documents"]
        take_turns(server, questions[:WARM], "warm")
        for repeat in range(plan.scale.repeats):
            for (case, name), sample in take_turns(server, questions, str(repeat)).items():
                if plan.case in case and name in plan.variants:
                    record(table, case, name, sample)
    return table


def take_turns(server: Server, questions: Sequence[str], session: str) -> dict[tuple[str, str], Sample]:
    """Return the samples by case and request."""
    alive = Job(server.port, "/healthz", "", streams=1, tokens=0).request()
    probes: list[float] = []
    turns: list[list[float]] = []
    yardstick = measure.Yardstick(SERVER_CORE)
    for number, question in enumerate(questions):
        probes += ask(server.port, alive, [b"{"])
        path = f"/v1/rag/sessions/{session}-{number // QUESTIONS_A_SESSION}/messages/stream"
        body = json.dumps({"message": question})
        posted = Job(server.port, path, "", streams=1, tokens=0, body=body).request()
        turns.append(ask(server.port, posted, list(MARKS.values())))
    steadiness = yardstick.result()
    samples: dict[tuple[str, str], Sample] = {}
    for case, times in zip(MARKS, zip(*turns, strict=True), strict=True):
        samples[case, "healthz"] = latencies(probes) | steadiness
        samples[case, "documents"] = latencies(list(times)) | steadiness
    return samples


def spread(questions: list[str], limit: int) -> list[str]:
    """Return at most `limit` questions, spread over the list."""
    count = min(limit, len(questions))
    return [questions[number * len(questions) // count] for number in range(count)]
