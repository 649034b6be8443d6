"""The page in a real browser, and what its main thread has to do.

Times are the browser's own: from the key that sends a message to the frame that shows something of it, and how long
each task of the main thread was. The observers are there before the page, and are no part of it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, CDPSession, sync_playwright

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
        clock = context.new_cdp_session(page)
        clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _thread_seconds(clock)
        box.press("Enter")
        page.wait_for_selector("[data-testid=turn][data-outcome=completed]")
        after = _thread_seconds(clock)
        seen: dict[str, Any] = page.evaluate("seen")
    finally:
        context.close()
    if not seen.get("reaction") or not seen.get("word"):
        raise BenchError(f"the page showed nothing of the answer: {seen}")
    return {
        "reaction_ms": seen["reaction"],
        "word_ms": seen["word"],
        "long_tasks": len(seen["tasks"]),
        "longest_ms": max(seen["tasks"], default=0.0),
        "us_per_token": (after - before) / tokens * 1e6,
    }


def _thread_seconds(clock: CDPSession) -> float:
    """CPU time that the main thread's tasks have taken so far."""
    told = clock.send("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in told if one["name"] == "TaskDuration")
