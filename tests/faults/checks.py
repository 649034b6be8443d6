"""Checks of the promises: the events that users saw against the final logs."""

import asyncio
import contextlib
import itertools
import time
from datetime import datetime
from typing import Any

import httpx
from msgspec import Struct, field

from tests.faults.cluster import LEASE, Cluster
from tests.faults.readers import BROKEN, FAILED, Reader
from tests.faults.users import SimulatedUsers, StartedTurn

# The longest time until the turns of a lost worker are closed.
TAKEOVER_SECONDS = LEASE + 3.0
_READ_SECONDS = 60.0
_WRONG_CLOCK_SECONDS = 1_000.0
_EXPLAINED = {"interrupted", "completed", "cancelled"}


async def whole(client: httpx.AsyncClient, cluster: Cluster, kind: type[Reader], turn: StartedTurn) -> Reader:
    """Read a turn without faults, within a bound."""
    reader = kind(turn.turn_id)
    with contextlib.suppress(*BROKEN):
        async with asyncio.timeout(_READ_SECONDS):
            while not reader.is_whole:
                await reader.read(cluster.nodes[0].url, client)
    return reader


class Takeovers(Struct):
    """The times until turns of lost workers were closed, and the numbers of those that had no bound."""

    seconds: list[float] = field(default_factory=list[float])
    lost_again: int = 0
    """The next worker was lost too."""
    hindered: int = 0
    """The database or all servers were down, or the machine stood still."""


async def check(users: SimulatedUsers, cluster: Cluster, takeover_seconds: float) -> tuple[list[str], Takeovers]:
    """Return the violations, and what happened to the turns of lost workers. Raises NoServerAnsweredError."""
    broken, takeovers = list(users.broken), Takeovers()
    logs: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    client = cluster.client("ann")
    for turn in users.turns:
        truths = {Reader: await whole(client, cluster, Reader, turn)}
        log = logs[turn.turn_id] = truths[Reader].frames
        if not truths[Reader].is_whole and turn.is_unattended and turn.agent == "asking":
            continue  # It waits for an approval.
        if not truths[Reader].is_whole:
            broken.append(f"turn {turn.turn_id} ({turn.agent}) has not ended: {log[-3:]}")
            continue
        broken += [
            f"turn {turn.turn_id} ({turn.agent}): {violation}"
            for violation in _check_log(turn, log, bool(cluster.full))
        ]
        for reader in turn.readers:
            if type(reader) not in truths:
                truths[type(reader)] = await whole(client, cluster, type(reader), turn)
            truth = truths[type(reader)]
            if _left_before_restart(reader, log):
                continue
            if not agree(reader, truth):
                kind = "reader" if reader.is_whole else "reader that left"
                broken.append(
                    f"turn {turn.turn_id}: a {kind} on {reader.wire} saw other events: {differ(reader, truth)}"
                )
        if (elapsed := await _takeover(users, turn, log, cluster, takeovers)) is not None:
            takeovers.seconds.append(elapsed)
            if elapsed > takeover_seconds:
                broken.append(f"turn {turn.turn_id}: {elapsed:.1f} s until the turn of a lost worker was closed")
    await client.aclose()
    broken += _check_sessions(users, logs)
    broken += await _check_counts(users)
    return broken, takeovers


def _check_log(turn: StartedTurn, log: list[tuple[str, dict[str, Any]]], is_full: bool) -> list[str]:
    broken: list[str] = []
    explained = {*_EXPLAINED, "failed"} if is_full else _EXPLAINED
    positions = [tuple(map(int, frame_id.split("."))) for frame_id, _ in log]
    if [position for position, _ in positions] != list(range(1, len(log) + 1)):
        broken.append(f"positions are not 1, 2, 3 …: {positions}")
    if any(after < before for (_, before), (_, after) in itertools.pairwise(positions)):
        broken.append(f"an epoch is smaller than the one before: {positions}")
    kinds = [event["type"] for _, event in log]
    if kinds[:2] != ["session", "message"] or kinds[-1] != "done" or kinds.count("done") != 1:
        broken.append(f"the log begins or ends wrongly: {kinds}")
    done = log[-1][1]
    words = "".join(event["content"] for event in _standing(log) if event["type"] == "token").split()
    if words != [str(number) for number in range(len(words))]:
        broken.append(f"words are missing or repeated: {' '.join(words)}")
    if done["outcome"] == "completed" and len(words) != turn.words:
        broken.append(f"it is completed with {len(words)} of {turn.words} words")
    if done["outcome"] not in explained:
        broken.append(f"it ended as {done['outcome']} ({done.get('reason')}): {log[-2][1]}")
    if done["outcome"] == "cancelled" and not _was_stopped(turn, done):
        broken.append(f"it was cancelled without a request ({done.get('reason')})")
    if turn.stopped is not None and turn.stopped != done["outcome"]:
        broken.append(f"the cancel request returned {turn.stopped}, but it ended as {done['outcome']}")
    return broken


def _was_stopped(turn: StartedTurn, done: dict[str, Any]) -> bool:
    reason = done.get("reason")
    return turn.is_stopped or reason == "superseded" or (reason == "disconnected" and turn.leaves)


def _standing(log: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the events without those that a restart made void."""
    standing: list[tuple[int, dict[str, Any]]] = []
    for frame_id, event in log:
        if event["type"] == "restart":
            standing = [(position, kept) for position, kept in standing if position <= event["from_position"]]
        standing.append((int(frame_id.split(".")[0]), event))
    return [event for _, event in standing]


def _left_before_restart(reader: Reader, log: list[tuple[str, dict[str, Any]]]) -> bool:
    """Return True if a reader may have left with events that were made void later.

    A wire that has restarts in its log keeps those events; the others leave them out for every later reader.
    """
    has_restarts = any(event["type"] == "restart" for _, event in log)
    return has_restarts and not reader.is_whole and not reader.has_restarts


def _clocks(log: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [event["data"] for _, event in log if event["type"] == "custom" and event["name"] == "clock"]


def _last_clock(log: list[tuple[str, dict[str, Any]]]) -> str:
    return [frame_id for frame_id, event in log if event["type"] == "custom" and event["name"] == "clock"][-1]


def _check_sessions(users: SimulatedUsers, logs: dict[str, list[tuple[str, dict[str, Any]]]]) -> list[str]:
    """Check that the turns of a session ran one after another."""
    broken: list[str] = []
    for session_id in users.sessions:
        turns = [turn.turn_id for turn in users.turns if turn.session_id == session_id]
        latest = 0.0
        for turn_id in turns:
            times = [clock["at"] for clock in _clocks(logs[turn_id])]
            if times and times[0] < latest:
                broken.append(f"turn {turn_id} began before its predecessor ended")
            latest = max([latest, *times])
    return broken


async def _check_counts(users: SimulatedUsers) -> list[str]:
    broken: list[str] = []
    for session_id, count in users.sessions.items():
        session = (await users.call("GET", f"/v1/sessions/{session_id}")).json()
        if len(session["turns"]) != count and session_id not in users.unsure:
            broken.append(f"session {session_id} has {len(session['turns'])} turns, and {count} were started")
    return broken


async def _takeover(
    users: SimulatedUsers,
    turn: StartedTurn,
    log: list[tuple[str, dict[str, Any]]],
    cluster: Cluster,
    takeovers: Takeovers,
) -> float | None:
    """Return how long after the loss of its worker a turn was closed; None if that is unknown.

    Turns do not count while the database or all servers were down, if the server that closed them had a wrong clock, or
    if the next worker was lost too.
    """
    clocks = _clocks(log)
    if log[-1][1].get("reason") != "worker_lost" or not clocks:
        return None
    spoken, closed = (int(frame_id.split(".")[1]) for frame_id in (_last_clock(log), log[-1][0]))
    if closed != spoken + 1:
        takeovers.lost_again += 1
        return None
    record = (await users.call("GET", f"/v1/turns/{turn.turn_id}")).json()
    ended = time.monotonic() - (time.time() - datetime.fromisoformat(record["ended_at"]).timestamp())
    node = cluster.nodes[int(clocks[-1]["node"])]
    lost = next((at for at in node.lost_at if clocks[-1]["at"] < at < ended), None)
    if lost is None or ended - lost > _WRONG_CLOCK_SECONDS:
        return None
    if any(since < ended and end > lost for since, end in [*cluster.away, *cluster.stalled]):
        takeovers.hindered += 1
        return None
    return ended - lost


def agree(reader: Reader, truth: Reader) -> bool:
    if truth.raw == FAILED and reader.raw.endswith(b"}"):
        # The turn failed while it was read; later readers get the failure before the first byte.
        return b'"error":{' in reader.raw
    if reader.is_whole:
        return (reader.frames, reader.raw) == (truth.frames, truth.raw)
    # A reader that left has seen the beginning.
    return reader.frames == truth.frames[: len(reader.frames)] and truth.raw.startswith(reader.raw)


def differ(reader: Reader, truth: Reader) -> str:
    if reader.raw or truth.raw:
        return f"{reader.raw[-200:]!r}, not {truth.raw[-200:]!r} in the log"
    for index, (seen, logged) in enumerate(zip(reader.frames, truth.frames, strict=False)):
        if seen != logged:
            return f"at {index} {seen}, the log has {logged}"
    return f"{len(reader.frames)} frames, the log has {len(truth.frames)}"


def percentile(seconds: list[float], part: float = 0.95) -> float:
    return sorted(seconds)[min(int(len(seconds) * part), len(seconds) - 1)]
