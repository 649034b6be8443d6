"""Tests of the AI SDK's `TextStreamChatTransport` on `/v1/rag/sessions/{id}/messages/stream`."""

import json

import pytest

from tests.clients.conftest import Run
from tests.server.conftest import Serve
from tests.server.text_client import SEARCH
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


@pytest.mark.rotated("version")
@pytest.mark.parametrize("version", ["5", "6", "7"])
async def test_text_transport_gets_the_three_phases_while_they_are_written(
    serve: Serve, run: Run, puppet: Puppet, version: str
) -> None:
    async with serve() as server, run("text.mjs", server.url, version, "When?") as script:
        part = await puppet.part()
        part.say(SEARCH[0])
        text = (await script.next())["delta"]
        assert json.loads(text)["event"] == "search"
        part.say(SEARCH[1], "At ")
        while not text.endswith("At "):
            text += (await script.next())["delta"]
        assert not part.over.is_set()
        part.say("noon.")
        part.end()
        while "ended" not in (line := await script.next()):
            text += line["delta"]
        await script.ended()
    lines, _, rest = text.partition("\x1d")
    answer, _, metadata = rest.partition("\x1e")
    assert [json.loads(line)["phase"] for line in lines.splitlines()] == ["started", "finished"]
    assert answer == "At noon."
    assert {"citations", "mode", "tools_used"} <= json.loads(metadata).keys()
