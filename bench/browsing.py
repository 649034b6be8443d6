"""The page in a real browser, and what its main thread has to do.

Times are the browser's own: from the key that sends a message to the frame that shows something of it, and how long
each task of the main thread was, by the clock and of the processor. The observers are there before the page, and are no
part of it.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from bench.results import Sample
from bench.running import BenchError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 120_000
OBSERVERS = """
window.seen = { tasks: [] };
new PerformanceObserver(list => seen.tasks.push(...list.getEntries().map(one => one.duration)))
  .observe({ type: "longtask", buffered: true });
addEventListener("keydown", event => { if (event.key === "Enter") seen.sent = event.timeStamp; }, true);
new MutationObserver(() => {
  for (const [name, wanted] of [["reaction", "[data-testid=turn]"], ["word", "[data-testid=answer] .block"]]) {
    if (seen.sent !== undefined && !(name in seen) && document.querySelector(wanted)) {
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
def browsing() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        raise BenchError("there is no Chromium: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


def ask(browser: Browser, url: str, tokens: int, pace: int) -> Sample:
    """Asks for an answer of so many tokens on a new page. Raises BenchError if it is not whole in the end."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(OBSERVERS)
        page.goto(url)
        box = page.get_by_test_id("composer")
        box.fill(f"{tokens} {pace}")
        page.wait_for_timeout(500)  # What the page does to begin with is not what is asked here.
        page.evaluate("seen.tasks.length = 0")
        browser.start_tracing(page=page, categories=["toplevel"])
        box.press("Enter")
        page.wait_for_selector("[data-testid=turn][data-outcome=completed]")
        tasks = _main_thread(browser.stop_tracing())
        seen: dict[str, Any] = page.evaluate("seen")
    finally:
        context.close()
    if not seen.get("reaction") or not seen.get("word") or not tasks:
        raise BenchError(f"the page showed nothing of the answer: {seen}")
    return {
        "reaction_ms": seen["reaction"],
        "word_ms": seen["word"],
        "long_tasks": len(seen["tasks"]),
        "longest_ms": max(seen["tasks"], default=0.0),
        "longest_cpu_ms": max(tasks, default=0.0),
        "us_per_token": sum(tasks) / tokens * 1000,
    }


def _main_thread(trace: bytes) -> list[float]:
    """The CPU milliseconds of each task that the page's main thread has run."""
    events = json.loads(trace)["traceEvents"]
    names = (one for one in events if one["name"] == "thread_name")
    threads = {(one["pid"], one["tid"]) for one in names if one["args"]["name"] == "CrRendererMain"}
    tasks = (one for one in events if one["name"] == "ThreadControllerImpl::RunTask" and "tdur" in one)
    return [one["tdur"] / 1000 for one in tasks if (one["pid"], one["tid"]) in threads]
