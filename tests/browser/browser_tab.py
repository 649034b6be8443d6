"""A tab of a real browser with the actions of a user. It records requests, failures and policy violations.

The browser's own console messages are not read: their wording and number differ from one version to the next.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

PATIENCE_MS = 120_000

# The event is a web standard; its fields do not depend on the browser.
REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", event => reportViolation(event.effectiveDirective, event.blockedURI));
"""

expect.set_options(timeout=PATIENCE_MS)


class Violation(NamedTuple):
    """Something that the page's Content Security Policy has stopped."""

    directive: str
    blocked: str


class Tab:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Request] = []
        self.failures: list[str] = []
        """Uncaught exceptions, and errors and warnings that the page's scripts write to the console."""
        self.violations: list[Violation] = []
        self.may_violate = False
        """True if the test shows the page content that its policy may have to stop."""
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", self._on_console)
        page.set_default_timeout(PATIENCE_MS)

    async def watch_policy(self) -> None:
        """Record what the policy stops on each page that is opened from now on."""
        await self.page.expose_function("reportViolation", lambda *fields: self.violations.append(Violation(*fields)))
        await self.page.add_init_script(REPORT_VIOLATIONS)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Messages of scripts have arguments; the browser's own messages have none.
        if message.type in ("error", "warning") and message.args:
            self.failures.append(message.text)

    @property
    def foreign_urls(self) -> list[str]:
        """Return the URLs of requests to other hosts."""
        here = urlsplit(self.url).netloc
        return [request.url for request in self.requests if urlsplit(request.url).netloc not in (here, "")]

    def part(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    async def ask(self, message: str) -> None:
        await self.part("composer").fill(message)
        await self.part("send").click()

    @property
    def answer(self) -> Locator:
        """Return the newest answer's text."""
        return self.part("answer").last

    @property
    def turn(self) -> Locator:
        """Return the newest turn."""
        return self.part("turn").last

    async def ended(self, outcome: str = "completed") -> None:
        await expect(self.turn).to_have_attribute("data-outcome", outcome)

    async def turn_id(self) -> str:
        turn_id = await self.turn.get_attribute("data-turn-id")
        assert turn_id
        return turn_id


async def new_context(browser: Browser, **options: Any) -> BrowserContext:
    return await browser.new_context(**{"locale": "en-GB", "reduced_motion": "reduce", **options})


@asynccontextmanager
async def tab(
    browser: Browser, url: str, path: str = "/", context: BrowserContext | None = None, **options: Any
) -> AsyncIterator[Tab]:
    """Open a tab, in a new browser context or in `context`; fail if it loads anything from another host."""
    own = context or await new_context(browser, **options)
    opened = Tab(await own.new_page(), url)
    try:
        await opened.watch_policy()
        await opened.page.goto(url + path)
        yield opened
        assert not opened.foreign_urls, opened.foreign_urls
        assert not opened.failures, opened.failures
        assert opened.may_violate or not opened.violations, opened.violations
    finally:
        if context is None:
            await own.close()
        else:
            await opened.page.close()
