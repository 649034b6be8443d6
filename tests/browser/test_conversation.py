"""Tests of a conversation on the page: live steps and text, and every button."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Route, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.core.desk import Gate
from tests.server.test_approvals import careful
from tests.serving import Puppet, ready, saying, within
from turnwire import Turn, approval, ask, take_inputs
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    Hit,
    ReasoningEvent,
    ReviewEvent,
    SearchEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)

HITS = (
    Hit(index=1, document_id="d1", title="The ferry", text="It leaves at nine."),
    Hit(index=2, document_id="d2", title="Tea", text="It is green."),
)


async def test_steps_and_text_appear_live_and_in_order(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("When does it leave?")
        part = await puppet.part()
        await expect(page.part("message")).to_have_text("When does it leave?")
        await expect(page.part("waiting")).to_be_visible()
        part.say(ReasoningEvent("Let me look it up."))
        await expect(page.part("reasoning")).to_be_visible()
        await expect(page.page.get_by_text("Let me look it up.")).to_be_hidden()
        part.say(SearchEvent("s1", "started", tool="search_documents", query="ferry times"))
        search = page.part("step-search")
        await expect(search).to_have_attribute("data-state", "running")
        await expect(search).to_contain_text("ferry times")
        part.say(SearchEvent("s1", "finished", tool="search_documents", query="ferry times", hits=HITS, ms=12))
        await expect(search).to_have_attribute("data-state", "succeeded")
        await expect(search).to_contain_text("2 hits")
        part.say(ReviewEvent("r1", iteration=1, verdict="approved", feedback="enough", kept=(1,), dropped=(2,)))
        await expect(page.part("step-review")).to_contain_text("1 kept")
        await expect(page.part("step-review")).to_contain_text("1 dropped")
        part.say(ToolCallEvent("c1", "timetable", {"harbour": "Norddeich"}))
        tool = page.part("step-tool")
        await expect(tool).to_contain_text("Norddeich")
        part.say(ToolProgressEvent("c1", text="reading page 3", fraction=0.5))
        await expect(tool).to_contain_text("reading page 3")
        await expect(tool.locator("progress")).to_have_attribute("value", "0.5")
        part.say(ToolResultEvent("c1", "timetable", True, "09:00", 34))
        await expect(tool).to_have_attribute("data-state", "succeeded")
        await expect(tool).to_contain_text("34 ms")
        # The steps are in order, and the answer is still empty.
        steps = page.part("steps").locator("li[data-testid]")
        kinds = [await step.get_attribute("data-testid") for step in await steps.all()]
        assert kinds == ["step-search", "step-review", "step-tool"]
        await expect(page.answer).to_have_text("")
        part.say("It leaves ")
        await expect(page.answer).to_have_text("It leaves")
        part.say("at **nine**.\n\n- in *winter*", " at ten\n")
        await expect(page.answer.locator("strong")).to_have_text("nine")
        await expect(page.answer.locator("li")).to_have_text("in winter at ten")
        await expect(page.part("steps")).to_have_attribute("data-open", "true")
        part.end()
        await page.ended()
        # Finished steps fold, and open again.
        await expect(page.part("steps")).to_have_attribute("data-open", "false")
        await expect(search).to_be_hidden()
        await page.part("steps").get_by_role("button").first.click()
        await tool.locator("summary").click()
        await expect(tool).to_contain_text("09:00")
        await expect(page.part("sessions")).to_contain_text("When does it leave?")


async def test_long_answer_is_whole_and_in_order_when_its_session_is_opened(browser: Browser, serve: Serve) -> None:
    # Far more than the page renders at once, with blocks longer than that.
    numbers = [str(number) for number in range(3_000)]
    paragraphs = [f"{number} {'and so on ' * (2_500 if number == '1500' else 2)}." for number in numbers]

    async with serve(saying("\n\n".join(paragraphs))) as server, tab(browser, server.url) as page:
        await page.ask("Tell me everything.")
        await page.ended()
        await page.page.reload()
        await page.ended()
        shown = page.answer.locator("p")
        await expect(shown).to_have_count(len(numbers))
        assert [text.split()[0] for text in await shown.all_text_contents()] == numbers


async def test_citation_opens_the_document_at_the_passage(browser: Browser, serve: Serve, shelf: Path) -> None:
    async with serve(docs=[shelf]) as server, tab(browser, server.url) as page:
        await within(ready(server.turnwire))
        await page.ask("When does the ferry to Norderney leave?")
        await page.ended()
        chip = page.answer.locator("[data-cite]").first
        await chip.hover()
        await expect(page.part("peek")).to_contain_text("leaves the harbour at nine")
        await chip.click()
        source = page.part("source")
        await expect(source.locator("mark").first).to_be_in_viewport()
        marked = " ".join(await source.locator("mark").all_inner_texts())
        assert "The ferry to Norderney leaves the harbour at nine every morning." in marked
        # The whole document is shown, with only the passage marked.
        await expect(source).to_contain_text("Children travel for nothing.")
        assert "Children" not in marked
        await page.part("source-close").click()
        await expect(source).to_be_hidden()


async def test_stop_cancels_the_agent_and_keeps_the_partial_answer(
    browser: Browser, serve: Serve, puppet: Puppet
) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Count to a million")
        part = await puppet.part()
        part.say("One, two, ")
        await expect(page.answer).to_have_text("One, two,")
        await page.part("stop").click()
        await page.ended("cancelled")
        await within(part.over.wait())
        await expect(page.answer).to_have_text("One, two,")
        await expect(page.part("stop")).to_be_hidden()
        snapshot = await server.snapshot(await page.turn_id())
        assert (snapshot["outcome"], snapshot["state"]["text"]) == ("cancelled", "One, two, ")


async def test_message_sent_during_an_answer_is_queued(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("First")
        first = await puppet.part()
        first.say("One.")
        await expect(page.answer).to_have_text("One.")
        await page.ask("Second")
        await expect(page.part("turn")).to_have_count(2)
        await expect(page.turn).to_have_attribute("data-phase", "queued")
        first.end()
        second = await puppet.part()
        assert second.turn.message == "Second"
        second.say("Two.")
        second.end()
        await page.ended()
        await expect(page.answer).to_have_text("Two.")


async def test_queued_message_that_is_removed_stays_away(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("First")
        first = await puppet.part()
        await page.ask("Second")
        await expect(page.turn).to_have_attribute("data-phase", "queued")
        await page.part("unqueue").click()
        await expect(page.part("turn")).to_have_count(1)
        first.end()
        await page.ended()
        await page.ask("Third")
        await puppet.part()
        await expect(page.part("message")).to_have_text(["First", "Third"])
        await page.page.reload()
        await expect(page.part("message")).to_have_text(["First", "Third"])


class Listener:
    """An agent that takes messages when the test opens its gate, once a turn."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        yield f"To {turn.message}: "
        await self.gate.wait()
        yield ", ".join([*await take_inputs(), "done"])


async def test_enter_during_an_answer_puts_the_message_into_it(browser: Browser, serve: Serve) -> None:
    listener = Listener()
    async with serve(listener) as server, tab(browser, server.url) as page:
        await page.ask("First")
        await expect(page.answer).to_have_text("To First:")
        await page.part("composer").fill("And this")
        await page.part("composer").press("Enter")
        await expect(page.part("turn")).to_have_count(2)
        await expect(page.turn).to_contain_text("Waits for the next step")
        listener.gate.open()
        await page.ended()
        await expect(page.part("turn")).to_have_count(1)
        await expect(page.part("input")).to_have_text("And this")
        await expect(page.part("answer").first).to_have_text("To First:")
        await expect(page.answer).to_have_text("And this, done")
        await page.ask("Then")
        await expect(page.part("turn")).to_have_count(2)
        await page.ended()
        await page.page.reload()
        await expect(page.part("turn")).to_have_count(2)
        await expect(page.part("input")).to_have_text("And this")
        await expect(page.answer).to_have_text("To Then: done")
        # The message in the answer is no other version of the one that follows it.
        await expect(page.part("version")).to_have_count(0)


async def test_message_during_an_answer_can_be_queued_or_interrupt(browser: Browser, serve: Serve) -> None:
    listener = Listener()
    async with serve(listener) as server, tab(browser, server.url) as page:
        await page.ask("First")
        await expect(page.answer).to_have_text("To First:")
        await page.part("on-busy").select_option("enqueue")
        await page.ask("Second")
        await expect(page.turn).to_contain_text("Queued")
        await page.part("on-busy").select_option("interrupt")
        await page.ask("Third")
        await expect(page.answer).to_have_text("To Third:")
        outcomes = [await turn.get_attribute("data-outcome") for turn in await page.part("turn").all()]
        assert outcomes == ["cancelled", "cancelled", None]
        listener.gate.open()
        await page.ended()
        await expect(page.part("input")).to_have_count(0)


async def test_tool_runs_after_approval_and_not_after_denial(browser: Browser, serve: Serve) -> None:
    async with serve(careful) as server, tab(browser, server.url) as page:
        await page.ask("Buy it")
        approval = page.part("approval")
        await expect(approval).to_contain_text("pay")
        await expect(approval).to_contain_text("amount: 40")
        await expect(approval).to_contain_text("it costs money")
        await page.part("approve").click()
        await page.ended()
        await expect(page.answer).to_have_text("May I? Paid.")
        await expect(page.part("approval")).to_have_count(0)
        await page.ask("Buy another")
        await approval.get_by_role("textbox").fill("too dear")
        await page.part("deny").click()
        await page.ended()
        await expect(page.answer).to_have_text("May I? Denied: too dear")


class Registrar:
    """An agent that asks for several values at once, and then for one."""

    on_crash = "resume"

    async def answer(self, turn: Turn) -> AsyncIterator[Any]:
        form = await ask(
            "Who are you?",
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "title": "Name", "maxLength": 10},
                    "age": {"type": "integer", "title": "Age", "minimum": 18},
                    "colour": {"type": "string", "title": "Colour", "enum": ["red", "blue"]},
                    "news": {"type": "boolean", "title": "Send news"},
                    "note": {"type": "string", "title": "Note"},
                },
                "required": ["name", "age", "colour"],
            },
        )
        yield f"{form['name']}, {form['age']}, {form['colour']}, {form['news']}, {'note' in form}. "
        yield f"You like {await ask('What do you like?')}."


async def test_question_is_a_form_that_survives_a_reload(browser: Browser, serve: Serve) -> None:
    async with serve(Registrar()) as server, tab(browser, server.url) as page:
        await page.ask("Register me")
        form = page.part("question")
        await expect(form).to_contain_text("Who are you?")
        await page.page.reload()
        await form.get_by_label("Name").fill("Ann")
        await form.get_by_label("Age").fill("17")
        await form.get_by_label("Colour").select_option("blue")
        await form.get_by_label("Send news").check()
        await page.part("reply-submit").click()
        # The browser refuses what the schema does not allow.
        assert await form.get_by_label("Age").evaluate("input => input.validity.rangeUnderflow")
        await form.get_by_label("Age").fill("18")
        await page.part("reply-submit").click()
        await expect(form).to_contain_text("What do you like?")
        await form.get_by_label("Your answer").fill("tea")
        await page.part("reply-submit").click()
        await page.ended()
        await expect(page.answer).to_have_text("Ann, 18, blue, True, False. You like tea.")
        await expect(page.part("asked").first).to_contain_text("age: 18, colour: blue")
        await expect(page.part("asked").last).to_contain_text("tea")


NUMBERS = [str(number) for number in range(1, 12)]


class Lottery:
    on_crash = "resume"

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        choice = {"type": "array", "items": {"type": "string", "enum": NUMBERS}}
        yield " ".join((await ask("Which?", {"type": "object", "properties": {"numbers": choice}}))["numbers"])


async def test_choices_are_sent_in_the_order_of_the_question(browser: Browser, serve: Serve) -> None:
    async with serve(Lottery()) as server, tab(browser, server.url) as page:
        await page.ask("Play")
        for number in ("11", "9", "1", "3", "9"):
            await page.part("question").get_by_label(number, exact=True).click()
        await page.part("reply-submit").click()
        await page.ended()
        await expect(page.answer).to_have_text("1 3 11")


async def editing(turn: Turn) -> AsyncIterator[Any]:
    args = {"amount": 40, "to": "Bob", "tags": ["a"]}
    decision = await approval(ApprovalRequestEvent("c1", "pay", args, editable=True))
    yield ToolResultEvent("c1", "pay", True, "done")
    yield f"Paid {json.dumps(decision.args)}."


async def test_arguments_of_an_editable_call_are_changed_in_a_form(browser: Browser, serve: Serve) -> None:
    async with serve(editing) as server, tab(browser, server.url) as page:
        await page.ask("Pay")
        await page.part("edit-arguments").click()
        form = page.part("arguments")
        await form.get_by_label("amount").fill("30")
        await form.get_by_label("tags").fill('["b"]')
        await page.part("arguments-submit").click()
        await page.ended()
        await expect(page.answer).to_have_text('Paid {"amount": 30, "to": "Bob", "tags": ["b"]}.')


async def test_uploaded_document_is_used_for_answers(
    browser: Browser, serve: Serve, shelf: Path, tmp_path: Path
) -> None:
    treasure = tmp_path / "treasure.md"
    treasure.write_text("# The treasure\n\nThe treasure of Baltrum is buried under the oak.\n")
    async with serve(docs=[shelf]) as server, tab(browser, server.url) as page:
        await within(ready(server.turnwire))
        await page.part("upload-input").set_input_files(treasure)
        upload = page.part("uploading").filter(has_text="treasure.md")
        await expect(upload).to_have_attribute("data-state", "done")
        await page.ask("Where is the treasure of Baltrum buried?")
        await page.ended()
        await expect(page.answer).to_contain_text("under the oak")
        # An unreadable file is reported.
        odd = tmp_path / "odd.exe"
        odd.write_bytes(b"MZ")
        await page.part("upload-input").set_input_files(odd)
        await expect(page.page.get_by_role("alert")).to_contain_text("can't be read. Supported:")


async def test_late_result_of_an_earlier_search_for_documents_is_not_shown(
    browser: Browser, serve: Serve, shelf: Path
) -> None:
    is_requested, may_answer = asyncio.Event(), asyncio.Event()
    async with serve(docs=[shelf]) as server, tab(browser, server.url) as page:

        async def hold(route: Route) -> None:
            is_requested.set()
            await may_answer.wait()
            await route.continue_()

        await page.page.route("**/v1/documents?*search=a", hold)
        await page.part("documents-open").click()
        panel = page.part("documents")
        await expect(panel.get_by_role("listitem").first).to_be_visible()
        search = panel.get_by_role("searchbox")
        await search.fill("a")
        await within(is_requested.wait())
        await search.fill("nothing has this name")
        await expect(panel.get_by_text("No documents match.")).to_be_visible()
        async with page.page.expect_response("**/v1/documents?*search=a"):
            may_answer.set()
        await page.page.evaluate("() => new Promise((go) => requestAnimationFrame(() => setTimeout(go)))")
        await expect(panel.get_by_text("No documents match.")).to_be_visible()
        await page.page.unroute_all(behavior="wait")


async def test_retry_and_edit_create_branches(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        for message, answer in (("One?", "First."), ("Two?", "Second.")):
            await page.ask(message)
            part = await puppet.part()
            part.say(answer)
            part.end()
            await expect(page.answer).to_have_text(answer)
            await page.ended()
        await page.part("retry").last.click()
        part = await puppet.part()
        assert [message.content for message in part.turn.history] == ["One?", "First."]
        part.say("Second, better.")
        part.end()
        await expect(page.answer).to_have_text("Second, better.")
        await expect(page.part("turn")).to_have_count(2)
        await expect(page.part("version")).to_have_text(re.compile(r"2\s*/\s*2"))
        await page.ended()
        await page.part("edit").last.click()
        await page.part("edit-box").fill("Three?")
        await page.part("edit-send").click()
        part = await puppet.part()
        assert part.turn.message == "Three?"
        assert [message.content for message in part.turn.history] == ["One?", "First."]
        part.say("Third.")
        part.end()
        await expect(page.answer).to_have_text("Third.")
        await page.page.get_by_role("button", name="Previous version").click()
        await expect(page.answer).to_have_text("Second, better.")
        # A reload shows the newest branch.
        await page.page.reload()
        await expect(page.answer).to_have_text("Third.")
        await expect(page.part("turn")).to_have_count(2)


async def test_agent_is_selectable_and_sessions_are_searchable(browser: Browser, serve: Serve) -> None:
    agents = {"polite": saying("Good morning!"), "rude": saying("What do you want?")}
    async with serve(agents=agents) as server, tab(browser, server.url) as page:
        await page.ask("Hello")
        await expect(page.answer).to_have_text("Good morning!")
        await page.part("new").click()
        await page.part("agent").select_option("rude")
        await page.ask("Hello again")
        await expect(page.answer).to_have_text("What do you want?")
        await expect(page.part("sessions").get_by_role("listitem").filter(has_text="Hello")).to_have_count(2)
        await page.part("find").fill("morning")
        await expect(page.part("sessions").get_by_text("Hello again")).to_be_hidden()
        await page.part("sessions").get_by_text("Hello").click()
        await expect(page.answer).to_have_text("Good morning!")


async def test_list_of_conversations_stays_long_when_it_is_refreshed(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Yes.")) as server:
        for _ in range(45):
            await server.http.post("/v1/sessions", json={})
        async with tab(browser, server.url) as page:
            rows = page.part("sessions").get_by_role("link")
            await expect(rows).to_have_count(40)
            await page.page.get_by_role("button", name="Show more").click()
            await expect(rows).to_have_count(45)
            await page.ask("Hello")
            await page.ended()
            await expect(rows.first).to_have_text("Hello")
            await expect(rows).to_have_count(46)


async def test_conversation_can_be_copied_renamed_and_deleted(browser: Browser, serve: Serve) -> None:
    async with serve(saying("**Forty**-two.")) as server, tab(browser, server.url) as page:
        await page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.ask("What is it?")
        await page.ended()
        await page.part("copy").click()
        await expect(page.page.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.page.evaluate("navigator.clipboard.readText()") == "**Forty**-two."
        background = "getComputedStyle(document.body).backgroundColor"
        light = await page.page.evaluate(background)
        await page.part("theme").click()
        assert await page.page.evaluate(background) != light
        await page.part("sessions").get_by_text("What is it?").hover()
        await page.part("row-menu").click()
        await page.part("rename").click()
        await page.part("rename-box").fill("The answer")
        await page.part("rename-box").press("Enter")
        await expect(page.part("title")).to_have_text("The answer")
        # The server keeps the name, the browser the theme.
        await page.page.reload()
        await expect(page.part("title")).to_have_text("The answer")
        assert await page.page.evaluate(background) != light
        await page.part("sessions").get_by_text("The answer").hover()
        await page.part("row-menu").click()
        await page.part("delete").click()
        await page.part("delete-confirm").click()
        await expect(page.part("turn")).to_have_count(0)
        await expect(page.part("sessions").get_by_text("The answer")).to_be_hidden()
        assert await server.written() == (0, 0)
