"""`@turnwire/client`, run by Node against real servers: cut off, restarted, killed, and no event is lost or doubled."""

import asyncio
import fcntl
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
from tests.clients.scenes import RICH, play
from tests.contracts.any_log import DENSE, log_of, logs
from tests.node_packages import node_with
from tests.process.running import served
from tests.server.conftest import Serve
from tests.server.cutting_proxy import cutting
from tests.serving import Puppet, Served, within
from turnwire.core.codec import LoggedEvent, log_event, now_ms
from turnwire.core.events import DoneEvent, Event, Hit, RestartEvent, Usage
from turnwire.core.state import TurnFold
from turnwire.core.turns import Turn

pytestmark = pytest.mark.timeout(300)

PACKAGE = Path(__file__).parents[2] / "clients" / "js"
EXAMPLES = sorted(PACKAGE.glob("examples/*.mjs"))
GUIDES = (PACKAGE.parents[1] / "docs" / "guides" / "javascript.md", PACKAGE / "README.md")
_BUILD_SECONDS = 120
_MOST_BYTES = 6 * 1024

Live = Callable[..., AbstractAsyncContextManager[Script]]


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the client built, which also checks its types."""
    found = node_with(PACKAGE)
    with (PACKAGE / "package.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_node(found, "build.mjs")
    return found


def run_node(node: str, *arguments: str, stdin: bytes = b"") -> str:
    ended = subprocess.run([node, *arguments], cwd=PACKAGE, input=stdin, capture_output=True, timeout=_BUILD_SECONDS)
    assert ended.returncode == 0, (ended.stdout + ended.stderr).decode()
    return ended.stdout.decode()


@pytest.fixture
def live(node: str) -> Live:
    """Runs a scene of live.mjs, given its name and arguments, for as long as the block lasts."""

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


# What it is made of


def test_it_reads_streams_and_folds_views_as_its_own_tests_say(node: str) -> None:
    tests = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("test/*.test.mjs"))
    told = run_node(node, "--no-warnings", "--test", *tests)
    assert re.search(r"^# fail 0$", told, re.M)
    assert int(re.search(r"^# pass (\d+)$", told, re.M)[1]) > 40  # pyright: ignore[reportOptionalSubscript]


def test_the_part_that_streams_is_small_enough_for_any_page(node: str, tmp_path: Path) -> None:
    built = tmp_path / "small.js"
    script = "require('esbuild').buildSync({stdin: {contents: process.argv[1], resolveDir: '.'}, bundle: true,"
    script += " minify: true, format: 'esm', target: 'es2022', outfile: process.argv[2]})"
    run_node(node, "-e", script, 'export { TurnwireClient, TurnwireError } from "./src/index.ts"', str(built))
    assert len(gzip.compress(built.read_bytes(), 9)) <= _MOST_BYTES


def test_programs_in_typescript_are_checked_against_its_types(node: str) -> None:
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


def test_its_types_are_those_of_the_server() -> None:
    source = (PACKAGE / "src" / "events.ts").read_text()
    declared = dict(re.findall(r"export interface (\w+)[^{]*\{\n(.*?)\n\}", source, re.S))
    union = re.search(r"export type TurnEvent =\n(.*?);", source, re.S)
    assert union is not None
    assert re.findall(r"\| (\w+)", union[1]) == [kind.__name__ for kind in get_args(Event)]
    for kind in (*get_args(Event), Hit, Usage):
        # What every event may have, and what the sum of usage has, is inherited.
        body = declared[kind.__name__] + ("\n" + declared["Usage"] if kind.__name__ == "UsageEvent" else "")
        told = dict(re.findall(r"^  (\w+)(\??): ", body, re.M))
        tag = kind.__struct_config__.tag
        if tag is not None:
            assert f'  type: "{tag}";' in body
            assert told.pop("type") == ""
        fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name != "agent_path"}
        assert set(told) == set(fields), kind
        for name, field in fields.items():
            is_needed = field.required or name in ("citations", "tools_used")
            assert (told[name] == "") == is_needed, (kind, name)


def test_every_block_in_its_guide_is_an_example() -> None:
    examples = {path.read_text() for path in EXAMPLES}
    blocks = [block for page in GUIDES for block in re.findall(r"^```js\n(.*?)^```", page.read_text(), re.M | re.S)]
    assert set(blocks) == examples


# What it does


async def obliging(turn: Turn) -> AsyncIterator[Any]:
    """Answers the examples of the guide."""
    first = turn.message.partition(" ")[0]
    kind = {"Pay": "pay", "Wait": "wait"}.get(first, "plain")
    async for event in long(msgspec.structs.replace(turn, message=kind)):
        yield event


SAID = {
    "ask": "Plain answer.",
    "view": "pay with {\"amount\":40}?\ncompleted Paid. [ 'pay succeeded' ]\n",
    "session": "Hello -> Plain answer.\n",
    "stop": "cancelled\n",
    "socket": "Plain answer.\nPlain answer.\n",
    "text": "Plain answer.\n completed []\n",
}


async def test_the_examples_of_its_guide_run(serve: Serve, node: str) -> None:
    async with serve(obliging) as server:
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
            told, complaints = await within(process.communicate(source.encode()), 30)
            assert (told.decode(), complaints) == (SAID[example.stem], b""), example.name


def word(number: int) -> str:
    """Short, because the whole answer is in one event, which must get through a cut network at some time."""
    return "🌞 " if number % 10 == 0 else f"{number % 10} "


async def long(turn: Turn) -> AsyncIterator[Any]:
    """The scenes, and turns that are long enough to be cut often."""
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
    """How many bytes each connection lets through; what is printed makes a failure happen again."""
    seed = random.randrange(1_000_000)
    print(f"the network is cut with the seed {seed}")
    chance = random.Random(seed)
    return lambda: chance.randrange(low, high)


async def ids_of(server: Served, turn_id: str) -> list[str | None]:
    return [frame.id for frame in await server.whole(turn_id)]


@st.composite
def restarted(draw: st.DrawFn) -> list[LoggedEvent]:
    """Any log, perhaps with steps in it that were begun anew."""
    events = [logged.event for logged in draw(logs)]
    kept = [1, 2, *range(3, len(events))]
    for place in sorted(draw(st.lists(st.sampled_from(kept[2:]), max_size=2, unique=True))) if kept[2:] else ():
        # It goes back to something that stands: what is void already is nothing to go on from.
        back = draw(st.sampled_from([position for position in kept[1:] if position <= place]))
        events.insert(place, RestartEvent(back, "lost"))
        kept = [position for position in kept if position <= back or position > place]
    return [log_event(event, position, 1) for position, event in enumerate(events, 1)]


def test_a_view_is_what_the_server_makes_of_the_same_log(node: str) -> None:
    told: list[list[LoggedEvent]] = [log_of(DENSE)]

    @settings(max_examples=60, database=None)
    @given(log=restarted())
    def gather(log: list[LoggedEvent]) -> None:
        told.append(log)

    gather()
    lines = [
        msgspec.json.encode({"log": [_followed(logged) for logged in log], "snapshot": _folded(log)}) for log in told
    ]
    views = run_node(node, "test/live.mjs", "fold", "", stdin=b"\n".join(lines)).strip("\n").split("\n")
    assert len(views) == len(told)
    restarts = 0
    for log, told_views in zip(told, views, strict=True):
        pair = json.loads(told_views)
        if any(isinstance(logged.event, RestartEvent) for logged in log):
            restarts += 1
            for view in pair:
                del view["approvals"]  # Nobody runs a turn that waits, so none is begun anew while it does.
        assert same_view(*pair), log
    assert restarts > 3


def _followed(logged: LoggedEvent) -> dict[str, Any]:
    return {"turnId": "t1", "position": logged.position, "id": "", "event": msgspec.Raw(logged.body)}


def _folded(log: list[LoggedEvent]) -> dict[str, Any]:
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    state, is_ended = fold.state(), isinstance(log[-1].event, DoneEvent)
    known = {"turn_id": "t1", "session_id": "s1", "agent": "echo", "position": len(log)}
    phase = "ended" if is_ended else "waiting" if fold.undecided else "running" if len(log) > 2 else "queued"
    return {**known, "phase": phase, "state": state}


async def test_no_event_is_lost_or_doubled_however_the_network_breaks(serve: Serve, live: Live) -> None:
    async with (
        serve(long) as server,
        cutting(server, budget(100, 2_500)) as (client, cutter),
        live("ask", client.url, "long 200", "plain", "fail") as script,
    ):
        turns = [await script.next() for _ in range(3)]
        await script.ended()
        assert cutter.cuts > 10
        # However often they were sent, each message was asked once.
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
    """Whether the client makes of the events what the server does; a snapshot leaves a few things out."""
    for view in (folded, snapshot):
        for name in ("reasoning", "by", "channel", "custom", "timings"):
            del view[name]
        for step in view["steps"]:
            for name in ("fraction", "decision"):
                step.pop(name, None)
    assert folded == snapshot
    return True


async def test_a_turn_is_told_live_and_goes_on_when_the_server_was_killed(tmp_path: Path, live: Live) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        port = str(server.port)
        async with live("tell", server.url, "1", "silent") as script:
            turn_id = (await script.next())["turn_id"]
            seen = [await script.next() for _ in range(3)]
            assert [one["type"] for one in seen] == ["session", "message", "token"]
            await server.kill()
            async with served(data, "--port", port) as again:
                seen += [await script.next() for _ in range(2)]
                told = await script.next()
                await script.ended()
                assert told["ids"] == [frame.id for frame in await again.whole(turn_id)]
    assert [one["type"] for one in seen[3:]] == ["error", "done"]
    assert told["view"]["outcome"] == "interrupted"
    assert told["view"]["text"] == "Well, "
    assert (told["states"][0], told["states"][-1]) == ("offline", "online")


async def test_a_turn_is_stopped(serve: Serve, live: Live) -> None:
    async with serve(long) as server, live("stop", server.url, "wait") as script:
        told = await script.next()
        await script.ended()
    assert (told["stopped"], told["again"], told["view"]["outcome"]) == ("cancelled",) * 3
    assert told["view"]["text"] == "Well, "


async def test_calls_are_approved_and_denied(serve: Serve, live: Live) -> None:
    async with serve(play) as server, live("decide", server.url, "pay", "pay") as script:
        approved, denied = await script.next(), await script.next()
        await script.ended()
    assert approved["view"]["text"] == "Paid."
    assert approved["view"]["steps"][0]["state"] == "succeeded"
    assert "too much" in denied["view"]["text"]
    assert [one["view"]["steps"][0]["decision"]["approved"] for one in (approved, denied)] == [True, False]
    assert approved["conflict"] == denied["conflict"]


async def test_a_session_is_followed_through_every_cut(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(100, 1_500)) as (client, cutter):
        turn_ids = [await server.start("plain", session_id="mine")]
        async with live("session", client.url, "mine", "3") as script:
            for message in ("long 40", "fail"):
                turn_ids.append(await server.start(message, session_id="mine"))
            told = await script.next()
            await script.ended()
        expected = [f"{turn_id}:{frame.position}" for turn_id in turn_ids for frame in await server.whole(turn_id)]
        assert told["ids"] == expected
        assert cutter.cuts > 3
        async with live("session", server.url, "mine", "1", expected[-3]) as script:
            assert (await script.next())["ids"] == expected[-2:]


async def test_many_turns_on_one_socket_survive_every_cut(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(400, 4_000)) as (client, cutter):
        async with live("socket", client.url, "long 60", "plain", "long 30") as script:
            told = await script.next()
            for turn in told["told"]:
                ids = await ids_of(server, turn["turn_id"])
                assert turn["ids"] == ids
                assert turn["rest"] == ids[len(ids) // 2 + 1 :]
                assert turn["none"] == []
                assert turn["reset"] == ["reset", *ids]
            assert [turn["view"]["outcome"] for turn in told["told"]] == ["completed"] * 3
            assert told["stopped"] == "cancelled"
            assert await script.next() == {
                "refused": "turn_not_found",
                "denied": "agent_not_found",
                "paid": "Paid.",
                "closed": "closed",
            }
            await script.ended()
        assert cutter.cuts > 5
        assert (await server.written())[1] == 5


async def test_streamed_text_is_resumed_by_byte(serve: Serve, live: Live) -> None:
    async with serve(long) as server, cutting(server, budget(300, 1_200)) as (client, cutter):
        turn_id = await server.start("long 300")
        async with live("text", client.url, turn_id) as script:
            told = await script.next()
            await script.ended()
        assert cutter.cuts > 2
        state = (await server.snapshot(turn_id))["state"]
    assert told["text"] == state["text"]
    assert told["events"] > 5
    assert told["trailer"]["outcome"] == "completed"
    assert told["trailer"]["turn_id"] == turn_id


async def test_events_that_are_gone_or_of_another_log_are_told(serve: Serve, live: Live, puppet: Puppet) -> None:
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
            told = await script.next()
    assert told["ids"] == ["gap", ids[-1]]
    assert (told["view"]["text"], told["view"]["outcome"]) == ("All gone.", "completed")


async def test_a_server_that_ends_its_streams_by_age_is_not_away(serve: Serve, live: Live, puppet: Puppet) -> None:
    async with serve(stream_lifetime=0.4) as server, live("tell", server.url, "hi") as script:
        part = await puppet.part()
        turn_id = (await script.next())["turn_id"]
        part.say("One ")
        while (await script.next()).get("control") != "reconnect":
            pass
        part.say("two.")
        part.end()
        while "view" not in (told := await script.next()):
            pass
        assert told["ids"] == await ids_of(server, turn_id)
    assert told["view"]["text"] == "One two."
    assert told["states"] == []


async def test_everything_else_is_asked_and_answered(serve_documents: Any, live: Live) -> None:
    async with serve_documents(agent=play) as server, live("rest", server.url) as script:
        told = await script.next()
        await script.ended()
    assert told["found"] == ["tide.md"]
    assert told["quote"] == "High water"
    assert told["gone"] == [404, "document_not_found"]
    assert (told["title"], told["listed"], told["left"]) == ("One", ["Two"], 0)
    assert (told["text"], told["turns"]) == ("Plain answer.", 1)
    assert [message["role"] for message in told["transcript"]] == ["user", "assistant"]
    assert told["principal"] == "local"
