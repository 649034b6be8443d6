"""The web page with a long answer in a real browser: its first reaction and its long tasks."""

from bench import measure
from bench.browser import ask, open_browser, reopen
from bench.plan import Plan, record
from bench.processes import SERVER_CORE, serving
from bench.results import Column, Table

PACE = 200
# The most that a turn may have by default, with its first and last events.
LOG_EVENTS, _OTHERS = 100_000, 10


def page(plan: Plan) -> Table:
    table = Table(
        "page",
        "The page in headless Chromium: from Enter to the first frame that shows something, and tasks over 50 ms",
        Column("reaction_ms", "first reaction ms", 0),
        others=(
            Column("word_ms", "first word ms", 0),
            Column("long_tasks", "long tasks", 0),
            Column("longest_ms", "longest ms", 0),
            Column("longest_cpu_ms", "longest CPU ms", 0),
            Column("us_per_token", "main thread CPU µs/token", 0),
        ),
    )
    case = f"{plan.scale.page_tokens:,} tokens at {PACE}/s"
    if "page" not in plan.variants or plan.case not in case:
        return table
    with serving(["page"]) as servers, open_browser() as browser:
        url = f"http://127.0.0.1:{servers['page'].port}/"
        ask(browser, url, PACE, PACE)  # Warms up both.
        for _ in range(plan.scale.repeats):
            yardstick = measure.Yardstick(SERVER_CORE)
            sample = ask(browser, url, plan.scale.page_tokens, PACE)
            record(table, case, "page", sample | yardstick.result())
    return table


def opening(plan: Plan) -> Table:
    table = Table(
        "opening",
        "The page of a session in headless Chromium: from its address to the first frame that shows the answer",
        Column("word_ms", "first word ms", 0),
    )
    case = f"a log of {LOG_EVENTS:,} events"
    if "page" not in plan.variants or plan.case not in case:
        return table
    with serving(["page"]) as servers, open_browser() as browser:
        server = servers["page"]
        session = server.post("/chat", {"message": f"{LOG_EVENTS - _OTHERS} 0"})["session_id"]
        for _ in range(plan.scale.repeats):
            yardstick = measure.Yardstick(SERVER_CORE)
            sample = reopen(browser, f"http://127.0.0.1:{server.port}/?session={session}")
            record(table, case, "page", sample | yardstick.result())
    return table
