"""A whole turn over HTTP: from a question to its first event, its first word and its end.

One question at a time, each on a new connection; `GET /healthz` takes turns with them, so it shows what of
the time is the connection, the server and the machine. Some questions have no answer in the documents,
and are searched for in three rounds.
"""

import json
from collections.abc import Sequence

from bench import measure
from bench.asking import ask
from bench.job import Job
from bench.plan import P50, P95, P99, Plan, record
from bench.results import Sample, Table
from bench.running import CLIENT_CORE, SERVER_CORE, Server, serving
from bench.tables.search import latencies
from eval.own import read_questions

FIRST_EVENT, FIRST_WORD, END = "first event", "first word", "the end"
MARKS = {FIRST_EVENT: b'{"event":', FIRST_WORD: b"\x1d", END: b'"outcome":"completed"'}
QUESTIONS_A_SESSION = 10
WARM = 10


def answers(plan: Plan) -> Table:
    asked = spread([own.question for own in read_questions()], plan.scale.questions)
    table = Table(
        "answers",
        f"{len(asked)} questions to Turnwire's documentation over HTTP, no model: from the request to",
        P50,
        against=("healthz",),
        others=(P95, P99),
        subject="request",
    )
    if "documents" not in plan.variants:
        return table
    with serving(["documents"]) as servers, measure.pinned(CLIENT_CORE):
        server = servers["documents"]
        take_turns(server, asked[:WARM], "warm")
        for repeat in range(plan.scale.repeats):
            for (case, name), sample in take_turns(server, asked, str(repeat)).items():
                if plan.case in case and name in plan.variants:
                    record(table, case, name, sample)
    return table


def take_turns(server: Server, asked: Sequence[str], session: str) -> dict[tuple[str, str], Sample]:
    """By case and by what was asked for."""
    alive = Job(server.port, "/healthz", "", streams=1, tokens=0).request()
    probes: list[float] = []
    turns: list[list[float]] = []
    yardstick = measure.yardstick(SERVER_CORE)
    for number, question in enumerate(asked):
        probes += ask(server.port, alive, [b"{"])
        path = f"/v1/rag/sessions/{session}-{number // QUESTIONS_A_SESSION}/messages/stream"
        body = json.dumps({"message": question})
        posted = Job(server.port, path, "", streams=1, tokens=0, body=body).request()
        turns.append(ask(server.port, posted, list(MARKS.values())))
    yardstick = (yardstick + measure.yardstick(SERVER_CORE)) / 2
    samples: dict[tuple[str, str], Sample] = {}
    for case, times in zip(MARKS, zip(*turns, strict=True), strict=True):
        samples[case, "healthz"] = latencies(probes) | {"yardstick_ms": yardstick}
        samples[case, "documents"] = latencies(list(times)) | {"yardstick_ms": yardstick}
    return samples


def spread(questions: list[str], most: int) -> list[str]:
    """At most so many, from all parts of the list."""
    count = min(most, len(questions))
    return [questions[number * len(questions) // count] for number in range(count)]
