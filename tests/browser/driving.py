"""A tab of a real browser, in the words of who uses the page. It records requests, failures and policy violations.

The browser's own console messages are not read: their wording and number differ from one version to the next.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

PATIENCE_MS = 15_000

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
        """Exceptions that nobody caught, and what the page's scripts write to the console as an error or a warning."""
        self.violations: list[Violation] = []
        self.may_violate = False
        """Whether the test shows the page something that its policy may have to stop."""
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", self._listen)
        page.set_default_timeout(PATIENCE_MS)

    async def watch_policy(self) -> None:
        """Records what the policy stops on each page that is opened from now on."""
        await self.page.expose_function("reportViolation", lambda *fields: self.violations.append(Violation(*fields)))
        await self.page.add_init_script(REPORT_VIOLATIONS)

    def _listen(self, message: ConsoleMessage) -> None:
        # What a script writes has arguments; what the browser itself has to say has none.
        if message.type in ("error", "warning") and message.args:
            self.failures.append(message.text)

    @property
    def strays(self) -> list[str]:
        """Requests to somewhere else."""
        here = urlsplit(self.url).netloc
        return [one.url for one in self.requests if urlsplit(one.url).netloc not in (here, "")]

    def part(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    async def ask(self, message: str) -> None:
        await self.part("composer").fill(message)
        await self.part("send").click()

    @property
    def answer(self) -> Locator:
        """The newest answer's text."""
        return self.part("answer").last

    @property
    def turn(self) -> Locator:
        """The newest turn."""
        return self.part("turn").last

    async def ended(self, outcome: str = "completed") -> None:
        await expect(self.turn).to_have_attribute("data-outcome", outcome)

    async def turn_id(self) -> str:
        found = await self.turn.get_attribute("data-turn-id")
        assert found
        return found


async def new_context(browser: Browser, **options: Any) -> BrowserContext:
    return await browser.new_context(**{"locale": "en-GB", "reduced_motion": "reduce", **options})


@asynccontextmanager
async def tab(
    browser: Browser, url: str, path: str = "/", context: BrowserContext | None = None, **options: Any
) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, or of one that has others. Nothing it loads may come from elsewhere."""
    own = context or await new_context(browser, **options)
    shown = Tab(await own.new_page(), url)
    try:
        await shown.watch_policy()
        await shown.page.goto(url + path)
        yield shown
        assert not shown.strays, shown.strays
        assert not shown.failures, shown.failures
        assert shown.may_violate or not shown.violations, shown.violations
    finally:
        if context is None:
            await own.close()
        else:
            await shown.page.close()
