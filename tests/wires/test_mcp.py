"""A turn's log as MCP progress and result: over generated logs, cut anywhere, and read by the official client."""

import asyncio
import json
from typing import Any

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.contracts.log_strategies import logs, restarted_logs
from tests.contracts.turn_summary import fold
from tests.examples import examples
from tests.serving import until, within
from tests.wires.served_log import ServedLog, served_log
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.state import TurnFold
from turnwire.wires.mcp.encoder import progress_lines, turn_content, turn_id_of, turn_text
from turnwire.wires.progress import status_of


@given(logs, st.data())
def test_progress_grows_and_loses_no_text_wherever_the_log_is_cut(log: list[LoggedEvent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole, parts = [*progress_lines(log)], [*progress_lines(log[:cut]), *progress_lines(log[cut:])]
    positions = [line.position for line in parts]
    # The protocol demands that the progress grows with every notification.
    assert positions == sorted(set(positions))
    assert "".join(line.text for line in parts) == "".join(line.text for line in whole)
    tokens = [logged for logged in log if isinstance(logged.event, TokenEvent)]
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    assert "".join(line.text for line in progress_lines(tokens)) == fold.state().text


@given(logs)
def test_first_line_names_the_turn_and_the_result_has_its_text(log: list[LoggedEvent]) -> None:
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    state = fold.state()
    lines = [line.text for line in progress_lines(log)]
    assert turn_id_of(lines[0]) == state.turn_id
    content = turn_content(state)
    assert (content["text"], content["status"]) == (state.text, status_of(state))
    assert turn_text(state, can_decide=True).startswith(state.text)


class Call:
    """One call of `get_turn` by the official client, with its progress."""

    def __init__(self, client: Client, turn_id: str, wait: int) -> None:
        self.positions: list[float] = []
        self.lines: list[str] = []
        arguments = {"turn_id": turn_id, "wait": wait}
        self.task = asyncio.create_task(client.call_tool("get_turn", arguments, progress_callback=self._report))

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        assert not self.positions or progress > self.positions[-1], "the progress grows with every notification"
        self.positions.append(progress)
        self.lines.append(message or "")

    async def result(self) -> dict[str, Any]:
        content = (await within(self.task)).structured_content
        assert content is not None
        return content


async def read_until(call: Call, log: ServedLog, events: list[LoggedEvent]) -> None:
    """Write events one by one, each after the call has reported the one before, unless it has returned."""
    for logged in events:
        (written,) = await log.write([logged.event])
        for line in progress_lines([written]):
            await until(lambda line=line: call.task.done() or call.positions[-1:] == [line.position])
            assert call.task.done() or call.lines[-1] == line.text


@settings(max_examples=examples(5))
@given(drawn=logs | restarted_logs(), data=st.data())
async def test_call_that_is_cut_after_any_message_is_read_to_its_end_by_the_next_one(
    drawn: list[LoggedEvent], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(2, len(drawn)))
    async with served_log() as log:
        headers = {"Authorization": f"Bearer {log.key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            url = f"{log.server.url}/mcp"
            async with Client(streamable_http_client(url, http_client=http)) as client:
                first = Call(client, log.turn_id, wait=3_600)
                await within(log.watched.wait())
                await read_until(first, log, drawn[2:cut])
                first.task.cancel()
                await asyncio.wait([first.task])
            async with Client(streamable_http_client(url, http_client=http)) as client:
                second = Call(client, log.turn_id, wait=3_600 if drawn[-1].is_last else 0)
                await log.write([logged.event for logged in drawn[cut:]])
                content = await second.result()
                if content["status"] in ("running", "waiting"):
                    content = await Call(client, log.turn_id, wait=0).result()
    expected = fold(json.loads(logged.body) for logged in drawn)
    assert (content["text"], content["status"]) == (expected.text, expected.outcome)
    assert len(content["citations"]) == len(expected.citations)
