"""Notifications in a browser. Only the push service is scripted: it gets the server's message, and a browser's
debugging protocol delivers its content to the page's service worker."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, expect

from tests.browser.browser_tab import Tab, new_context, tab
from tests.browser.conftest import Serve
from tests.server.test_push import CONTACT, PushService, push_service
from tests.serving import PATIENCE, Puppet

SUBSCRIBE = """
let isOn = false;
const subscription = SUBSCRIPTION;
const made = { endpoint: subscription.endpoint, toJSON: () => subscription, unsubscribe: async () => !(isOn = false) };
PushManager.prototype.getSubscription = async () => (isOn ? made : null);
PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
  window.subscribedWith = applicationServerKey;
  isOn = true;
  return made;
};
"""
COUNT_LISTINGS = """
() => {
  const matchAll = clients.matchAll.bind(clients);
  clients.matchAll = async (options) => {
    const windows = await matchAll(options);
    self.listings = windows.filter(({ visibilityState }) => visibilityState === "visible").length;
    return windows;
  };
}
"""
# After the windows were listed for the first message.
NO_WINDOWS = """
() => new Promise((resolve) => {
  const check = () => (self.listings ? resolve(void (clients.matchAll = async () => [])) : setTimeout(check, 10));
  check();
})
"""
# Not every build of the browser keeps the notifications that it was given, so the worker's calls are recorded.
RECORD_NOTIFICATIONS = """
() => {
  self.notifications = [];
  registration.showNotification = async (title, { body, data }) => {
    self.notifications.push({ title, body, data });
  };
}
"""
SHOWN = "() => self.notifications"


@asynccontextmanager
async def page_with_push(browser: Browser, url: str, service: PushService) -> AsyncIterator[tuple[BrowserContext, Tab]]:
    context = await new_context(browser)
    await context.grant_permissions(["notifications"], origin=url)
    await context.add_init_script(SUBSCRIBE.replace("SUBSCRIPTION", json.dumps(service.subscription)))
    try:
        async with tab(browser, url, context=context) as page:
            yield context, page
    finally:
        await context.close()


async def deliver(page: Tab, message: dict[str, Any]) -> None:
    """Deliver a message to the page's service worker, as the browser does when its push service sends one."""
    session = await page.page.context.new_cdp_session(page.page)
    found: list[str] = []
    session.on(
        "ServiceWorker.workerRegistrationUpdated",
        lambda event: found.extend(each["registrationId"] for each in event["registrations"]),
    )
    await session.send("ServiceWorker.enable")
    await page.page.wait_for_function("() => navigator.serviceWorker.controller")
    async with asyncio.timeout(PATIENCE):
        while not found:  # noqa: ASYNC110 - the event comes over the browser's connection.
            await asyncio.sleep(0.01)
    content = {"origin": page.url, "registrationId": found[-1], "data": json.dumps(message)}
    await session.send("ServiceWorker.deliverPushMessage", content)
    await session.detach()


async def shown(context: BrowserContext) -> list[dict[str, str]]:
    """Return the notifications, once there are any."""
    async with asyncio.timeout(PATIENCE):
        while not (notifications := await context.service_workers[0].evaluate(SHOWN)):  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.01)
    return notifications


async def test_user_is_notified_of_a_turn_that_was_left(
    browser: Browser, serve: Serve, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        push_service(monkeypatch) as service,
        serve(push_contact=CONTACT, brand_name="Acme") as server,
        page_with_push(browser, server.url, service) as (context, page),
    ):
        await page.part("notify").click()
        await expect(page.part("notify")).to_have_text("Notifications on")
        key = (await server.http.get("/v1/push")).json()["public_key"]
        assert await page.page.evaluate("window.subscribedWith") == key
        session = (await server.http.post("/v1/sessions", json={})).json()["id"]
        await server.http.post(f"/v1/sessions/{session}/turns", json={"message": "What is tea?"})
        (await puppet.part()).end()
        message = service.decrypt((await service.message()).body)
        await context.service_workers[0].evaluate(COUNT_LISTINGS)
        await context.service_workers[0].evaluate(RECORD_NOTIFICATIONS)
        # The page is visible, so the first message is no news.
        await deliver(page, {**message, "turn_id": "another", "message": "Seen"})
        # A headless browser has no hidden windows, so the worker is told that there is none.
        await context.service_workers[0].evaluate(NO_WINDOWS)
        await deliver(page, message)
        (notification,) = await shown(context)
        assert notification == {
            "title": "Acme",
            "body": "Answered: What is tea?",
            "data": f"{server.url}/?session={session}",
        }
        await page.part("notify").click()
        await expect(page.part("notify")).to_have_text("Notify me")
        assert await server.turnwire.store.list_annotations("push_subscription", None) == []


async def test_server_without_push_offers_none(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await expect(page.part("theme")).to_be_visible()
        await expect(page.part("notify")).to_have_count(0)


@pytest.mark.parametrize("path", ["/sw.js", "/assets/app.webmanifest"])
async def test_installable_page_has_its_files(browser: Browser, serve: Serve, path: str) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        assert await page.page.evaluate("async (path) => (await fetch(path)).status", path) == 200
