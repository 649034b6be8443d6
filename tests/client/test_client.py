"""Tests of both clients against real servers: each event once over lost connections, one turn for each message."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.servers import proxied, scripted
from tests.server.cutting_proxy import cutting
from tests.serving import (
    PATIENCE,
    Puppet,
    Served,
    let_time_pass,
    listen,
    quick_settings,
    saying,
    serving,
    until,
    within,
)
from turnwire import Turn, Turnwire
from turnwire.client import (
    AsyncClient,
    AsyncTurnHandle,
    Client,
    ClientError,
    ConnectionLost,
    ConnectionRestored,
    Gap,
    ReceivedEvent,
    ReconnectLimits,
    RefusedError,
    Reset,
    ServerAddress,
    ServerUnreachableError,
    TurnHandle,
    attachment,
)
from turnwire.core.backoff import Backoff
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, DoneEvent, InputEvent, TokenEvent
from turnwire.core.run.inputs import take_inputs

QUICK = Backoff(first=0.001, longest=0.02)
PATIENT = ReconnectLimits(give_up_seconds=PATIENCE, request_seconds=PATIENCE, backoff=QUICK, read_timeout=PATIENCE)
ONCE = ReconnectLimits(give_up_seconds=0.2, request_seconds=0, backoff=QUICK, read_timeout=PATIENCE)
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Turn-Id: t1\r\nConnection: close\r\n\r\n"
START = b'id: 1.1\ndata: {"type":"session","session_id":"s1","turn_id":"t1","agent":"a"}\n\n'
TOKEN = b'id: 2.1\ndata: {"type":"token","content":"One "}\n\n'
DONE = b'id: 3.1\ndata: {"type":"done","outcome":"completed","session_id":"s1","turn_id":"t1"}\n\n'


def client_of(url: str, limits: ReconnectLimits = PATIENT, key: str | None = None) -> AsyncClient:
    # Not by the proxy that the environment may name.
    return AsyncClient(ServerAddress(url, key, is_local=True), limits=limits)


async def ids_and_bodies(turn: AsyncTurnHandle) -> list[tuple[str, str]]:
    async with asyncio.timeout(PATIENCE):
        updates = [update async for update in turn.updates()]
    return [(update.id, update.body.decode()) for update in updates if isinstance(update, ReceivedEvent)]


async def logged(server: Served, turn_id: str) -> list[tuple[str | None, str | None]]:
    return [(frame.id, frame.data) for frame in await server.whole(turn_id)]


# Streams


async def test_each_event_is_read_once_wherever_the_connection_is_cut(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Grüße, ", "Ünï."), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server:
        turn_id = await server.start("Hello")
        await server.ended(turn_id)
        log = await logged(server, turn_id)
        budgets: list[int] = []
        cutting_at = cutting(server, lambda: budgets.pop() if budgets else 1_000_000)
        async with cutting_at as (proxy, cutter), client_of(proxy.url) as client:
            cut, cuts = 0, -1
            while cutter.cuts > cuts:  # Until the whole response has passed.
                # A connection that was kept has used up its budget; the next is cut too, a little later.
                cuts, budgets = cutter.cuts, [cut + 150, cut]
                assert await ids_and_bodies(client.turn(turn_id)) == log, f"cut after {cut} bytes"
                cut += 7
        assert cut > sum(len(str(body)) for _, body in log)


async def test_running_turn_is_read_once_over_random_cuts(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(120)]
    chance = random.Random(7)
    turnwire = Turnwire(saying(*words), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server:
        cutting_at_random = cutting(server, lambda: chance.randint(0, 2_500))
        async with cutting_at_random as (proxy, cutter), client_of(proxy.url) as client:
            turn = await within(client.start("Hello"))
            received = await ids_and_bodies(turn)
        assert cutter.cuts >= 5
        assert received == await logged(server, turn.id)
        assert turn.text == "".join(words)
        assert await server.written() == (1, 1)


async def test_start_with_a_lost_answer_is_repeated_and_starts_one_turn(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), client_of(url) as client:
        proxy.cut_after = 0
        starting = asyncio.create_task(client.start("Hello"))
        part = await puppet.part()
        await until(lambda: len(proxy.requests) >= 2)
        proxy.cut_after = None
        turn = await within(starting)
        part.say("Once.")
        part.end()
        assert (await within(turn.result())).text == "Once."
        assert (len(puppet.parts), await server.written()) == (1, (1, 1))


async def test_requested_reconnect_is_not_reported_and_loses_nothing(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path, stream_lifetime=600))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), client_of(url) as client:
        turn = await within(client.start("Hello"))
        reading = asyncio.create_task(within(_all(turn.updates())))
        part = await puppet.part()
        part.say("One ")
        await server.reached(turn.id, 3)
        await until(lambda: turn.position == 3)
        let_time_pass(turnwire, 900)
        await until(lambda: any(request.startswith(b"GET") for request in proxy.requests))
        part.say("two.")
        part.end()
        updates = await reading
        assert not any(isinstance(update, ConnectionLost | ConnectionRestored) for update in updates)
        assert [(update.id, update.body.decode()) for update in updates] == await logged(server, turn.id)
        assert turn.text == "One two."


async def _all(updates: AsyncIterator[Any]) -> list[Any]:
    return [update async for update in updates]


async def test_reading_again_continues_after_the_last_event(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("One ", "two."), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, client_of(server.url) as client:
        turn = await within(client.start("Hello"))
        async with aclosing(turn.updates()) as updates:
            first = await within(anext(updates))
        assert isinstance(first, ReceivedEvent)
        other = client.turn(turn.id, after=first.id)  # As another process would.
        rest = (await logged(server, turn.id))[1:]
        assert await ids_and_bodies(turn) == rest
        assert await ids_and_bodies(other) == rest
        assert await ids_and_bodies(turn) == []
        assert turn.last_event_id == rest[-1][0]


async def test_reset_and_gap_are_given_to_the_reader() -> None:
    gap = b'data: {"type":"gap","after":0,"first_kept":2,"state":{"text":"Before. "}}\n\n'
    answers = [STREAM + START + TOKEN, STREAM + b'data: {"type":"reset"}\n\n' + gap, STREAM + gap + TOKEN + DONE]
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return answers[len(requests) - 1]

    async with scripted(answer) as url, client_of(url) as client:
        turn = client.draft("Hello")
        events = await within(_all(turn.events()))
        assert [type(event) for event in events[2:]] == [Reset, Gap, TokenEvent, DoneEvent]
        assert turn.text == "Before. One "
    assert [b"last-event-id: 2.1" in requests[1].lower(), b"last-event-id: 1\r" in requests[2].lower()] == [True, True]


async def test_ended_turn_whose_events_were_removed_gives_its_state_and_done(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello you."), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, client_of(server.url) as client:
        turn = await within(client.start("Hello"))
        await within(turn.result())
        await turnwire.store.maintain(expire_before=2**60)
        old = client.turn(turn.id)
        gap, done = await within(_all(old.events()))
        assert isinstance(gap, Gap)
        assert isinstance(done, DoneEvent)
        assert (gap.state.text, old.text) == ("Hello you.", "Hello you.")


async def test_reader_that_gave_up_continues_when_the_server_is_back() -> None:
    is_away = True

    def answer(request: bytes) -> bytes:
        if request.startswith(b"POST"):
            return STREAM + START
        return b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n" if is_away else STREAM + TOKEN + DONE

    async with scripted(answer) as url, client_of(url, ONCE) as client:
        turn = await within(client.start("Hello"))
        with pytest.raises(
            ServerUnreachableError, match=r"has not answered for \d+ seconds.*503.*in its log"
        ) as raised:
            await within(_all(turn.events()))
        assert raised.value.status == 503
        is_away = False
        assert [type(event) for event in await within(_all(turn.events()))] == [TokenEvent, DoneEvent]


async def test_server_that_takes_connections_and_sends_nothing_is_given_up() -> None:
    def answer(request: bytes) -> bytes:
        return STREAM + START if request.startswith(b"POST") else STREAM

    async with scripted(answer) as url, client_of(url, ONCE) as client:
        turn = await within(client.start("Hello"))
        with pytest.raises(ServerUnreachableError, match="the stream ended early"):
            await within(_all(turn.events()))
    async with scripted(lambda _: OK + b"<html>") as url, client_of(url, ONCE) as client:
        for request in (client.start("Hello"), _all(client.turn("t1").events())):
            with pytest.raises(ClientError, match="not the stream of a turn"):
                await request


# Requests and errors


async def test_refusals_have_the_status_code_and_message_of_the_server(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello"), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, client_of(server.url) as client:
        with pytest.raises(RefusedError) as raised:
            await client.start("Hello", agent="nobody")
        assert (raised.value.status, raised.value.code) == (422, "agent_not_found")
        assert "no agent" in raised.value.message
        with pytest.raises(RefusedError) as raised:
            await within(_all(client.turn("nothing").events()))
        assert (raised.value.status, raised.value.code) == (404, "turn_not_found")
        _, key = await turnwire.keys.create("anna", ["read", "write"])
        with pytest.raises(RefusedError) as raised:
            await client.sessions()
        assert (raised.value.status, raised.value.code) == (401, "unauthorized")
        async with client_of(server.url, key=key) as authorized:
            assert (await within((await authorized.start("Hello")).result())).text == "Hello"


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", RefusedError, (502, "http_error", None)),
        (b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\n\r\n", RefusedError, (429, "http_error", 7.0)),
        (OK + b"<html>", ClientError, (0, "not_turnwire", None)),
        (b"HTTP/1.1 200", ServerUnreachableError, (0, "network", None)),
    ],
)
async def test_failed_answers_raise_their_error(answer: bytes, error: type[ClientError], expected: Any) -> None:
    async with scripted(lambda _: answer) as url, client_of(url, ONCE) as client:
        for request in (client.sessions(), client.snapshot("t1"), client.request("GET", "/v1/budget")):
            with pytest.raises(error) as raised:
                await request
            assert (raised.value.status, raised.value.code, raised.value.retry_after) == expected


async def test_server_that_is_not_there_raises_without_retries() -> None:
    listening = listen()
    port = listening.getsockname()[1]
    listening.close()
    async with client_of(f"http://127.0.0.1:{port}", ONCE) as client:
        for request in (client.start("Hello"), client.sessions(), _all(client.turn("t1").events())):
            with pytest.raises(ServerUnreachableError, match="does not answer") as raised:
                await request
            assert not raised.value.is_sent
    with pytest.raises(ClientError, match="is not a valid URL"):
        AsyncClient("http://[no")


async def test_only_repeatable_requests_are_repeated() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return OK + b"{}" if len(requests) == 3 else b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n"

    async with scripted(answer) as url, client_of(url) as client:
        assert await within(client.request("GET", "/v1/budget")) == {}
        assert len(requests) == 3
        with pytest.raises(RefusedError):
            await within(client.request("POST", "/v1/schedules", {}))
        assert len(requests) == 4


# Everything else, with both clients


async def careful(turn: Turn) -> AsyncIterator[Any]:
    yield "May I? "
    decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 40}))
    yield "Yes." if decision.approved else "No."


class Listening:
    """An agent that goes on once a message has entered its turn."""

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        yield f"{turn.message}. "
        while not (inputs := await take_inputs()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield f"{inputs[0]}."


@asynccontextmanager
async def several_agents(folder: Path) -> AsyncIterator[tuple[Served, Puppet]]:
    puppet = Puppet()
    agents = {"hello": saying("Hello ", "you."), "careful": careful, "listening": Listening(), "puppet": puppet}
    async with serving(Turnwire(agents=agents, settings=quick_settings(folder))) as server:
        yield server, puppet


async def test_async_client_does_what_the_server_can_do(tmp_path: Path) -> None:
    async with several_agents(tmp_path) as (server, puppet), client_of(server.url) as client:
        turn = await client.start("Hi", agent="hello")
        state = await within(turn.result())
        assert (state.text, state.outcome, turn.text) == ("Hello you.", "completed", "Hello you.")
        assert (await turn.snapshot()).position == turn.position

        forked = await turn.fork(2, message="Again")
        assert (await within(forked.result())).forked_from == turn.id
        assert turn.session_id is not None
        assert forked.session_id == turn.session_id
        assert [past.message for past in (await client.session(turn.session_id)).turns] == ["Hi", "Again"]
        assert [past.turn_id for past in await client.turns(limit=1)] == [forked.id]

        waiting = await client.start("Pay", agent="careful")
        async for event in waiting.events():
            if isinstance(event, ApprovalRequestEvent):
                await waiting.decide(event.call_id, approved=True, args=event.args)
        assert waiting.text == "May I? Yes."

        stopped = await client.start("Wait", agent="puppet")
        await puppet.part()
        assert (await within(stopped.cancel())).outcome == "cancelled"
        await stopped.close()

        running = await client.start("Oslo", agent="listening")
        joined = await running.steer("Rome")
        events = await within(_all(running.events()))
        assert [event.content for event in events if isinstance(event, InputEvent)] == ["Rome"]
        assert (running.text, (await within(joined.result())).outcome) == ("Oslo. Rome.", "joined")

        session = await client.create_session("mine", title="Mine")
        assert (await client.create_session("mine")).id == session.id
        assert [past.title for past in (await client.sessions(search="Mine")).sessions] == ["Mine"]
        queued = await client.enqueue("mine", "Hi", agent="hello", idempotency_key="k1")
        assert (await client.enqueue("mine", "Hi", agent="hello", idempotency_key="k1")).id == queued.id
        assert (await client.download(f"/v1/turns/{turn.id}/log.jsonl")).count(b"\n") == turn.position


def use_everything(url: str, limits: ReconnectLimits) -> None:
    with Client(ServerAddress(url, is_local=True), limits=limits) as client:
        turn = client.start("Hi", agent="hello")
        for event in turn.events():
            if isinstance(event, TokenEvent):
                break
        assert turn.text == "Hello "
        assert [type(event) for event in turn.events()][-1] is DoneEvent
        assert (turn.text, turn.result().outcome, list(turn.events())) == ("Hello you.", "completed", [])
        assert turn.snapshot() == client.snapshot(turn.id) == client.turn(turn.id).snapshot()
        assert turn.last_event_id == f"{turn.position}.1"
        assert [type(update) for update in client.turn(turn.id).updates()] == [ReceivedEvent] * turn.position

        assert turn.fork(2, message="Again").result().text == "Hello you."
        assert client.fork(turn.id, 2, message="More").result().forked_from == turn.id
        assert turn.session_id is not None
        assert len(client.session(turn.session_id).turns) == len(client.turns(session=turn.session_id)) == 3

        waiting = client.start("Pay", agent="careful")
        for event in waiting.events():
            if isinstance(event, ApprovalRequestEvent):
                waiting.decide(event.call_id, approved=False, reason="too much")
        assert waiting.text == "May I? No."
        with pytest.raises(RefusedError) as raised:
            client.decide(waiting.id, "c1", approved=True)
        assert raised.value.code in ("approval_conflict", "turn_ended", "turn_not_waiting")

        running = client.start("Oslo", agent="listening")
        joined = running.steer("Rome")
        assert (running.result().text, joined.result().outcome) == ("Oslo. Rome.", "joined")
        stopped = client.start("Wait", agent="puppet")
        assert stopped.cancel().outcome == client.cancel(stopped.id).outcome == "cancelled"
        stopped.close()

        assert client.create_session("mine").external_id == "mine"
        assert client.enqueue("mine", "Hi", agent="hello").result().text == "Hello you."
        assert len(client.sessions(limit=10).sessions) >= 2
        assert client.request("GET", "/v1/me")["principal"] == "local"
        assert client.download(f"/v1/turns/{turn.id}/log.jsonl")
        assert client.name.endswith(url)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.sessions()


async def test_sync_client_does_the_same(tmp_path: Path) -> None:
    async with several_agents(tmp_path) as (server, _):
        await within(asyncio.to_thread(use_everything, server.url, PATIENT))


async def test_sync_client_reads_each_event_once_over_cuts(tmp_path: Path) -> None:
    chance = random.Random(11)

    def read(url: str) -> tuple[TurnHandle, list[tuple[str, str]]]:
        with Client(ServerAddress(url, is_local=True), limits=PATIENT) as client:
            turn = client.start("Hello")
            updates = list(turn.updates())
        return turn, [(update.id, update.body.decode()) for update in updates if isinstance(update, ReceivedEvent)]

    turnwire = Turnwire(saying(*("word " for _ in range(60))), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server:
        async with cutting(server, lambda: chance.randint(0, 1_200)) as (proxy, cutter):
            turn, received = await within(asyncio.to_thread(read, proxy.url))
        assert cutter.cuts >= 2
        assert received == await logged(server, turn.id)
        assert await server.written() == (1, 1)


async def test_close_ends_the_calls_of_other_threads() -> None:
    requested = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        requested.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    client = Client(
        ServerAddress(f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}", is_local=True), timeout=10 * PATIENCE
    )
    try:
        reading = asyncio.create_task(asyncio.to_thread(client.turns))
        await within(requested.wait())
        await within(asyncio.to_thread(client.close))
        with pytest.raises(RuntimeError, match="the client is closed"):
            await within(reading)
        client.close()
    finally:
        silent.close()


def test_both_clients_have_the_same_methods() -> None:
    only_async = {"draft", "send", "is_started", "is_reached"}
    for one, other in ((AsyncClient, Client), (AsyncTurnHandle, TurnHandle)):
        assert {name for name in vars(one) if not name.startswith("_")} - only_async == {
            name for name in vars(other) if not name.startswith("_")
        }


async def test_attachment_is_sent_from_a_path_or_from_bytes(tmp_path: Path) -> None:
    async def look(turn: Turn) -> str:
        return " ".join([f"{file.name} {file.media_type} {file.size}" for file in turn.attachments])

    look.takes_attachments = True  # type: ignore[attr-defined]
    path = tmp_path / "cat.png"
    path.write_bytes(b"\x89PNG")
    files = [attachment(path), attachment(b"notes", media_type="text/plain")]
    turnwire = Turnwire(look, store="memory", settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, AsyncClient(ServerAddress(server.url)) as client:
        turn = await within(client.start("Look", attachments=files))
        text = "".join(
            [
                update.event.content
                async for update in turn.updates()
                if isinstance(update, ReceivedEvent) and isinstance(update.event, TokenEvent)
            ]
        )
    assert text == "cat.png image/png 4 None text/plain 5"
