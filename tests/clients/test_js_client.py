"""Tests of `@turnwire/client` in Node against real servers that are cut off, restarted and killed."""

import asyncio
import gzip
import json
import random
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clients.conftest import Script
from tests.clients.scenes import RICH, TwoWayAgent, play
from tests.contracts.log_strategies import DENSE, log_of, logs
from tests.examples import examples
from tests.faults.proxy import faulty
from tests.node_packages import CLIENTS, built
from tests.process.server_process import served
from tests.server.conftest import Serve
from tests.server.cutting_proxy import cutting
from tests.serving import Puppet, Served, within
from turnwire.core.log.codec import LoggedEvent, log_event, now_ms
from turnwire.core.log.events import DoneEvent, Event, Hit, RestartEvent, Usage
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import Turn

pytestmark = pytest.mark.timeout(300)

PACKAGE = CLIENTS / "js"
EXAMPLES = sorted(PACKAGE.glob("examples/*.mjs"))
GUIDES = (PACKAGE.parents[1] / "docs" / "guides" / "javascript.md", PACKAGE / "README.md")
_BUILD_SECONDS = 120
_MAX_BYTES = 6 * 1024

Live = Callable[..., AbstractAsyncContextManager[Script]]


@pytest.fixture(scope="module")
def node() -> str:
    """Return the path of Node, after building the client, which also checks its types."""
    return built("js")


def run_node(node: str, *arguments: str, stdin: bytes = b"") -> str:
    ended = subprocess.run([node, *arguments], cwd=PACKAGE, input=stdin, capture_output=True, timeout=_BUILD_SECONDS)
    assert ended.returncode == 0, (ended.stdout + ended.stderr).decode()
    return ended.stdout.decode()


@pytest.fixture
def live(node: str) -> Live:
    """Return a context manager that runs a scene of live.mjs with arguments, and kills it at the end."""

    @asynccontextmanager
    async def start(*arguments: str) -> AsyncIterator[Script]:
        process = await asyncio.create_subprocess_exec(
            node,
            "--no-warnings",
            "--experimental-websocket",
            "test/live.mjs",
            *arguments,
            cwd=PACKAGE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        try:
            yield Script(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    return start


# The package


def test_client_unit_tests_pass(node: str) -> None:
    tests = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("test/*.test.mjs"))
    report = run_node(node, "--no-warnings", "--test", *tests)
    assert re.search(r"^# fail 0$", report, re.M)
    assert int(re.search(r"^# pass (\d+)$", report, re.M)[1]) > 40  # pyright: ignore[reportOptionalSubscript]


def test_streaming_bundle_is_within_size_limit(node: str, tmp_path: Path) -> None:
    built = tmp_path / "small.js"
    script = "require('esbuild').buildSync({stdin: {contents: process.argv[1], resolveDir: '.'}, bundle: true,"
    script += " minify: true, format: 'esm', target: 'es2022', outfile: process.argv[2]})"
    run_node(node, "-e", script, 'export { TurnwireClient, TurnwireError } from "./src/index.ts"', str(built))
    assert len(gzip.compress(built.read_bytes(), 9)) <= _MAX_BYTES


def test_typescript_consumer_compiles(node: str) -> None:
    options = [
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom",
        "--ignoreConfig",
    ]
    run_node(node, "node_modules/typescript/bin/tsc", *options, "test/consumer.ts")


def test_typescript_events_equal_the_python_events() -> None:
    source = (PACKAGE / "src" / "events.ts").read_text()
    declared = dict(re.findall(r"export interface (\w+)[^{]*\{\n(.*?)\n\}", source, re.S))
    union = re.search(r"export type TurnEvent =\n(.*?);", source, re.S)
    assert union is not None
    assert re.findall(r"\| (\w+)", union[1]) == [kind.__name__ for kind in get_args(Event)]
    for kind in (*get_args(Event), Hit, Usage):
        # `agent_path`, and the fields of `Usage`, are inherited.
        body = declared[kind.__name__] + ("\n" + declared["Usage"] if kind.__name__ == "UsageEvent" else "")
        report = dict(re.findall(r"^  (\w+)(\??): ", body, re.M))
        tag = kind.__struct_config__.tag
        if tag is not None:
            assert f'  type: "{tag}";' in body
            assert report.pop("type") == ""
        fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name != "agent_path"}
        assert set(report) == set(fields), kind
        for name, field in fields.items():
            is_needed = field.required or name in ("citations", "tools_used")
            assert (report[name] == "") == is_needed, (kind, name)


def test_guide_blocks_equal_the_example_files() -> None:
    examples = {path.read_text() for path in EXAMPLES}
    blocks = [block for page in GUIDES for block in re.findall(r"^```js\n(.*?)^```", page.read_text(), re.M | re.S)]
    assert set(blocks) == examples


# Behaviour


async def answer_example(turn: Turn) -> AsyncIterator[Any]:
    """Answer the messages of the guide's examples."""
    first = turn.message.partition(" ")[0]
    kind = {"Pay": "pay", "Wait": "wait"}.get(first, "plain")
    async for event in long(msgspec.structs.replace(turn, message=kind)):
        yield event


EXPECTED_OUTPUT = {
    "ask": "Plain answer.",
    "view": "pay with {\"amount\":40}?\ncompleted Paid. [ 'pay succeeded' ]\n",
    "session": "Hello -> Plain answer.\n",
    "stop": "cancelled\n",
    "socket": "Plain answer.\nPlain answer.\n",
    "text": "Plain answer.\n completed []\n",
}


async def test_guide_examples_print_the_expected_output(serve: Serve, node: str) -> None:
    async with serve(answer_example) as server:
        for example in EXAMPLES:
            process = await asyncio.create_subprocess_exec(
                node,
                *("--no-warnings", "--experimental-websocket", "--input-type=module"),
                cwd=PACKAGE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            source = example.read_text().replace("http://127.0.0.1:8420", server.url)
            report, errors = await within(process.communicate(source.encode()))
            assert (report.decode(), errors) == (EXPECTED_OUTPUT[example.stem], b""), example.name


def word(number: int) -> str:
    """Return a short word: the whole answer is one event, which must pass a cut connection at some time."""
    return "🌞 " if number % 10 == 0 else f"{number % 10} "


async def long(turn: Turn) -> AsyncIterator[Any]:
    """Play a scene, or a turn that is long enough to be cut often."""
    kind, _, count = turn.message.partition(" ")
    if kind == "long":
        async for event in play_rich(turn):
            yield event
        for number in range(int(count)):
            yield word(number)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
    elif kind == "wait":
        yield "Well, "
        await asyncio.Event().wait()
    else:
        async for event in play(turn):
            yield event


async def play_rich(turn: Turn) -> AsyncIterator[Any]:
    async for event in play(msgspec.structs.replace(turn, message="rich")):
        yield event


def budget(low: int, high: int) -> Callable[[], int]:
    """Return a function that draws the bytes a connection passes; the printed seed repeats a failure."""
    seed = random.randrange(1_000_000)
    print(f"the network is cut with the seed {seed}")
    chance = random.Random(seed)
    return lambda: chance.randrange(low, high)


async def ids_of(server: Served, turn_id: str) -> list[str | None]:
    return [frame.id for frame in await server.whole(turn_id)]


@st.composite
def restarted(draw: st.DrawFn) -> list[LoggedEvent]:
    """Draw any log, perhaps with restarts."""
    events = [logged.event for logged in draw(logs)]
    valid = [1, 2, *range(3, len(events))]
    for index in sorted(draw(st.lists(st.sampled_from(valid[2:]), max_size=2, unique=True))) if valid[2:] else ():
        # A restart goes back to a position that is not void.
        back = draw(st.sampled_from([position for position in valid[1:] if position <= index]))
        events.insert(index, RestartEvent(back, "lost"))
        valid = [position for position in valid if position <= back or position > index]
    return [log_event(event, position, 1) for position, event in enumerate(events, 1)]


def test_client_view_equals_the_server_snapshot_of_any_log(node: str) -> None:
    sample_logs: list[list[LoggedEvent]] = [log_of(DENSE)]

    @settings(max_examples=examples(36), database=None)
    @given(log=restarted())
    def gather(log: list[LoggedEvent]) -> None:
        sample_logs.append(log)

    gather()
    lines = [
        msgspec.json.encode({"log": [_followed(logged) for logged in log], "snapshot": _folded(log)})
        for log in sample_logs
    ]
    views = run_node(node, "test/live.mjs", "fold", "", stdin=b"\n".join(lines)).strip("\n").split("\n")
    assert len(views) == len(sample_logs)
    restarts = 0
    for log, line in zip(sample_logs, views, strict=True):
        pair = json.loads(line)
        if any(isinstance(logged.event, RestartEvent) for logged in log):
            restarts += 1
            for view in pair:
                for name in ("approvals", "phase"):  # A suspended turn is never restarted.
                    del view[name]
        assert same_view(*pair), log
    assert restarts > 3


def _followed(logged: LoggedEvent) -> dict[str, Any]:
    return {"turnId": "t1", "position": logged.position, "id": "", "event": msgspec.Raw(logged.body)}


def _folded(log: list[LoggedEvent]) -> dict[str, Any]:
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    state, is_ended = fold.state(), isinstance(log[-1].event, DoneEvent)
    identity = {"turn_id": "t1", "session_id": "s1", "agent": "echo", "position": len(log)}
    phase = "ended" if is_ended else "waiting" if fold.requests.is_waiting else "running" if len(log) > 2 else "queued"
    return {**identity, "phase": phase, "state": state}


async def test_cut_network_loses_and_doubles_no_event(serve: Serve, live: Live) -> None:
    async with (
        serve(long) as server,
        cutting(server, budget(100, 2_500)) as (client, cutter),
        live("ask", client.url, "long 200", "plain", "fail") as script,
    ):
        turns = [await script.next() for _ in range(3)]
        await script.ended()
        assert cutter.cuts > 10
        # Each message started one turn, however often it was sent.
        assert await server.written() == (1, 3)
        for turn in turns:
            ids = await ids_of(server, turn["turn_id"])
            assert turn["ids"] == ids
            assert turn["rest"] == ids[ids.index(turn["after"]) + 1 :]
            assert same_view(turn["view"], turn["snapshot"])
    text = RICH + "".join(map(word, range(200)))
    assert [turn["view"]["text"] for turn in turns] == [text, "Plain answer.", "It begins "]
    assert [turn["view"]["outcome"] for turn in turns] == ["completed", "completed", "failed"]
    assert turns[2]["view"]["error"]["code"] == "model_away"


def same_view(folded: dict[str, Any], snapshot: dict[str, Any]) -> bool:
    """Compare a folded view with a snapshot's view, without the fields that a snapshot lacks."""
    for view in (folded, snapshot):
        for name in ("reasoning", "by", "channel", "custom", "timings"):
            del view[name]
        for step in view["steps"]:
            for name in ("fraction", "decision", "endPosition"):
                step.pop(name, None)
    assert folded == snapshot
    return True


async def test_client_follows_a_turn_across_a_killed_server(tmp_path: Path, live: Live) -> None:
    data = tmp_path / "data"
    async with (
        served(data) as server,
        faulty(server.port) as network,
        live("tell", network.url, "1", "silent") as script,
    ):
        turn_id = (await script.next())["turn_id"]
        seen = [await script.next() for _ in range(3)]
        assert [item["type"] for item in seen] == ["session", "message", "token"]
        network.target = None
        await server.kill()
        async with served(data) as again:
            network.target = again.port
            seen += [await script.next() for _ in range(2)]
            report = await script.next()
            await script.ended()
            assert report["ids"] == [frame.id for frame in await again.whole(turn_id)]
    assert [item["type"] for item in seen[3:]] == ["error", "done"]
    assert report["view"]["outcome"] == "interrupted"
    assert report["view"]["text"] == "Well, "
    assert (report["states"][0], report["states"][-1]) == ("offline", "online")


async def test_cancel_stops_the_turn(serve: Serve, live: Live) -> None:
    async with serve(long) as server, live("stop", server.url, "wait") as script:
        report = await script.next()
        await script.ended()
    assert (report["stopped"], report["again"], report["view"]["outcome"]) == ("cancelled",) * 3
    assert report["view"]["text"] == "Well, "


async def test_decisions_approve_and_deny_calls(serve: Serve, live: Live) -> None:
    async with serve(play) as server, live("decide", server.url, "pay", "pay") as script:
        approved, denied = await script.next(), await script.next()
        await script.ended()
    assert approved["view"]["text"] == "Paid."
    assert approved["view"]["steps"][0]["state"] == "succeeded"
    assert "too much" in denied["view"]["text"]
    assert [item["view"]["steps"][0]["decision"]["approved"] for item in (approved, denied)] == [True, False]
    assert approved["conflict"] == denied["conflict"]


@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_client_runs_its_tools_and_answers_questions_once(serve: Serve, live: Live, transport: str) -> None:
    async with serve(TwoWayAgent()) as server, live("answer", server.url, transport, "mixed", "colour") as script:
        mixed, colour = await script.next(), await script.next()
        await script.ended()
    assert mixed["text"] == "Wait. You are in Bern at noon. Still in Bern."
    assert sorted(mixed["ran"], key=str) == [["clock", {}], ["locate", {"again": True}], ["locate", {}]]
    assert set(mixed["phases"]) >= {"waiting", "running", "ended"}
    assert (colour["text"], colour["ran"]) == ("Wait. You want blue.", [["Which colour?", ["red", "blue"]]])
    (question,) = colour["questions"]
    assert (question["state"], question["value"]) == ("answered", "blue")


async def test_open_call_is_run_after_a_restart_of_the_server_and_of_the_client(serve: Serve, live: Live) -> None:
    async with serve(TwoWayAgent(), store="sqlite") as server, live("leave", server.url, "locate") as script:
        turn_id = (await script.next())["turn_id"]
        await script.ended()
    async with serve(TwoWayAgent(), store="sqlite") as server, live("reopen", server.url, turn_id) as script:
        report = await script.next()
        await script.ended()
    assert (report["outcome"], report["error"]) == ("failed", "no satellite")
    (step,) = report["steps"]
    assert (step["state"], step["result"], step["runsOn"]) == ("failed", "no satellite", "client")


async def test_session_stream_survives_a_cut_network(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(100, 1_500)) as (client, cutter):
        turn_ids = [await server.start("plain", session_id="mine")]
        async with live("session", client.url, "mine", "3") as script:
            for message in ("long 40", "fail"):
                turn_ids.append(await server.start(message, session_id="mine"))
            report = await script.next()
            await script.ended()
        expected = [f"{turn_id}:{frame.position}" for turn_id in turn_ids for frame in await server.whole(turn_id)]
        assert report["ids"] == expected
        assert cutter.cuts > 3
        async with live("session", server.url, "mine", "1", expected[-3]) as script:
            assert (await script.next())["ids"] == expected[-2:]


async def test_socket_with_many_turns_survives_a_cut_network(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(400, 4_000)) as (client, cutter):
        async with live("socket", client.url, "long 60", "plain", "long 30") as script:
            report = await script.next()
            for turn in report["told"]:
                ids = await ids_of(server, turn["turn_id"])
                assert turn["ids"] == ids
                assert turn["rest"] == ids[len(ids) // 2 + 1 :]
                assert turn["none"] == []
                assert turn["reset"] == ["reset", *ids]
            assert [turn["view"]["outcome"] for turn in report["told"]] == ["completed"] * 3
            assert report["stopped"] == "cancelled"
            assert await script.next() == {
                "refused": "turn_not_found",
                "denied": "agent_not_found",
                "paid": "Paid.",
                "closed": "closed",
            }
            await script.ended()
        assert cutter.cuts > 5
        assert (await server.written())[1] == 5


async def test_streamed_text_resumes_by_byte(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(300, 1_200)) as (client, cutter):
        turn_id = await server.start("long 300")
        async with live("text", client.url, turn_id) as script:
            report = await script.next()
            await script.ended()
        assert cutter.cuts > 2
        state = (await server.snapshot(turn_id))["state"]
    assert report["text"] == state["text"]
    assert report["events"] > 5
    assert report["trailer"]["outcome"] == "completed"
    assert report["trailer"]["turn_id"] == turn_id


async def test_expired_events_give_a_gap_and_foreign_cursor_a_reset(serve: Serve, live: Live, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id = await server.start()
        part = await puppet.part()
        part.say("All ", "gone.")
        part.end()
        await server.ended(turn_id)
        ids = await ids_of(server, turn_id)
        async with live("join", server.url, turn_id, "5000.9") as script:
            assert (await script.next())["ids"] == ["reset", *ids]
        await server.turnwire.store.maintain(expire_before=now_ms() + 1)
        async with live("join", server.url, turn_id) as script:
            report = await script.next()
    assert report["ids"] == ["gap", ids[-1]]
    assert (report["view"]["text"], report["view"]["outcome"]) == ("All gone.", "completed")


async def test_stream_closed_by_age_keeps_the_connection_online(serve: Serve, live: Live, puppet: Puppet) -> None:
    async with serve(stream_lifetime=0.4) as server, live("tell", server.url, "hi") as script:
        part = await puppet.part()
        turn_id = (await script.next())["turn_id"]
        part.say("One ")
        while (await script.next()).get("control") != "reconnect":
            pass
        part.say("two.")
        part.end()
        while "view" not in (report := await script.next()):
            pass
        assert report["ids"] == await ids_of(server, turn_id)
    assert report["view"]["text"] == "One two."
    assert report["states"] == []


async def test_session_and_document_methods_work(serve_documents: Any, live: Live) -> None:
    async with serve_documents(agent=play) as server, live("rest", server.url) as script:
        report = await script.next()
        await script.ended()
    assert report["found"] == ["tide.md"]
    assert report["quote"] == "High water"
    assert report["gone"] == [404, "document_not_found"]
    assert (report["title"], report["listed"], report["left"]) == ("One", ["Two"], 0)
    assert (report["text"], report["turns"]) == ("Plain answer.", 1)
    assert [message["role"] for message in report["transcript"]] == ["user", "assistant"]
    assert report["principal"] == "local"
