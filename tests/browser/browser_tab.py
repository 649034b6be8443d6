"""A tab of a real browser with the actions of a user; it records every request and console error."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

PATIENCE_MS = 15_000

expect.set_options(timeout=PATIENCE_MS)


class Tab:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Request] = []
        self.console_errors: list[str] = []
        """Errors and warnings of the browser's console, and exceptions."""
        self.expected: tuple[str, ...] = ()
        """Prefixes of the messages that a test provokes."""
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        page.on("console", self._on_console)
        page.set_default_timeout(PATIENCE_MS)

    def _on_console(self, message: ConsoleMessage) -> None:
        # The browser reports every failed request; the page itself must handle those.
        ignored = ("Failed to load resource", *self.expected)
        if message.type in ("error", "warning") and not message.text.startswith(ignored):
            self.console_errors.append(message.text)

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
        await opened.page.goto(url + path)
        yield opened
        assert not opened.foreign_urls, opened.foreign_urls
        assert not opened.console_errors, opened.console_errors
    finally:
        if context is None:
            await own.close()
        else:
            await opened.page.close()
