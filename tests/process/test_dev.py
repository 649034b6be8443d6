"""Tests of `turnwire dev`: it restarts on a change at once, survives code that does not start, and opens the page."""

import asyncio
import codecs
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.process.server_process import COMMAND, START_PATIENCE, start
from tests.serving import PATIENCE, Client, until

AGENT = """
import asyncio
import time
from pathlib import Path

async def answer(turn):
    yield "{text}"
    while turn.message == "block" and not Path("unblock").exists():
        time.sleep(0.05)
    if turn.message == "wait":
        await asyncio.Event().wait()
    if turn.message == "fail":
        raise KeyError("the reason")
"""


def write_agent(folder: Path, content: str) -> None:
    """Replace the file in one step, as editors do, so that no half of it is seen."""
    draft = folder / "draft"
    draft.write_text(content)
    os.replace(draft, folder / "agent_under_work.py")


class Output:
    """The output of the command, read as it comes."""

    def __init__(self, *pipes: asyncio.StreamReader | None) -> None:
        self.text = ""
        self._tasks = [asyncio.create_task(self._read(pipe)) for pipe in pipes if pipe is not None]

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()  # A character may come in two chunks.
        with suppress(OSError):  # A terminal whose other end is closed is not at its end.
            while chunk := await pipe.read(65_536):
                self.text += decoder.decode(chunk)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def see(self, text: str) -> None:
        """Wait for a text, and forget everything up to it."""
        await until(lambda: text in self.text, START_PATIENCE)
        self.text = self.text.partition(text)[2]


async def test_server_restarts_on_a_change_without_waiting_for_turns(tmp_path: Path) -> None:
    write_agent(tmp_path, AGENT.format(text="before"))
    arguments = ("dev", "--agent", "agent_under_work:answer", "--data", tmp_path / "data", "--port", "0")
    process = await start(*arguments, cwd=tmp_path)
    output = Output(process.stdout, process.stderr)
    try:
        await output.see("listening on ")
        async with asyncio.timeout(PATIENCE):
            await until(lambda: "agents:" in output.text)
        server = Client(output.text.split()[0])
        await output.see("Ctrl+C ends it.")
        async with server.http:
            assert (await server.http.post("/chat", json={"message": "hello"})).json()["content"] == "before"
            await server.http.post("/chat", json={"message": "fail"})
            await output.see("KeyError: 'the reason'")
            blocking = asyncio.create_task(server.http.post("/chat", json={"message": "block"}))
            await output.see("the event loop has been blocked")
            await output.see("agent_under_work.py:")
            await output.see("by turn ")
            (tmp_path / "unblock").touch()
            turn_id = output.text.partition(";")[0]
            assert (await blocking).json()["turn_id"] == turn_id
            running = await server.start("wait")
            write_agent(tmp_path, AGENT.format(text="after"))
            await output.see("agent_under_work.py has changed: restarting")
            # The request waits in the socket while the server restarts.
            assert (await server.http.post("/chat", json={"message": "hello"})).json()["content"] == "after"
            turn = (await server.http.get(f"/v1/turns/{running}")).json()
            assert turn["outcome"] == "interrupted"
            write_agent(tmp_path, "async def answer(turn:\n")
            await output.see("agent_under_work.py, line 1:")
            await output.see("it starts again when a file changes")
            write_agent(tmp_path, AGENT.format(text="mended"))
            await output.see("restarting")
            assert (await server.http.post("/chat", json={"message": "hello"})).json()["content"] == "mended"
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    assert process.returncode == 0


async def test_page_is_opened_and_a_missing_key_told_when_the_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_agent(tmp_path, 'from agents import Agent\nagent = Agent(name="Helper")\n')
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    terminal, end = os.openpty()
    arguments = ("dev", "--agent", "agent_under_work:agent", "--data", tmp_path / "data", "--port", "0")
    process = await asyncio.create_subprocess_exec(*COMMAND, *map(str, arguments), cwd=tmp_path, stdout=end, stderr=end)
    os.close(end)
    pipe = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), os.fdopen(terminal, "rb"))
    output = Output(pipe)
    try:
        await output.see("OPENAI_API_KEY")
        await until(opened.exists)
        assert opened.read_text().startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
        await output.close()
        transport.close()
