"""A server works without any one of the plugins: the folder is hidden from import, and a turn runs to its end."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.serving import PATIENCE
from turnwire.plugins import installed

pytestmark = pytest.mark.process

# `sqlite` is the default store, and the one in memory: a server has to have one.
REMOVED = [name for name in installed() if name != "sqlite"]
ENTRY = {"documents": "turnwire.retrieval", "scheduler": "turnwire.scheduler"}
TURN = """
import asyncio, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

PACKAGE = sys.argv[1]
sys.meta_path.insert(0, Hidden())

from turnwire import Settings, Turnwire
from turnwire.core.log.follow import follow
from turnwire.core.run.runner import TurnRequest
from turnwire.plugins import installed

async def answer(turn):
    yield "Hello."

async def main():
    turnwire = Turnwire(answer, settings=Settings(data=sys.argv[2], shutdown_grace=0), extensions=[])
    app = turnwire.asgi()
    assert len(app.document["paths"]) > 10
    async with turnwire.lifespan():
        record = (await turnwire.runner.start(TurnRequest(principal="local", message="Hi"))).record
        async for _ in follow(turnwire.store, record.id):
            pass
        print((await turnwire.state(record)).text, len(installed()))

asyncio.run(main())
"""


def package_of(name: str) -> str:
    plugin = installed()[name]
    parts = [*plugin.routes, *plugin.wires.values(), *plugin.socket_wires.values(), *plugin.stores.values()]
    parts += [kind.adapter for kind in plugin.kinds] + [part for part in (plugin.commands, plugin.channel) if part]
    module = parts[0].partition(":")[0].split(".")
    return ENTRY.get(name, ".".join(module[:3]))


async def test_server_without_a_plugin_runs_a_turn(tmp_path: Path) -> None:
    """All at once, two at a time: each is a process of its own."""
    room = asyncio.Semaphore(2)

    async def run(name: str) -> tuple[str, str]:
        async with room:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", TURN, package_of(name), str(tmp_path / name)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        return name, out.decode().strip() or err.decode()

    results = dict([await each for each in asyncio.as_completed(map(run, REMOVED))])
    assert results == dict.fromkeys(REMOVED, f"Hello. {len(installed()) - 1}")
