"""The web page in a real browser, and the work of its main thread.

Times are the browser's own: from the key that sends a message to the frame that shows it, and the wall and CPU time of
each task of the main thread. The observers are installed before the page loads.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from bench.processes import BenchError
from bench.results import Sample

PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
PATIENCE_MS = 120_000
OBSERVERS = """
window.seen = { tasks: [] };
new PerformanceObserver(list => seen.tasks.push(...list.getEntries().map(entry => entry.duration)))
  .observe({ type: "longtask", buffered: true });
addEventListener("keydown", event => { if (event.key === "Enter") seen.sent = event.timeStamp; }, true);
new MutationObserver(() => {
  for (const [name, selector] of [["reaction", "[data-testid=turn]"], ["word", "[data-testid=answer] .block"]]) {
    if (seen.sent !== undefined && !(name in seen) && document.querySelector(selector)) {
      seen[name] = null;
      // The second frame begins when the first, which shows it, has been painted.
      requestAnimationFrame(() => requestAnimationFrame(() => { seen[name] = performance.now() - seen.sent; }));
    }
  }
}).observe(document, { childList: true, subtree: true });
"""


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        raise BenchError("Chromium is missing: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, script: str) -> Iterator[Page]:
    """Open an address in a context of its own, with a script that runs before those of the page."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(script)
        page.goto(url)
        yield page
    finally:
        context.close()


def ask(browser: Browser, url: str, tokens: int, pace: int) -> Sample:
    """Request an answer of so many tokens on a new page. Raise BenchError if it is incomplete."""
    with opened(browser, url, OBSERVERS) as page:
        box = page.get_by_test_id("composer")
        box.fill(f"{tokens} {pace}")
        page.wait_for_timeout(500)  # The start of the page is not measured.
        page.evaluate("seen.tasks.length = 0")
        browser.start_tracing(page=page, categories=["toplevel"])
        box.press("Enter")
        page.wait_for_selector("[data-testid=turn][data-outcome=completed]")
        tasks = _main_thread(browser.stop_tracing())
        seen: dict[str, Any] = page.evaluate("seen")
    if not seen.get("reaction") or not seen.get("word") or not tasks:
        raise BenchError(f"the page did not show the answer: {seen}")
    return {
        "reaction_ms": seen["reaction"],
        "word_ms": seen["word"],
        "long_tasks": len(seen["tasks"]),
        "longest_ms": max(seen["tasks"], default=0.0),
        "longest_cpu_ms": max(tasks, default=0.0),
        "us_per_token": sum(tasks) / tokens * 1000,
    }


OPENING = """
window.seen = {};
new MutationObserver(() => {
  if ("word" in seen || !document.querySelector("[data-testid=answer] .block")) return;
  seen.word = null;
  requestAnimationFrame(() => requestAnimationFrame(() => { seen.word = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""


def reopen(browser: Browser, url: str) -> Sample:
    """Open the page of a session that has ended, on a new page."""
    with opened(browser, url, OPENING) as page:
        page.wait_for_selector("[data-testid=turn][data-outcome=completed]")
        page.wait_for_selector("[data-testid=answer] .block")
        while not (word := page.evaluate("seen.word")):
            page.wait_for_timeout(10)
    return {"word_ms": word}


def _main_thread(trace: bytes) -> list[float]:
    """Return the CPU milliseconds of each task of the page's main thread."""
    events = json.loads(trace)["traceEvents"]
    names = (event for event in events if event["name"] == "thread_name")
    threads = {(event["pid"], event["tid"]) for event in names if event["args"]["name"] == "CrRendererMain"}
    tasks = (event for event in events if event["name"] == "ThreadControllerImpl::RunTask" and "tdur" in event)
    return [event["tdur"] / 1000 for event in tasks if (event["pid"], event["tid"]) in threads]
