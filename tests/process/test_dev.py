"""Tests of `turnwire dev`: it restarts on a change at once, and survives code that does not start."""

import asyncio
import os
from pathlib import Path

from tests.process.server_process import start
from tests.serving import PATIENCE, Client, until

AGENT = """
import asyncio

async def answer(turn):
    yield "{text}"
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
        while chunk := await pipe.read(65_536):
            self.text += chunk.decode()

    async def see(self, text: str) -> None:
        """Wait for a text, and forget everything up to it."""
        async with asyncio.timeout(PATIENCE):
            await until(lambda: text in self.text)
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
