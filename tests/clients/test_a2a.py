"""Tests of the official A2A client for JavaScript: a stream, an approval, and the task."""

import pytest

from tests.clients.conftest import Run
from tests.server.conftest import Serve
from tests.server.test_approvals import careful

pytestmark = pytest.mark.timeout(300)

SUBMITTED, WORKING, COMPLETED, INPUT_REQUIRED = 1, 2, 3, 6  # As the protocol numbers them.


async def test_task_is_streamed_decided_and_read(serve: Serve, run: Run) -> None:
    async with serve(careful) as server, run("a2a.mjs", server.url, "approval") as script:
        paused, done, task = [await script.next() for _ in range(3)]
        await script.ended()
    assert (paused["text"], paused["states"]) == ("May I? ", [SUBMITTED, INPUT_REQUIRED])
    assert (done["text"], done["states"]) == ("May I? Paid.", [WORKING, COMPLETED])
    assert task == {"id": paused["id"], "state": COMPLETED, "text": "May I? Paid."}
