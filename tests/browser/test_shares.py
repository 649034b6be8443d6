"""The page of a shared session, opened by somebody without a key."""

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.browser.test_accessibility import violations
from tests.serving import Client, Puppet, Served
from turnwire.core.log.events import CitationEvent, ResponseEvent, ToolCallEvent, ToolResultEvent

ATTACK = '<img src=x onerror="document.title=1"> <script>document.title = 2</script>'


async def shared_path(server: Served, puppet: Puppet, key: str) -> str:
    """Share a session with one turn, and return the path of the link."""
    anna = Client(server.url, {"Authorization": f"Bearer {key}"})
    async with anna.http, anna.ask(f"What is tea? {ATTACK}", session_id="diary") as stream:
        part = await puppet.part()
        part.say(
            ToolCallEvent("c1", "kettle", {"heat": "private"}),
            ToolResultEvent("c1", "kettle", True, "private"),
            CitationEvent(
                1, "d1", title="Tea book", heading="Tea book > Heat", page_number=4, supporting_quote="Tea is *hot*."
            ),
            f"Tea is **hot** [1].\n\n{ATTACK}",
            ResponseEvent("", mode="synthesis", model="big"),
        )
        part.end()
        await stream.rest()
        link = (await anna.http.post("/v1/sessions/diary/share")).json()
    return link["url"].removeprefix(server.url)


async def test_shared_session_is_read_without_a_key(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        _, key = await server.turnwire.keys.create("anna", ("read", "write"))
        path = await shared_path(server, puppet, key)
        async with tab(browser, server.url, path) as visitor:
            visitor.may_violate = True  # The policy stops the attack while it is sanitized.
            await expect(visitor.part("title")).to_contain_text("What is tea?")
            await expect(visitor.part("message")).to_have_text(f"What is tea? {ATTACK}")
            await expect(visitor.answer.locator("strong")).to_have_text("hot")
            await expect(visitor.part("turn")).to_contain_text("Used kettle")
            source = visitor.part("sources").locator("li")
            await expect(source.locator("summary")).to_have_text("[1] Tea book · Heat · page 4")
            await expect(visitor.part("provenance")).to_have_text("Written by big from 1 passage")
            await source.locator("summary").click()
            await expect(source.locator("blockquote")).to_have_text("Tea is *hot*.")
            assert await violations(visitor) == []
            assert "private" not in await visitor.page.content()
            assert (await visitor.page.title()).startswith("What is tea?")
            assert await visitor.page.context.cookies() == []


async def test_revoked_link_says_so(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        _, key = await server.turnwire.keys.create("anna", ("read", "write"))
        path = await shared_path(server, puppet, key)
        owner = {"Authorization": f"Bearer {key}"}
        assert (await server.http.delete("/v1/sessions/diary/share", headers=owner)).status_code == 204
        async with tab(browser, server.url, path) as visitor:
            await expect(visitor.part("problem")).to_contain_text("revoked")
            await expect(visitor.part("turn")).to_have_count(0)
