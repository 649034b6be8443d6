"""The protocols of other clients: the cost of a token in Turnwire and in Pydantic AI's own adapters.

Each server also runs its source without a stream. That cost is subtracted in the rows "without the source", repeat by
repeat, which leaves the turn, the protocol and the socket.
"""

import json
from dataclasses import replace

from bench.job import UNIQUE, Job
from bench.plan import CLIENT, COST, RATE, Plan, record
from bench.processes import Server, measured, serving, warm
from bench.results import Table
from bench.servers import COMPACT
from bench.sources import Order

STREAMS = 8
KINDS = {"yield": "one by one", "burst8": "bursts of 8"}


def ai_sdk(message: str) -> dict[str, object]:
    user_message = {"id": f"m-{UNIQUE}", "role": "user", "parts": [{"type": "text", "text": message}]}
    return {"id": f"c-{UNIQUE}", "trigger": "submit-message", "messages": [user_message]}


def ag_ui(message: str) -> dict[str, object]:
    user_message = {"id": f"m-{UNIQUE}", "role": "user", "content": message}
    empty: dict[str, object] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": f"t-{UNIQUE}", "runId": f"r-{UNIQUE}", "messages": [user_message]} | empty


PROTOCOLS = {
    "AI SDK": ("/api/chat", ai_sdk, '"type":"text-delta"'),
    "AG-UI": ("/ag-ui", ag_ui, '"type":"TEXT_MESSAGE_CONTENT"'),
}


def protocols(plan: Plan) -> Table:
    table = Table(
        "protocols",
        f"{plan.scale.tokens} tokens on the AI SDK's and AG-UI's protocol, {STREAMS} streams: server CPU a token",
        COST,
        against=("generator", "agent"),
        others=(RATE, CLIENT),
    )
    for protocol in PROTOCOLS:
        for kind in KINDS:
            if plan.case in (case := f"{protocol}, {KINDS[kind]}"):
                measure_case(table, plan, case, protocol, plan.order(kind))
    return table


def measure_case(table: Table, plan: Plan, case: str, protocol: str, order: Order) -> None:
    with serving(plan.of("generator", "agent", "pydantic_ai")) as servers:
        for server in servers.values():
            for job in jobs(server, protocol, order, plan.scale.seconds):
                warm(server, job)
        for _ in range(plan.scale.repeats):
            for name, server in servers.items():
                source, whole = (measured(server, job) for job in jobs(server, protocol, order, plan.scale.seconds))
                rest = whole["us_per_event"] - source["us_per_event"]
                record(table, f"{case}: whole", name, whole)
                record(table, f"{case}: the source alone", name, source)
                record(table, f"{case}: without the source", name, {"us_per_event": rest})


def jobs(server: Server, protocol: str, order: Order, seconds: float) -> tuple[Job, Job]:
    """Return the job of the source alone, and of the whole request."""
    path, body, marker = PROTOCOLS[protocol]

    def job(path: str, body: dict[str, object], marker: str) -> Job:
        request = server.job(path, body=json.dumps(body), tokens=order.count, streams=STREAMS, seconds=seconds)
        return replace(request, marker=marker)

    return job("/source", {"message": str(order)}, COMPACT), job(path, body(str(order)), marker)
