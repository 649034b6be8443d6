"""The users of a simulation: they start turns, read them on several wires, cancel, approve and send messages into them.

A reader checks what it is shown at the moment when it is shown: it must be committed, and be the next.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from msgspec import Struct

from tests.simulation.cluster import LIMITS, Cluster, Server, ServerLostError
from tests.simulation.ledger import Ledger, TurnEntry
from turnwire.core.contracts.wires import Reset, Wire
from turnwire.core.errors import TurnwireError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import RestartEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.run.runner import TurnRequest
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.messages import Cursor
from turnwire.server.streams.connection import BrokenStreamError
from turnwire.server.streams.resume import BYTES, ResumePoint, find_point, is_in_log, settled_encoder, void_of
from turnwire.server.streams.stream import Stream, TurnSource
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.openai.chat.encoder import OpenAIChat
from turnwire.wires.sse_chat.encoder import SseChat
from turnwire.wires.three_phase_text.encoder import ThreePhaseText

PRINCIPAL = "user"
_WIRES: tuple[Wire, ...] = (AgUi(), AiSdk(), OpenAIChat(), ThreePhaseText())
_SSE = SseChat()
_REQUEST = SimpleNamespace(caller=Caller(PRINCIPAL, ("read",)), added=[], root="", route="/v1/turns/{id}/events")
_REFUSALS = (ServerLostError, BrokenStreamError, TurnwireError, HttpError)


class StartedTurn(Struct):
    """A turn that a user has started."""

    id: str
    message: str
    on_busy: str
    leaves: bool
    is_cancelled: bool = False


class Decided(Struct, frozen=True):
    """A decision that a server has acknowledged."""

    turn_id: str
    call_id: str
    approved: bool


class Users:
    """Everything that people do to the servers."""

    def __init__(self, chooser: random.Random, cluster: Cluster, ledger: Ledger, trace: Callable[..., None]) -> None:
        self.turns: list[StartedTurn] = []
        self.decided: list[Decided] = []
        self.readers: list[Reader] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.gives_up = False
        self._chooser = chooser
        self._cluster = cluster
        self._ledger = ledger
        self._trace = trace

    def spawn(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.create_task(coroutine))

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self._chooser.uniform(0.01, longest))

    # Turns

    async def talk(self, session_id: str, number: int) -> None:
        """Start the turns of a session, one after another, without waiting for their ends."""
        for index in range(self._chooser.randint(1, 3)):
            await self._start(session_id, f"{number}-{index}")
            await self._pause(1.0)

    async def _start(self, session_id: str, key: str) -> None:
        chooser = self._chooser
        agent = chooser.choice(("journaled", "journaled", "plain", "asking"))
        on_busy = chooser.choice(("enqueue", "enqueue", "steer", "steer", "interrupt", "collect"))
        word = "slow" if chooser.random() < 0.2 else "turn"
        request = TurnRequest(
            principal=PRINCIPAL,
            session_id=session_id,
            message=f"{word}{key}:{chooser.randint(2, 6)}",
            agent=agent if on_busy not in ("steer", "collect") else None,
            idempotency_key=key,
            on_busy=on_busy,
            disconnect_grace=0.2 if chooser.random() < 0.1 else None,
        )
        ids: set[str] = set()
        while not ids or chooser.random() < 0.15:  # Now and then a request is repeated.
            with suppress(*_REFUSALS):
                accepted = await self._cluster.any_server().call(lambda server: server.runner.start(request))
                ids.add(accepted.record.id)
            await self._pause(0.4)
        if len(ids) > 1:
            self._ledger.broken.append(f"the key {key} started {len(ids)} turns")
        turn = StartedTurn(ids.pop(), request.message, on_busy, request.disconnect_grace is not None)
        self.turns.append(turn)
        self._use(turn)

    def _use(self, turn: StartedTurn) -> None:
        chooser = self._chooser
        reader = PositionReader(turn, self._cluster, self._ledger, chooser)
        readers: list[Reader] = [reader]
        if chooser.random() < 0.5:
            readers.append(ByteReader(turn, chooser.choice(_WIRES), self._cluster, self._ledger, chooser))
        for each in readers:
            self.readers.append(each)
            self.spawn(each.read())
        if chooser.random() < 0.25:
            self.spawn(self._cancel(turn))

    async def _cancel(self, turn: StartedTurn) -> None:
        await self._pause(2.5)
        turn.is_cancelled = True
        while not self.gives_up:
            began = asyncio.get_running_loop().time()
            with suppress(*_REFUSALS):
                await self._cluster.any_server().call(lambda server: server.runner.cancel(turn.id), timeout=30.0)
                took = asyncio.get_running_loop().time() - began
                has_ended = self._ledger.turns[turn.id].has_ended
                self._trace("user", "cancelled", turn.id, has_ended)
                if not has_ended and took < LIMITS.cancel_patience + 2 * LIMITS.lease:
                    self._ledger.broken.append(f"the cancel of {turn.id} was acknowledged after {took:.2f} s: it runs")
                if not has_ended and turn.id not in self._ledger.commanded:
                    self._ledger.broken.append(f"the cancel of {turn.id} was acknowledged, and is not durable")
                return
            await self._pause(0.5)

    # Approvals

    async def approve(self) -> None:
        """Decide about everything that turns wait for; often twice, at two servers, and not always alike."""
        while not self.gives_up:
            await self._pause(0.6)
            for turn in [each for each in self._ledger.turns.values() if each.phase == "waiting"]:
                fold = TurnFold()
                for logged in turn.log:
                    fold.add(logged)
                for request in fold.requests.undecided:
                    verdicts = [self._chooser.random() < 0.7 for _ in range(self._chooser.choice((1, 1, 2)))]
                    await asyncio.gather(*(self._decide(turn.id, request.call_id, verdict) for verdict in verdicts))

    async def _decide(self, turn_id: str, call_id: str, approved: bool) -> None:
        with suppress(*_REFUSALS):
            server = self._cluster.any_server()
            await server.call(lambda server: server.runner.decide(turn_id, call_id, approved=approved))
            self.decided.append(Decided(turn_id, call_id, approved))
            self._trace("user", "decided", turn_id, call_id, approved)


class Reader:
    """A user who reads a turn until its end, over as many connections as it takes."""

    wire: Wire

    def __init__(self, turn: StartedTurn, cluster: Cluster, ledger: Ledger, chooser: random.Random) -> None:
        self.turn = turn
        self.is_done = False
        self._cluster = cluster
        self._ledger = ledger
        self._chooser = chooser

    @property
    def entry(self) -> TurnEntry:
        return self._ledger.turns[self.turn.id]

    async def read(self) -> None:
        while not self.is_done:
            channel = _Channel(self, self._chooser)
            leave = None
            if self._chooser.random() < 0.3 and not self.turn.leaves:
                leave = asyncio.get_running_loop().call_later(self._chooser.uniform(0.05, 2.0), channel.leave)
            try:
                await self._cluster.any_server().call(lambda server, c=channel: self._serve(server, c), timeout=200)
            except HttpError as error:
                self.refused(error)
            except _REFUSALS:
                self.broken_off()
            else:
                if channel.has_ended:
                    self.ended()
                else:
                    self.broken_off()
            channel.leave()
            if leave is not None:
                leave.cancel()
            await asyncio.sleep(self._chooser.uniform(0.02, 0.5))

    async def _serve(self, server: Server, channel: "_Channel") -> None:
        record = await server.store.find_turn(PRINCIPAL, self.turn.id)
        point = await self.point(server, record)
        if point is None:
            return
        source = TurnSource(server.hub, record, point)
        stream = Stream(cast(Any, _REQUEST), cast(Any, server.services), self.wire, source, [], record)
        await stream.run(channel.receive, channel.send)

    async def point(self, server: Server, record: Any) -> ResumePoint | None:
        raise NotImplementedError

    def take(self, body: bytes) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        """Take note that the server has ended the stream."""

    def broken_off(self) -> None:
        """Take note that the stream broke."""

    def refused(self, error: HttpError) -> None:
        """Take note that the server has refused the stream."""


class _Channel:
    """One connection of a reader: what an ASGI server is to the app."""

    def __init__(self, reader: Reader, chooser: random.Random) -> None:
        self.has_ended = False
        self._reader = reader
        self._chooser = chooser
        self._left = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    async def receive(self) -> dict[str, Any]:
        await asyncio.shield(self._left)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] != "http.response.body" or self._left.done():
            return
        self._reader.take(message["body"])
        self.has_ended = not message["more_body"]
        if self._chooser.random() < 0.1:
            await asyncio.sleep(self._chooser.uniform(0.01, 0.5))  # A slow reader.


class PositionReader(Reader):
    """A reader of `sse_chat`, which resumes by position and epoch."""

    wire = _SSE

    def __init__(self, turn: StartedTurn, cluster: Cluster, ledger: Ledger, chooser: random.Random) -> None:
        super().__init__(turn, cluster, ledger, chooser)
        self.position = 0
        self.epoch: int | None = None

    async def point(self, server: Server, record: Any) -> ResumePoint | None:
        cursor = Cursor(self.position, self.epoch)
        if not await is_in_log(cast(Any, server.store), record, cursor):
            return ResumePoint(control=Reset())
        return ResumePoint(cursor.position)

    def take(self, body: bytes) -> None:
        for frame in body.split(b"\n\n")[:-1]:
            if frame.startswith(b"id: "):
                self._take_event(frame)
            else:
                self._take_control(frame)

    def _take_control(self, frame: bytes) -> None:
        control = msgspec.json.decode(frame.partition(b"data: ")[2] or b"{}")
        match control.get("type"):
            case "gap":
                if self.entry.is_retained or control["after"] != self.position:
                    self._ledger.broken.append(f"{self.turn.id}: a gap after {control['after']}, not {self.position}")
                self.position, self.epoch = control["first_kept"] - 1, None
            case "reset":
                self._ledger.broken.append(f"{self.turn.id}: a reset after {self.position}, but nothing was lost")
            case _:
                pass

    def _take_event(self, frame: bytes) -> None:
        head, _, body = frame.partition(b"\ndata: ")
        position, epoch = map(int, head[4:].split(b"."))
        if self.is_done or position != self.position + 1:
            self._ledger.broken.append(f"{self.turn.id}: a reader at {self.position} was sent {position}")
        if not self.entry.holds(position, epoch, body):
            self._ledger.broken.append(f"{self.turn.id}: {position}.{epoch} was shown and is not committed")
        self.position, self.epoch = position, epoch
        self.is_done = body.startswith(b'{"type":"done"')


class ByteReader(Reader):
    """A reader of a wire that keeps state: from the start each time, or by byte if it is a text wire."""

    def __init__(self, turn: StartedTurn, wire: Wire, cluster: Cluster, ledger: Ledger, chooser: random.Random) -> None:
        super().__init__(turn, cluster, ledger, chooser)
        self.wire = wire
        self.body = b""
        self.resumes = wire.name == ThreePhaseText.name

    async def point(self, server: Server, record: Any) -> ResumePoint | None:
        store = cast(Any, server.store)
        if self.resumes and self.body:
            point = await find_point(store, record.id, self.wire, BYTES, len(self.body))
            return None if point.is_end and not point.rest else point
        self.body = b""
        return ResumePoint(void=await void_of(store, record.id))

    def take(self, body: bytes) -> None:
        self.body += body

    def ended(self) -> None:
        self._check()

    def broken_off(self) -> None:
        if self.resumes and self.entry.has_ended:
            self._check(is_whole=False)  # Nothing was left to send, perhaps.

    def _check(self, *, is_whole: bool = True) -> None:
        expected = encoded(self.wire, self.entry.log)
        if self.entry.has_ended and self.body == expected:
            self.is_done = True
        elif is_whole and not expected.startswith(self.body):
            at = next((i for i, (a, b) in enumerate(zip(self.body, expected, strict=False)) if a != b), len(expected))
            shown, logged = self.body[max(0, at - 60) : at + 60], expected[max(0, at - 60) : at + 60]
            self._ledger.broken.append(f"{self.turn.id} on {self.wire.name}: {shown!r} was shown, not {logged!r}")

    def refused(self, error: HttpError) -> None:
        if error.status == 410:
            self.is_done = not self.entry.is_retained
        elif error.status == 416:
            self.body = self.body[: msgspec.json.decode(error.body)["error"]["size"]]


def encoded(wire: Wire, log: list[LoggedEvent]) -> bytes:
    """Return a log on a wire, without what restarts have made void; with the pause of a turn that waits."""
    void: tuple[range, ...] = ()
    while span := _first_restart(log, void):
        void = (*void, span)
    encoder = settled_encoder(wire, void)
    body = b"".join(encoder.frame(logged) for logged in log)
    return body if log[-1].is_last else body + encoder.pause()


def _first_restart(log: list[LoggedEvent], void: tuple[range, ...]) -> range | None:
    for logged in log:
        if logged.type == "restart" and not any(logged.position in span for span in void):
            assert isinstance(logged.event, RestartEvent)
            return range(logged.event.from_position + 1, logged.position + 1)
    return None
