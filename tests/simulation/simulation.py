"""One simulation: servers, their database, their users and faults, all chosen by one seed; and what must hold."""

import asyncio
import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise

from msgspec import Struct, field

from tests.simulation.agents import AgentWorld, expected_text
from tests.simulation.cluster import LEASE, LIMITS, Cluster, Server
from tests.simulation.ledger import TurnEntry
from tests.simulation.loop import SimulatedLoop, StuckError, simulated_clock
from tests.simulation.store import Database, FaultRates
from tests.simulation.users import PRINCIPAL, Users
from turnwire.core.log.events import ApprovalRequestEvent, ApprovalResponseEvent
from turnwire.core.log.state import TurnFold

_HEALING_SECONDS = 90.0
_READING_SECONDS = 30.0


class Result(Struct):
    """The findings and the history of one simulation."""

    seed: int
    broken: list[str]
    trace: list[str]
    steps: int
    seconds: float
    turns: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.chooser = random.Random(seed)
        self.loop = SimulatedLoop(random.Random(seed + 1))

    def note(self, *facts: object) -> None:
        self.trace.append(f"{self.loop.now:.4f} {' '.join(map(str, facts))}")

    def run(self) -> Result:
        broken: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(simulated_clock(self.loop, self.seed))
            logging.disable(logging.CRITICAL)
            stack.callback(logging.disable, logging.NOTSET)
            if gc.isenabled():
                gc.disable()  # When garbage is collected must not change what happens.
                stack.callback(gc.enable)
            try:
                self.loop.run(self._main())
            except StuckError as error:
                broken.append(f"the simulation is stuck: {error}")
        broken += self.database.ledger.broken + self.loop.errors
        turns = Counter(turn.outcome or turn.phase for turn in self.database.ledger.turns.values())
        return Result(self.seed, broken, self.trace, self.loop.steps, self.loop.now - 1000.0, turns, self.faults)

    async def _main(self) -> None:
        chooser = self.chooser
        self.database = database = Database(self.loop, chooser, LEASE, self.note)
        self.ledger = ledger = database.ledger
        world = AgentWorld(chooser, ledger, self.note)
        self.cluster = cluster = Cluster(self.loop, chooser, database, world, LIMITS)
        for _ in range(chooser.randint(1, 3)):
            cluster.start()
        self.users = users = Users(chooser, cluster, ledger, self.note)
        for number in range(chooser.randint(1, 3)):
            session, _ = await database.engine.ensure_session(PRINCIPAL, None, None)
            users.spawn(users.talk(session.id, number))
        users.spawn(users.approve())
        await self._make_faults()
        await self._heal()
        await self._wait(_HEALING_SECONDS, lambda: self._has_settled())
        await self._check_liveness()
        await self._wait(_READING_SECONDS, lambda: all(reader.is_done for reader in users.readers))
        users.gives_up = True
        self._check_users()
        for turn in ledger.turns.values():
            self._check_log(turn)
        self._check_inputs()

    async def _wait(self, seconds: float, is_reached: Callable[[], bool]) -> None:
        deadline = self.loop.now + seconds
        while self.loop.now < deadline and not is_reached():  # noqa: ASYNC110 - simulated time costs nothing.
            await asyncio.sleep(0.25)

    # Faults

    async def _make_faults(self) -> None:
        chooser, rates = self.chooser, self.database.rates
        rates.fail = chooser.choice((0, 0, 0.02, 0.1))
        rates.lose_answer = chooser.choice((0, 0, 0.02, 0.1))
        rates.slow = chooser.choice((0, 0.02, 0.1))
        rates.lose_wake = chooser.choice((0, 0.1, 0.5))
        names = ("kill", "kill", "pause", "pause", "cut", "cut", "jump_clock", "terminate", "expire", "calm")
        end = self.loop.now + chooser.uniform(1.0, 6.0)
        while self.loop.now < end:
            await asyncio.sleep(chooser.uniform(0.05, 1.2))
            if not self.cluster.servers:
                continue
            name = chooser.choice(names)
            self.faults[name] += 1
            server = self.cluster.any_server()
            self.note("fault", name, server.process.name)
            match name:
                case "kill":
                    self.cluster.kill(server)
                    self._start_later()
                case "pause":
                    self._pause(server)
                case "cut":
                    server.store.is_cut = True
                    self.loop.call_later(chooser.uniform(0.1, 2 * LEASE), server.store.mend)
                case "jump_clock":
                    server.process.clock_skew = chooser.uniform(-3600, 3600)
                case "terminate":
                    self._start_later()
                    self.users.spawn(self.cluster.terminate(server))
                case "expire":
                    await self._expire()
                case _:
                    pass

    def _start_later(self) -> None:
        if len(self.cluster.servers) < 2 or self.chooser.random() < 0.3:
            self.cluster.start()
        else:
            self.loop.call_later(self.chooser.uniform(0.1, 3.0), self.cluster.start)

    def _pause(self, server: Server) -> None:
        server.process.is_paused = True
        self.loop.call_later(self.chooser.uniform(0.1, 2.5 * LEASE), setattr, server.process, "is_paused", False)

    async def _expire(self) -> None:
        """Drop the events of all turns that have ended."""
        for turn in self.ledger.turns.values():
            if turn.has_ended:
                turn.is_retained = False
        await self.database.engine.maintain(expire_before=2**60)

    async def _heal(self) -> None:
        self.note("healed")
        self.database.rates = FaultRates()
        if not self.cluster.servers:
            self.cluster.start()
        for server in self.cluster.servers:
            server.store.mend()
            server.process.is_paused = False

    def _has_settled(self) -> bool:
        talking = self.users.tasks
        is_starting = any(not task.done() for task in talking if "talk" in str(task.get_coro()))
        return not is_starting and not self.ledger.unfinished()

    # Checks at the end

    async def _check_liveness(self) -> None:
        for turn in self.ledger.unfinished():
            self.ledger.broken.append(
                f"{turn.id} ({turn.agent}) is {turn.phase} under {turn.owner} {_HEALING_SECONDS:g} s after the last"
                f" fault: {[logged.type for logged in turn.log[-4:]]}"
            )
        for turn in await self.database.engine.list_turns(PRINCIPAL, limit=1_000_000):
            entry = self.ledger.turns[turn.id]
            if turn.phase != entry.phase:
                self.ledger.broken.append(f"{entry.id} is {turn.phase}, and should be {entry.phase}")

    def _check_users(self) -> None:
        broken, users = self.ledger.broken, self.users
        for task in users.tasks:
            if task.done() and (error := task.exception()) is not None:
                broken.append(f"a user failed: {error!r}")
        for reader in users.readers:
            if not reader.is_done and reader.entry.has_ended:
                broken.append(f"{reader.turn.id}: a reader on {reader.wire.name} did not get to the end")
        for decided in users.decided:
            log = self.ledger.turns[decided.turn_id].log
            answers = [logged.event for logged in log if isinstance(logged.event, ApprovalResponseEvent)]
            if not any((each.call_id, each.approved) == (decided.call_id, decided.approved) for each in answers):
                broken.append(f"{decided.turn_id}: the acknowledged decision about {decided.call_id} is lost")
        for turn in users.turns:
            entry = self.ledger.turns[turn.id]
            done = entry.log[-1]
            if entry.outcome == "cancelled":
                reason = getattr(done.event, "reason", None)
                wanted = turn.is_cancelled or reason == "superseded" or (turn.leaves and reason == "disconnected")
                if not wanted:
                    broken.append(f"{turn.id} was cancelled ({reason}), and nobody wanted that")

    def _check_log(self, turn: TurnEntry) -> None:
        broken, log = self.ledger.broken, turn.log
        kinds = [logged.type for logged in log]
        if [logged.position for logged in log] != list(range(1, len(log) + 1)):
            broken.append(f"{turn.id}: positions are not 1, 2, 3 …")
        if any(after.epoch < before.epoch for before, after in pairwise(log)):
            broken.append(f"{turn.id}: an epoch is smaller than the one before")
        if turn.has_ended and (kinds.count("done") != 1 or kinds[-1] != "done"):
            broken.append(f"{turn.id}: {kinds.count('done')} times done")
        fold = TurnFold()
        for logged in log:
            fold.add(logged)
        requests = Counter(each.event.call_id for each in log if isinstance(each.event, ApprovalRequestEvent))
        answers = Counter(each.event.call_id for each in log if isinstance(each.event, ApprovalResponseEvent))
        if answers - requests:
            broken.append(f"{turn.id}: more decisions than requests: {answers - requests}")
        if turn.outcome == "completed":
            self._check_answer(turn, fold)

    def _check_answer(self, turn: TurnEntry, fold: TurnFold) -> None:
        text, messages = fold.text, [each for each in fold.inputs if each.mode == "steer"]
        for message in messages:
            if turn.agent == "journaled" and text.count(f"[{message.content}]") != 1:
                self.ledger.broken.append(f"{turn.id}: {message.content!r} is not once in {text!r}")
            text = text.replace(f"[{message.content}]", "")
        if text != expected_text(turn.message):
            self.ledger.broken.append(f"{turn.id}: completed with {text!r} for {turn.message!r}")

    def _check_inputs(self) -> None:
        """Check that every message that entered a turn entered one turn once, and did not run on its own."""
        entered = Counter(event.turn_id for _, event in self.ledger.inputs())
        for turn_id, count in entered.items():
            if count > 1:
                self.ledger.broken.append(f"the message of {turn_id} entered turns {count} times")
            if self.ledger.turns[turn_id].outcome not in ("joined", "cancelled"):
                outcome = self.ledger.turns[turn_id].outcome
                self.ledger.broken.append(f"the message of {turn_id} entered a turn, and it ended as {outcome}")
        for turn in self.ledger.turns.values():
            if turn.outcome == "joined" and not entered[turn.id]:
                self.ledger.broken.append(f"{turn.id} ended as joined, and entered no turn")


def simulate(seed: int) -> Result:
    return Simulation(seed).run()


def first_failure(seeds: int, first: int = 0) -> Result | None:
    """Return the result of the first seed that breaks something."""
    for seed in range(first, first + seeds):
        result = simulate(seed)
        if result.broken:
            return result
        if seed % 20 == 19:
            gc.collect()
    return None
