"""The types of the `openai` package are built before the first turn."""

import subprocess
import sys

import pytest

_SCRIPT = """
import asyncio
{imports}
from turnwire import Turnwire


async def answer(turn):
    yield "hello"


async def main():
    async with Turnwire(agent=answer, store="memory").lifespan():
        {check}


asyncio.run(main())
"""


def run(imports: str, check: str) -> None:
    """Open a server in a process that has imported this and nothing else, and check something there."""
    script = _SCRIPT.format(imports=imports, check=check)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_types_of_replies_are_built_when_the_server_opens() -> None:
    names = "ResponseCompletedEvent, Response"
    run(
        f"from openai.types.responses import {names}\nfrom openai.types.chat import ChatCompletionChunk",
        f"assert all(each.__pydantic_complete__ for each in ({names}, ChatCompletionChunk))",
    )


@pytest.mark.process
def test_server_without_openai_does_not_import_it() -> None:
    run("import sys", "assert 'openai' not in sys.modules")
