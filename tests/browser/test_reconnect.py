"""Tests that the page continues a turn after a reload, in several tabs, after a cut and after a killed server."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from playwright.async_api import Browser, Route, expect

from tests.browser.browser_tab import PATIENCE_MS, new_context, tab
from tests.browser.conftest import Serve
from tests.faults.proxy import faulty
from tests.process.server_process import served
from tests.serving import Puppet, saying, until

# A headless browser reports all tabs as visible, so tests set the visibility.
SET_VISIBILITY = """state => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_reload_during_an_answer_continues_it(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Count")
        part = await puppet.part()
        part.say("One, ")
        await expect(page.answer).to_have_text("One,")
        for text, so_far in (("two, ", "One, two,"), ("three, ", "One, two, three,")):
            await page.page.reload()
            part.say(text)
            await expect(page.answer).to_have_text(so_far)
        assert len(puppet.parts) == 1
        part.say("four.")
        part.end()
        await page.ended()
        await expect(page.answer).to_have_text("One, two, three, four.")
        await page.page.reload()
        await expect(page.answer).to_have_text("One, two, three, four.")
        await expect(page.part("turn")).to_have_count(1)


async def test_two_tabs_and_a_phone_are_live_at_once(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    context = await new_context(browser)
    async with serve() as server, tab(browser, server.url, context=context) as first:
        await first.ask("Count")
        part = await puppet.part()
        part.say("One, ")
        await expect(first.answer).to_have_text("One,")
        path = first.page.url.removeprefix(server.url)
        async with (
            tab(browser, server.url, path, context=context) as second,
            tab(browser, server.url, path, viewport={"width": 400, "height": 800}) as phone,
        ):
            all_three = (first, second, phone)
            part.say("two, ")
            for page in all_three:
                await expect(page.answer).to_have_text("One, two,")
            part.end()
            for page in all_three:
                await page.ended()
            # A message of one tab is shown live in all of them.
            await phone.ask("And backwards?")
            part = await puppet.part()
            part.say("Two, one.")
            for page in all_three:
                await expect(page.part("message").last).to_have_text("And backwards?")
                await expect(page.answer).to_have_text("Two, one.")
            await second.part("stop").click()
            for page in all_three:
                await page.ended("cancelled")
    await context.close()


async def test_page_reconnects_to_a_killed_and_restarted_server(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with (
        served(data, agents=["slow"]) as server,
        faulty(server.port) as network,
        tab(browser, network.url) as page,
    ):
        await page.ask("100000")
        await expect(page.answer).to_contain_text("30 ")
        network.target = None
        await server.kill()
        await expect(page.part("connection")).to_contain_text("unreachable")
        words_before = (await page.answer.inner_text()).split()
        async with served(data, agents=["slow"]) as again:
            network.target = again.port
            await expect(page.part("connection")).not_to_contain_text("unreachable")
            await page.ended("interrupted")
            await expect(page.part("failure")).to_be_visible()
            # The shown text stays, and nothing is doubled.
            shown = (await page.answer.inner_text()).split()
            assert shown[: len(words_before)] == words_before
            assert shown == [str(number) for number in range(len(shown))]
            # The page works again without a reload.
            await page.ask("5")
            await page.ended()
            await expect(page.answer).to_have_text("0 1 2 3 4")


async def test_demo_continues_after_reload_second_tab_and_killed_server(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    module = "from turnwire.agents.demo import DemoAgent\n\ndemo = DemoAgent(pace=0.3)\n"
    (tmp_path / "quick_demo.py").write_text(module)
    options = ("--agent", "demo=quick_demo:demo")
    context = await new_context(browser)
    async with (
        served(data, *options, agents=()) as server,
        faulty(server.port) as network,
        tab(browser, network.url, context=context) as page,
    ):
        await page.part("deed").first.click()
        await expect(page.part("step-tool").first).to_be_visible()
        await page.page.reload()
        await expect(page.part("step-tool").first).to_be_visible()
        path = page.page.url.removeprefix(network.url)
        async with tab(browser, network.url, path, context=context) as second:
            opening = second.part("step-tool").filter(has_text="opening_hours")
            await expect(opening).to_have_attribute("data-state", "succeeded")
            network.target = None
            await server.kill()
            await expect(page.part("connection")).to_contain_text("unreachable")
            async with served(data, *options, agents=()) as again:
                network.target = again.port
                await expect(second.part("approval")).to_be_visible(timeout=2 * PATIENCE_MS)
                await page.part("approve").click()
                for shown in (page, second):
                    await expect(shown.turn).to_have_attribute("data-outcome", "completed", timeout=2 * PATIENCE_MS)
                    await expect(shown.answer).to_contain_text("You approved the purchase")
                    await expect(shown.part("steps")).to_contain_text("8 tool calls, 1 failed")
    await context.close()


async def test_answer_is_readable_until_its_renderer_can_be_loaded(browser: Browser, serve: Serve) -> None:
    requests = 0
    is_reachable = asyncio.Event()
    async with serve(saying("It is **nine**.")) as server, tab(browser, server.url) as page:

        async def answer(route: Route) -> None:
            nonlocal requests
            requests += 1
            await (route.continue_() if is_reachable.is_set() else route.abort())

        await page.page.route("**/renderer-*", answer)
        await page.ask("When?")
        await expect(page.answer).to_have_text("It is **nine**.")
        is_reachable.set()
        await expect(page.answer.locator("strong")).to_have_text("nine")
        assert requests >= 2


async def test_broken_connections_lose_no_text(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Count")
        part = await puppet.part()
        part.say("One, ")
        await expect(page.answer).to_have_text("One,")
        # Abort the connections as a proxy would.
        for _ in range(3):
            for connection in tuple(server.turnwire.streams.connections):
                connection.abort()
            part.say("more, ")
            await asyncio.sleep(0)
        part.say("last.")
        part.end()
        await page.ended()
        await expect(page.answer).to_have_text("One, more, more, more, last.")


async def test_hidden_tabs_close_their_streams(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    """A browser opens only six connections to a server, so a hidden tab closes its stream until it is visible."""
    context = await new_context(browser)
    async with serve() as server, AsyncExitStack() as open_tabs:
        first = await open_tabs.enter_async_context(tab(browser, server.url, context=context))
        await first.ask("Count")
        part = await puppet.part()
        part.say("One, ")
        await expect(first.answer).to_have_text("One,")
        path = first.page.url.removeprefix(server.url)
        hidden = [first]
        for _ in range(4):
            hidden.append(await open_tabs.enter_async_context(tab(browser, server.url, path, context=context)))
            await expect(hidden[-1].answer).to_have_text("One,")
        for opened in hidden:
            await opened.page.evaluate(SET_VISIBILITY, "hidden")
        await until(lambda: server.turnwire.streams.open_count == 0)
        part.say("two, ")
        visible = [
            await open_tabs.enter_async_context(tab(browser, server.url, path, context=context)) for _ in range(3)
        ]
        for opened in visible:
            await expect(opened.answer).to_have_text("One, two,")
        await first.page.evaluate(SET_VISIBILITY, "visible")
        await expect(first.answer).to_have_text("One, two,")
        part.end()
        for opened in (first, *visible):
            await opened.ended()
    await context.close()


async def test_two_messages_before_the_session_exists_are_one_conversation(browser: Browser, serve: Serve) -> None:
    may_answer = asyncio.Event()
    async with serve(saying("Yes.")) as server, tab(browser, server.url) as page:

        async def hold(route: Route) -> None:
            await may_answer.wait()
            await route.continue_()

        await page.page.route("**/v1/sessions", hold)
        for message in ("First", "Second"):
            await page.ask(message)
        await expect(page.part("message")).to_have_count(2)
        may_answer.set()
        for index in range(2):
            await expect(page.part("turn").nth(index)).to_have_attribute("data-outcome", "completed")
        assert await server.written() == (1, 2)
        await page.page.unroute_all(behavior="wait")


async def test_message_goes_to_its_conversation_when_the_user_has_left_it(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Yes.")) as server, tab(browser, server.url) as page:
        await page.ask("First")
        await page.ended()

        async def refuse(route: Route) -> None:
            await route.abort()

        await page.page.route("**/v1/sessions/*/turns", refuse)
        await page.ask("Second")
        await expect(page.page.get_by_text("Waiting for the server…")).to_be_visible()
        await page.part("new").click()
        await expect(page.part("welcome")).to_be_visible()
        async with page.page.expect_response("**/v1/sessions/*/turns"):
            await page.page.unroute_all(behavior="wait")
        assert await server.written() == (1, 2)
        assert page.page.url == f"{server.url}/"
        await expect(page.part("welcome")).to_be_visible()


async def test_first_message_does_not_bring_back_a_conversation_that_the_user_has_left(
    browser: Browser, serve: Serve
) -> None:
    may_answer = asyncio.Event()
    async with serve(saying("Yes.")) as server, tab(browser, server.url) as page:

        async def hold(route: Route) -> None:
            await may_answer.wait()
            await route.continue_()

        await page.page.route("**/v1/sessions", hold)
        await page.ask("First")
        await page.part("new").click()
        await expect(page.part("welcome")).to_be_visible()
        async with page.page.expect_response("**/v1/sessions/*/turns"):
            may_answer.set()
        assert await server.written() == (1, 1)
        assert page.page.url == f"{server.url}/"
        await page.page.unroute_all(behavior="wait")


async def test_message_that_is_sent_while_the_conversation_is_loaded_stays(browser: Browser, serve: Serve) -> None:
    may_answer = asyncio.Event()
    is_away = True
    async with serve(saying("Yes.")) as server, tab(browser, server.url) as page:
        await page.ask("First")
        await page.ended()

        async def hold(route: Route) -> None:
            await may_answer.wait()
            await route.continue_()

        async def refuse(route: Route) -> None:
            await (route.abort() if is_away else route.continue_())

        await page.page.route("**/export", hold)
        await page.page.route("**/v1/sessions/*/turns", refuse)
        await page.page.reload()
        await page.ask("Second")
        await expect(page.page.get_by_text("Waiting for the server…")).to_be_visible()
        may_answer.set()
        await expect(page.part("message")).to_have_text(["First", "Second"])
        is_away = False
        await expect(page.part("turn").nth(1)).to_have_attribute("data-outcome", "completed")
        await expect(page.part("message")).to_have_text(["First", "Second"])
        assert await server.written() == (1, 2)
        await page.page.unroute_all(behavior="wait")
