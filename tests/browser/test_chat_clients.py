"""Clients of other projects in a browser: a tool of the page, a restart of the server, a reload of the page, a picture.

CopilotKit needs 950 packages, so only `scripts/test --all` installs and runs it.
"""

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.browser_tab import PATIENCE_MS
from tests.browser.conftest import Serve
from tests.browser.test_origins import page_elsewhere
from tests.clients.scenes import TwoWayAgent
from tests.examples import runs_all, some
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.node_packages import node_with
from tests.scripted_model import scripted_model
from tests.serving import saying

__all__ = ["lost_connections_are_collected"]
# The packages may have to be installed first.
pytestmark = [pytest.mark.timeout(900), IGNORED]

CLIENTS = Path(__file__).parents[1] / "clients"
CHATS, COPILOT_KIT = (Path(__file__).parent / name for name in ("chat_clients", "copilot_kit"))
PAGES = {"ai-sdk": CHATS, "tanstack": CHATS, **({"copilot-kit": COPILOT_KIT} if runs_all() else {})}
USER, ASSISTANT = (re.compile(f"^(copilot-)?{role}(-message)?$") for role in ("user", "assistant"))


@pytest.fixture(scope="session", params=PAGES)
def client(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def program(client: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a client as one script."""
    folder, file = PAGES[client], tmp_path_factory.mktemp("chat-clients") / "page.js"
    # The examples of the documentation have no packages of their own.
    bundle(folder, "page.jsx", file, folder)
    return file.read_text()


def bundle(folder: Path, page: str, file: Path, packages: Path) -> None:
    """Make one script of a page, with the esbuild of a folder and the packages of another one."""
    options = ["--bundle", "--minify", "--format=esm", "--jsx=automatic", "--loader:.css=empty"]
    options += ["--define:process.env.NODE_ENV='development'", f"--outfile={file}"]
    command = [node_with(folder), "node_modules/esbuild/bin/esbuild", page, *options]
    environment = {**os.environ, "NODE_PATH": str(packages / "node_modules")}
    ended = subprocess.run(command, cwd=folder, env=environment, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@asynccontextmanager
async def chat_page(browser: Browser) -> AsyncIterator[tuple[Page, str]]:
    """Open a page of another origin; fail if it has thrown anything."""
    errors: list[str] = []
    async with page_elsewhere(browser) as (page, origin):
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page, origin
        assert errors == []


async def open_chat(page: Page, program: str, client: str, url: str, agent: str | None = None) -> None:
    if not await page.evaluate("() => 'openChat' in window"):
        await page.add_script_tag(content=program, type="module")
        await page.wait_for_function("() => window.openChat")
    await page.evaluate("(arguments) => openChat(...arguments)", [client, url, f"chat-{agent or 1}", agent])


async def send(page: Page, message: str) -> None:
    await page.get_by_role("textbox").fill(message)
    await page.get_by_role("textbox").press("Enter")


async def test_tool_of_the_page_continues_the_turn(browser: Browser, program: str, serve: Serve, client: str) -> None:
    async with chat_page(browser) as (page, origin), serve(TwoWayAgent(), allowed_origins=[origin]) as server:
        await open_chat(page, program, client, server.url)
        await page.evaluate("() => setPlace('Bern')")
        await send(page, "locate")
        await expect(page.get_by_test_id(ASSISTANT).last).to_contain_text("You are in Bern.")
        await expect(page.get_by_test_id("chat")).to_have_attribute("data-status", "ready")
        assert await page.evaluate("() => calls") == [{"exact": True}]
        if client == "copilot-kit":
            await expect(page.get_by_test_id("locate")).to_have_text("Bern")
        assert await server.written() == (1, 1)


async def test_tool_of_the_page_continues_the_turn_after_a_restart_and_a_reload(
    browser: Browser, program: str, serve: Serve, client: str
) -> None:
    async with chat_page(browser) as (page, origin):
        async with serve(TwoWayAgent(), store="sqlite", allowed_origins=[origin]) as server:
            await open_chat(page, program, client, server.url)
            await send(page, "locate")
            await page.wait_for_function("() => calls.length === 1")
            await page.reload()
        async with serve(TwoWayAgent(), store="sqlite", allowed_origins=[origin]) as server:
            await open_chat(page, program, client, server.url)
            await page.evaluate("() => setPlace('Oslo')")
            if client != "ai-sdk":
                await page.get_by_role("button", name="Run locate").click()
            await expect(page.get_by_test_id(ASSISTANT).last).to_contain_text("You are in Oslo.")
            await expect(page.get_by_test_id(USER)).to_have_text("locate")
            assert await page.evaluate("() => calls") == [{"exact": True}]
            assert await server.written() == (1, 1)


async def test_picture_reaches_the_model_through_every_sdk_and_again_in_the_next_turn(
    browser: Browser, program: str, serve: Serve, client: str
) -> None:
    # The SDKs are slow to import.
    from tests.contracts.test_client_files import PICTURE, READERS, check_requests, reading_agents

    picture: Any = {"name": "cat.png", "mimeType": "image/png", "buffer": PICTURE.body}
    async with (
        scripted_model() as model,
        chat_page(browser) as (page, origin),
        serve(agents=(agents := reading_agents(model, some(READERS, 3))), allowed_origins=[origin]) as server,
    ):
        for agent in agents:
            await open_chat(page, program, client, server.url, agent)
            await page.locator("input[type=file]").set_input_files(picture)
            await send(page, "What is it?")
            await expect(page.get_by_test_id(ASSISTANT).last).to_contain_text("A cat.")
            await expect(page.get_by_test_id("chat")).to_have_attribute("data-status", "ready")
            await send(page, "Which colour?")
            await expect(page.get_by_test_id(ASSISTANT).last).to_contain_text("Black.")
    check_requests(model, len(agents))


OPENAI = """
import OpenAI from "openai";

window.useOpenAI = async (url, apiKey) => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, dangerouslyAllowBrowser: true });
  const headers = { "Idempotency-Key": "key-1", "X-Session-Id": "session-1" };
  const messages = [{ role: "user", content: "Hello" }];
  const chat = await client.chat.completions.create({ model: "turnwire", messages }, { headers }).withResponse();
  const shown = ["X-Turn-Id", "X-Session-Id"].map((name) => chat.response.headers.get(name));
  const stream = await client.responses.create({ model: "turnwire", input: "Hello", stream: true });
  const events = [];
  for await (const event of stream) events.push(event);
  const { id } = events[0].response;
  const rest = [];
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 2 })) rest.push(event);
  const refused = await client.embeddings.create({ model: "turnwire", input: "Hello" }).catch((error) => error);
  return {
    shown, completion: chat.data.choices[0].message.content, response: events.at(-1).response.output[0].content[0].text,
    same: JSON.stringify(rest) === JSON.stringify(events.slice(3)), refused: [refused.status, refused.code],
    model: (await client.models.retrieve("turnwire")).id,
  };
};
"""


async def test_openai_client_in_a_page_of_another_origin_sends_its_headers_and_reads_ours(
    browser: Browser, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "openai.js").write_text(OPENAI)
    node_with(CLIENTS)
    bundle(CHATS, str(tmp_path / "openai.js"), tmp_path / "page.js", CLIENTS)
    async with chat_page(browser) as (page, origin), serve(saying("Hi", "!"), allowed_origins=[origin]) as server:
        _, key = await server.turnwire.keys.create("anna", ("read", "write"))
        await page.add_script_tag(content=(tmp_path / "page.js").read_text(), type="module")
        await page.wait_for_function("() => window.useOpenAI")
        report = await page.evaluate("([url, key]) => useOpenAI(url, key)", [server.url, key])
        turns = (await server.http.get("/v1/sessions/session-1", headers={"Authorization": f"Bearer {key}"})).json()
    (turn,) = turns["turns"]
    assert report == {
        "shown": [turn["turn_id"], turn["session_id"]],
        "completion": "Hi!",
        "response": "Hi!",
        "same": True,
        "refused": [404, "not_found"],
        "model": "turnwire",
    }
