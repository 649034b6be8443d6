"""Tests of what the page offers around an answer: demo, header, menu, agents, drafts, provenance, code and maths."""

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from playwright.async_api import Browser, Route, expect

from tests.browser.browser_tab import Tab, tab
from tests.browser.conftest import Serve
from tests.retrieval.shelf import GREEN, SHELF
from tests.retrieval.test_retrieval_agent import whole_turn
from tests.scripted_model import fails, scripted_model
from tests.server.test_approvals import careful
from tests.serving import Puppet, quick_settings, ready, saying, serving, until, within
from turnwire import Turnwire
from turnwire.agents.demo import DemoAgent
from turnwire.core.log.events import (
    CitationEvent,
    Hit,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    ToolCallEvent,
    ToolResultEvent,
)

HITS = (
    Hit(index=4, document_id="d4", title="The ferry", text="It leaves at nine."),
    Hit(index=7, document_id="d7", title="Tea", text="It is green."),
    Hit(index=8, document_id="d8", title="Dull", text="It is dull."),
)
TEXT = """
| left | right |
| :--- | ----: |
| 1 | 2 |

- [x] done
- [ ] open

Inline $a\\,b\\!c$ and \\(x^2\\), from $5 to $6.

$$
\\sum_{i=1}^{n} i
$$

```python
def answer(turn):
    return "a line of code that is a good deal wider than any telephone that was ever carried around in a pocket"
```
"""


# The demo and the welcome


async def test_welcome_offers_three_deeds_and_the_demo_waits_for_approval(browser: Browser, tmp_path: Path) -> None:
    turnwire = Turnwire(store="memory", settings=quick_settings(tmp_path), demo="last")
    turnwire.agents["demo"] = DemoAgent(pace=0)
    async with serving(turnwire) as server, tab(browser, server.url) as page:
        await within(ready(turnwire))
        await page.page.reload()
        await expect(page.part("deed")).to_have_count(3)
        # A question that is one of the three is not offered once more, and nothing is behind the composer.
        await expect(page.part("example")).to_have_count(3)
        await page.page.set_viewport_size({"width": 1280, "height": 800})
        last, composer = await page.part("example").last.bounding_box(), await page.part("composer").bounding_box()
        assert last
        assert composer
        assert last["y"] + last["height"] < composer["y"]
        await page.part("deed").nth(2).click()
        await page.ended()
        await expect(page.part("provenance")).to_have_text("Quoted word for word, no model")
        await page.part("new").click()
        await page.part("deed").nth(1).click()
        await expect(page.part("approval")).to_contain_text("passengers: 2")
        await page.part("approve").click()
        await page.ended()
        await expect(page.answer).to_contain_text("You approved the purchase")
        await expect(page.part("provenance")).to_have_text("Scripted demo, no model")
        await page.part("new").click()
        await page.part("deed").first.click()
        await expect(page.part("approval")).to_be_visible()
        # What is done is there after a reload, and the turn still waits.
        await page.page.reload()
        await expect(page.part("step-tool").filter(has_text="free_seats").first).to_have_attribute(
            "data-state", "failed"
        )
        await expect(page.part("step-search")).to_contain_text("researcher")
        await page.part("deny").click()
        await page.ended()
        await expect(page.answer).to_contain_text("You denied the purchase")
        await expect(page.part("steps")).to_contain_text(re.compile(r"tool calls, 2 failed"))
        await expect(page.answer.locator("pre .hljs-keyword").first).to_be_visible()


async def test_starters_and_description_follow_the_agent(browser: Browser, serve: Serve) -> None:
    polite, rude = saying("Good morning!"), saying("What?")
    polite.description, polite.starters = "Says it nicely.", ["Hello", "Good day"]
    rude.description = "Says it badly."
    async with serve(agents={"polite": polite, "rude": rude}) as server, tab(browser, server.url) as page:
        await expect(page.part("example")).to_have_text(["Hello", "Good day"])
        await expect(page.part("agent-description")).to_contain_text("Says it nicely.")
        await expect(page.part("agent").locator("option")).to_have_text(["polite", "rude: Says it badly."])
        await page.part("agent").select_option("rude")
        await expect(page.part("agent-description")).to_contain_text("Says it badly.")
        await expect(page.part("example")).to_have_count(0)


# Answers


async def test_citations_are_numbered_by_appearance_and_evidence_is_listed_once(
    browser: Browser, serve: Serve, puppet: Puppet
) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.ask("When?")
        part = await puppet.part()
        part.say(SearchEvent("s1", "finished", tool="search", query="ferry", hits=HITS[:2], ms=1))
        part.say(SearchEvent("s2", "finished", tool="search", query="ferries", hits=HITS, ms=1))
        part.say(ReviewEvent("r1", 1, "approved", "enough", kept=(4, 7), dropped=(8,)))
        part.say("Green. [7] At nine. [4] Really. [7]")
        for index, title in ((7, "Tea"), (4, "The ferry"), (7, "Tea")):
            part.say(CitationEvent(index, f"d{index}", title=title))
        part.say(ResponseEvent("", mode="extractive"))
        part.end()
        await page.ended()
        await expect(page.answer.locator(".cite")).to_have_text(["1", "2", "1"])
        await expect(page.part("sources").get_by_role("listitem")).to_have_text(
            [re.compile("1.*Tea"), re.compile("2.*The ferry")]
        )
        await page.answer.locator(".cite").nth(1).hover()
        await expect(page.part("peek")).to_contain_text("The ferry")
        await page.part("copy").click()
        await expect(page.page.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.page.evaluate("navigator.clipboard.readText()") == "Green. [1] At nine. [2] Really. [1]"
        await page.part("steps").get_by_role("button").first.click()
        for search in await page.part("step-search").all():
            await search.locator("summary").click()
        await expect(page.part("step-search").last).to_contain_text("2 passages found before")
        titles = page.part("steps").locator(".hit-title")
        await expect(titles).to_have_text(["The ferry", "Tea", "Dull"])
        await expect(page.part("steps").locator(".hit-index")).to_have_text(["2", "1", "·"])
        await expect(page.part("steps").locator("li.dropped")).to_contain_text("Dull")


async def test_model_and_its_failure_are_named_under_the_answer(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in SHELF.items():
        (folder / name).write_text(text)
    async with AsyncExitStack() as opened:
        model = await opened.enter_async_context(scripted_model(*whole_turn(), *(fails(401) for _ in range(6))))
        settings: dict[str, Any] = {"model": "small", "model_url": model.url, "model_key": "k"}
        server = await opened.enter_async_context(serve(docs=[folder], **settings))
        page = await opened.enter_async_context(tab(browser, server.url))
        await within(ready(server.turnwire))
        written, failed = "Written by small from 1 passage", re.compile(r"^The model failed \(.+\); quoted instead$")
        await page.ask(GREEN)
        await page.ended()
        await expect(page.part("provenance")).to_have_text(written)
        await page.ask(GREEN)
        await expect(page.part("provenance")).to_have_text([written, failed])
        await page.page.reload()
        await expect(page.part("provenance")).to_have_text([written, failed])


async def test_long_quotation_is_shown_from_its_start(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    code = "\n".join(f"brew --cup {number}" for number in range(1, 60))
    (tmp_path / "tea.md").write_text(f"# Tea\n\nTo brew tea, run these commands:\n\n```sh\n{code}\n```\n")
    viewport = {"width": 800, "height": 600}
    async with (
        serve(docs=[tmp_path / "tea.md"]) as server,
        tab(browser, server.url, viewport=viewport) as page,
    ):
        await within(ready(server.turnwire))
        for _ in range(2):
            await page.ask("How do I brew tea?")
            await page.ended()
            await expect(page.answer.locator("pre")).to_contain_text("brew --cup 59")
            await expect(page.part("message").last).to_be_in_viewport()
            await expect(page.part("provenance").last).not_to_be_in_viewport()
        # The reader may go to the end, and what is done there does not lead away from it.
        await page.part("latest").click()
        await expect(page.part("provenance").last).to_be_in_viewport()
        await page.part("feedback-up").last.click()
        await expect(page.part("feedback-up").last).to_have_attribute("aria-pressed", "true")
        await expect(page.part("provenance").last).to_be_in_viewport()


async def test_running_clock_and_failed_tools_are_shown(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.page.clock.install()
        await page.ask("Look")
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "look", {"city": "Oslo", "days": 3}))
        await expect(page.part("step-tool")).to_contain_text("city: Oslo, days: 3")
        await expect(page.part("clock")).to_be_visible()
        await page.page.clock.fast_forward(125_000)
        await expect(page.part("clock")).to_have_text(re.compile("^2 min"))
        part.say(ToolResultEvent("c1", "look", False, "no"))
        part.say(ToolCallEvent("c2", "look", {"city": "Rome"}), ToolResultEvent("c2", "look", True, "yes"), "Yes.")
        part.end()
        await page.page.clock.run_for(1_000)
        await page.ended()
        await expect(page.part("clock")).to_have_count(0)
        await expect(page.part("steps")).to_contain_text("2 tool calls, 1 failed")


async def test_tables_tasks_code_and_maths_are_rendered_and_loaded_when_needed(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Plain.")) as server, tab(browser, server.url) as page:
        await page.ask("Plain?")
        await page.ended()
        assert not [request for request in page.requests if re.search("highlight|maths", request.url)]
    async with serve(saying(*re.findall(r".{1,7}", TEXT, re.DOTALL))) as server, tab(browser, server.url) as page:
        await page.ask("Everything?")
        await page.ended()
        answer = page.answer
        # Browsers prefix the alignment of the HTML attribute.
        await expect(answer.locator("td").nth(1)).to_have_css("text-align", re.compile("right$"))
        await expect(answer.locator("td").first).to_have_css("text-align", re.compile("left$"))
        await expect(answer.locator("li").first).to_have_css("list-style-type", "none")
        await expect(answer.locator("li")).to_have_text(["☑ done", "☐ open"])
        await expect(answer.locator("math")).to_have_count(3)
        await expect(answer.locator("math").last).to_contain_text("∑")
        # `\,` and `\!` are spaces; Markdown would have left a comma and an exclamation mark.
        assert not re.search(r"[\\,!]", await answer.locator("math").first.text_content() or "")
        await expect(answer).to_contain_text("from $5 to $6")
        await expect(answer.locator(".hljs-keyword").first).to_have_text("def")
        code = answer.locator(".code")
        wide = "node => node.scrollWidth > node.clientWidth"
        assert await code.locator("pre").evaluate(wide)
        await code.get_by_role("button", name="Wrap").click()
        await expect(code.get_by_role("button", name="Wrap")).to_have_attribute("aria-pressed", "true")
        assert not await code.locator("pre").evaluate(wide)


# The header and its menu


async def test_title_is_edited_and_the_conversation_exported_and_deleted(browser: Browser, serve: Serve) -> None:
    async with serve(agents={"polite": saying("**Forty**-two."), "rude": saying("No.")}) as server:
        async with tab(browser, server.url) as page:
            await page.ask("What is it?")
            await page.ended()
            await expect(page.part("title-agent")).to_have_text("polite")
            await page.part("title").click()
            await page.part("title-box").fill("The answer")
            await page.part("title-box").press("Enter")
            await expect(page.part("title")).to_have_text("The answer")
            await expect(page.part("sessions")).to_contain_text("The answer")
            for kind in ("markdown", "json"):
                await page.part("title-menu").click()
                async with page.page.expect_download() as download:
                    await page.part(f"export-{kind}").click()
                content = (await (await download.value).path()).read_text()
                assert (await download.value).suggested_filename == f"The answer.{'md' if kind == 'markdown' else kind}"
                if kind == "markdown":
                    assert content == "# The answer\n\n> What is it?\n\n**Forty**-two.\n"
                else:
                    assert json.loads(content)["turns"][0]["state"]["text"] == "**Forty**-two."
            await page.part("title-menu").click()
            await expect(page.part("title-inspect")).to_have_attribute("href", re.compile(await page.turn_id()))
            # Arrow keys move in the menu, and Escape closes it.
            await page.page.keyboard.press("End")
            await expect(page.part("title-delete")).to_be_focused()
            await page.page.keyboard.press("Escape")
            await expect(page.part("title-menu")).to_be_focused()
            await page.part("title-menu").click()
            await page.part("title-delete").click()
            await page.part("delete-confirm").click()
            await expect(page.part("welcome")).to_be_visible()
        assert await server.written() == (0, 0)


class ScriptedRoutes:
    """The routes of feedback and shared links, answered in the browser, with a record of what was sent."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.sent: list[tuple[str, str, Any]] = []

    async def install(self, page: Tab) -> None:
        await page.page.route(re.compile(r"/v1/feedback|/feedback$|/share$"), self._answer)
        await page.page.reload()

    async def _answer(self, route: Route) -> None:
        request = route.request
        if request.method == "GET":
            await route.fulfill(status=200, json={"feedback": [], "next": None})
            return
        kind = request.url.rpartition("/")[2]
        self.sent.append((request.method, kind, request.post_data_json))
        answer: Any = {"code": "not_found", "error": "no such route"}
        if self.status == 200:
            answer = {"url": "/share/secret-link"} if kind == "share" else {"feedback": request.post_data_json}
        await route.fulfill(status=self.status, json=answer)


async def test_answer_is_rated_with_a_note_and_the_conversation_shared(browser: Browser, serve: Serve) -> None:
    routes = ScriptedRoutes()
    async with serve(saying("Forty-two.")) as server, tab(browser, server.url) as page:
        await page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await routes.install(page)
        await page.ask("What is it?")
        await page.ended()
        await page.part("feedback-down").click()
        await expect(page.part("feedback-down")).to_have_attribute("aria-pressed", "true")
        await page.part("feedback-note").fill("Too short")
        await page.part("feedback-note").press("Enter")
        await expect(page.part("feedback-note")).to_have_count(0)
        await page.part("feedback-down").click()
        await expect(page.part("feedback-down")).to_have_attribute("aria-pressed", "false")
        await until(lambda: len(routes.sent) == 3)
        assert routes.sent == [
            ("PUT", "feedback", {"value": "down"}),
            ("PUT", "feedback", {"value": "down", "note": "Too short"}),
            ("PUT", "feedback", {"value": None}),
        ]
        await page.part("title-menu").click()
        await page.part("share").click()
        await expect(page.part("notice")).to_contain_text("Link copied")
        await page.page.set_viewport_size({"width": 390, "height": 844})
        assert await page.part("notice").evaluate("node => node.scrollWidth <= node.clientWidth")
        assert await page.page.evaluate("navigator.clipboard.readText()") == f"{server.url}/share/secret-link"
        await page.part("title-menu").click()
        await page.part("unshare").click()
        await expect(page.part("notice")).to_contain_text("no longer work")
        assert [(method, kind) for method, kind, _ in routes.sent[3:]] == [("POST", "share"), ("DELETE", "share")]


async def test_stop_sharing_is_offered_only_while_links_exist(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Forty-two.")) as server, tab(browser, server.url) as page:
        await page.ask("What is it?")
        await page.ended()
        await page.part("title-menu").click()
        await expect(page.part("share")).to_be_visible()
        await expect(page.part("unshare")).to_have_count(0)
        await page.part("share").click()
        await expect(page.part("notice")).to_contain_text("Link")
        await page.page.reload()
        await page.part("title-menu").click()
        await page.part("unshare").click()
        await expect(page.part("notice")).to_contain_text("no longer work")
        await page.part("title-menu").click()
        await expect(page.part("share")).to_be_visible()
        await expect(page.part("unshare")).to_have_count(0)


async def test_rating_and_sharing_are_hidden_where_their_routes_are_missing(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Forty-two.")) as server, tab(browser, server.url) as page:
        await ScriptedRoutes(status=404).install(page)
        await page.ask("What is it?")
        await page.ended()
        await page.part("feedback-up").click()
        await expect(page.part("feedback-up")).to_have_count(0)
        await page.part("title-menu").click()
        await page.part("share").click()
        await expect(page.part("notice")).to_be_visible()
        await page.part("title-menu").click()
        await expect(page.part("export-json")).to_be_visible()
        await expect(page.part("share")).to_have_count(0)


# The message box


async def test_draft_belongs_to_its_conversation_and_survives_a_reload(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Yes.")) as server, tab(browser, server.url) as page:
        await page.ask("First")
        await page.ended()
        await page.part("composer").fill("a thought about the first")
        await page.part("new").click()
        await expect(page.part("composer")).to_have_value("")
        await page.part("composer").fill("a new idea")
        await page.page.reload()
        await expect(page.part("composer")).to_have_value("a new idea")
        await page.part("sessions").get_by_text("First").click()
        await expect(page.part("composer")).to_have_value("a thought about the first")
        await page.part("composer").press("Enter")
        await page.ended()
        await page.page.reload()
        await expect(page.part("turn")).to_have_count(2)
        await expect(page.part("composer")).to_have_value("")


async def test_session_remembers_its_agent(browser: Browser, serve: Serve) -> None:
    agents = {"polite": saying("Good morning!"), "rude": saying("What?")}
    async with serve(agents=agents) as server, tab(browser, server.url) as page:
        await page.part("agent").select_option("rude")
        await page.ask("Hello")
        await page.ended()
        await page.page.reload()
        await expect(page.part("agent")).to_have_value("rude")
        await page.ask("Hello again")
        await expect(page.answer).to_have_text("What?")
        await page.part("new").click()
        await page.page.reload()
        await expect(page.part("agent")).to_have_value("polite")


# The phone, and a host application


async def test_phone_has_large_targets_one_menu_per_row_and_no_fade(browser: Browser, serve: Serve) -> None:
    phone: Any = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    async with serve(careful) as server, tab(browser, server.url, **phone) as page:
        await page.ask("Buy it")
        await expect(page.part("approval")).to_be_visible()
        await page.part("approve").tap()
        await page.ended()
        await expect(page.part("provenance").or_(page.part("copy")).first).to_be_visible()
        fade = "getComputedStyle(document.querySelector('.stage'), '::before').display"
        assert await page.page.evaluate(fade) == "none"
        await page.part("menu").tap()
        await expect(page.part("row-menu")).to_have_count(1)
        await expect(page.part("sessions").get_by_role("button")).to_have_count(1)
        small = """() => [...document.querySelectorAll('button, select, [role=menuitem]')]
            .filter(node => node.offsetParent && !node.matches('.cite, .hit-title'))
            .filter(node => node.offsetHeight < 44).map(node => node.outerHTML)"""
        await page.part("row-menu").tap()
        await expect(page.part("rename")).to_be_in_viewport()
        assert await page.page.evaluate(small) == []


async def test_host_application_without_a_user_is_asked_for_no_key(browser: Browser, tmp_path: Path) -> None:
    user: list[str] = []
    turnwire = Turnwire(
        saying("Hello, Anna."),
        store="memory",
        settings=quick_settings(tmp_path),
        authenticate=lambda scope: user[0] if user else None,
    )
    host = FastAPI(lifespan=turnwire.lifespan)
    host.mount("/agent", turnwire.asgi())
    async with serving(turnwire, host) as server, tab(browser, server.url, "/agent/") as page:
        await expect(page.part("signed-out")).to_contain_text("Your application did not sign you in")
        await expect(page.part("login")).to_have_count(0)
        user.append("anna")
        await page.page.get_by_role("button", name="Try again").click()
        await page.ask("Who am I?")
        await expect(page.answer).to_have_text("Hello, Anna.")
        # Signed out there: the page notices with its next request.
        user.clear()
        await page.part("new").click()
        await page.ask("And now?")
        await expect(page.part("signed-out")).to_be_visible()


async def test_answer_is_branched_after_a_step(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Tea?")
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "find", {"what": "tea"}), ToolResultEvent("c1", "find", True, "tin", 5), "Green.")
        part.end()
        await expect(page.part("answer")).to_contain_text("Green.")
        await page.part("steps").get_by_role("button").first.click()
        await page.part("step-tool").locator("summary").click()
        await page.part("branch").click()
        again = await puppet.part()
        assert [message.role for message in again.turn.history] == ["user", "assistant", "tool", "assistant"]
        again.say("Black.")
        again.end()
        await expect(page.part("answer")).to_contain_text("Black.")
        await expect(page.part("version")).to_have_text("2 / 2")
        await expect(page.part("forked")).to_contain_text("at position 4")


async def test_answer_that_was_continued_says_so_in_one_line(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Tea?")
        part = await puppet.part()
        part.say("Gre", RestartEvent(2, "worker_lost"), "Black ")
        await expect(page.part("continued")).to_have_text("Continues after a restart.")
        part.say("tea.")
        part.end()
        await expect(page.part("continued")).to_have_text("Continued after a restart.")
        await expect(page.part("answer")).to_have_text("Black tea.")
        await page.page.reload()
        await expect(page.part("continued")).to_have_text("Continued after a restart.")


async def test_api_reference_closes_the_stream_of_a_folded_route(
    browser: Browser, serve: Serve, puppet: Puppet
) -> None:
    async with serve() as server, tab(browser, server.url, "/docs") as page:
        turn_id = await server.start("Hello")
        part = await puppet.part()
        part.say("On ")
        await page.part("filter").fill("GET /v1/turns/{id}/events")
        route = page.part("route").first
        await route.locator("summary").click()
        await route.get_by_label("id", exact=True).fill(turn_id)
        await page.part("send").click()
        await expect(page.part("answer")).to_contain_text("On ")
        async with page.page.expect_event("requestfailed", lambda request: turn_id in request.url):
            await route.locator("summary").click()


async def test_api_reference_says_that_it_cannot_be_loaded(browser: Browser, serve: Serve) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json={"error": {"code": "shutting_down", "message": "later"}})

    async with serve() as server, tab(browser, server.url) as page:
        await page.page.route("**/openapi.json", refuse)
        await page.page.goto(f"{server.url}/docs")
        await expect(page.page.get_by_text("The list of routes cannot be loaded.")).to_be_visible()
