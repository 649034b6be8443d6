"""The promises, checked from the outside: by what people were shown, against what the logs say in the end."""

import asyncio
import contextlib
import itertools
import time
from datetime import datetime
from typing import Any

import httpx

from tests.faults.cluster import LEASE, Cluster
from tests.faults.people import Asked, People
from tests.faults.readers import BROKEN, FAILED, Reader

# What a worker that was lost may take until somebody else has closed its turns.
TAKEOVER_SECONDS = LEASE + 3.0
_READ_SECONDS = 5.0
_WRONG_CLOCK_SECONDS = 1_000.0
_EXPLAINED = {"interrupted", "completed", "cancelled"}


async def whole(client: httpx.AsyncClient, cluster: Cluster, kind: type[Reader], asked: Asked) -> Reader:
    """What a reader is shown who is not disturbed, and does not wait for long."""
    reader = kind(asked.turn_id)
    with contextlib.suppress(*BROKEN):
        async with asyncio.timeout(_READ_SECONDS):
            while not reader.is_whole:
                await reader.read(cluster.nodes[0].url, client)
    return reader


async def check(people: People, cluster: Cluster) -> tuple[list[str], list[float]]:
    """What is wrong, and how long it took to close the turns of lost workers."""
    broken, takeovers = list(people.broken), []
    logs: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    client = cluster.client("ann")
    for asked in people.asked:
        truths = {Reader: await whole(client, cluster, Reader, asked)}
        log = logs[asked.turn_id] = truths[Reader].frames
        if not truths[Reader].is_whole:
            broken.append(f"turn {asked.turn_id} ({asked.agent}) has not ended: {log[-3:]}")
            continue
        broken += [
            f"turn {asked.turn_id} ({asked.agent}): {what}" for what in _check_log(asked, log, bool(cluster.full))
        ]
        for reader in asked.readers:
            if type(reader) not in truths:
                truths[type(reader)] = await whole(client, cluster, type(reader), asked)
            truth = truths[type(reader)]
            if not _agree(reader, truth):
                broken.append(
                    f"turn {asked.turn_id}: a reader on {reader.wire} saw something else: {_differ(reader, truth)}"
                )
        if (took := await _takeover(people, asked, log, cluster)) is not None:
            takeovers.append(took)
            if took > TAKEOVER_SECONDS:
                broken.append(f"turn {asked.turn_id}: {took:.1f} s until the turn of a lost worker was closed")
    await client.aclose()
    broken += _check_sessions(people, logs)
    broken += await _check_counts(people)
    return broken, takeovers


def _check_log(asked: Asked, log: list[tuple[str, dict[str, Any]]], is_full: bool) -> list[str]:
    broken: list[str] = []
    explained = {*_EXPLAINED, "failed"} if is_full else _EXPLAINED
    places = [tuple(map(int, frame_id.split("."))) for frame_id, _ in log]
    if [position for position, _ in places] != list(range(1, len(log) + 1)):
        broken.append(f"positions are not 1, 2, 3 …: {places}")
    if any(after < before for (_, before), (_, after) in itertools.pairwise(places)):
        broken.append(f"an epoch is smaller than the one before: {places}")
    kinds = [event["type"] for _, event in log]
    if kinds[:2] != ["session", "message"] or kinds[-1] != "done" or kinds.count("done") != 1:
        broken.append(f"it does not begin or end as it must: {kinds}")
    done = log[-1][1]
    words = "".join(event["content"] for event in _standing(log) if event["type"] == "token").split()
    if words != [str(number) for number in range(len(words))]:
        broken.append(f"words are missing or doubled: {' '.join(words)}")
    if done["outcome"] == "completed" and len(words) != asked.words:
        broken.append(f"it is said to be complete with {len(words)} of {asked.words} words")
    if done["outcome"] not in explained:
        broken.append(f"it ended as {done['outcome']} ({done.get('reason')}): {log[-2][1]}")
    if done["outcome"] == "cancelled" and not _was_stopped(asked, done):
        broken.append(f"nobody stopped it, and it was cancelled ({done.get('reason')})")
    if asked.stopped is not None and asked.stopped != done["outcome"]:
        broken.append(f"who stopped it was told {asked.stopped}, and it ended as {done['outcome']}")
    return broken


def _was_stopped(asked: Asked, done: dict[str, Any]) -> bool:
    reason = done.get("reason")
    return asked.is_stopped or reason == "superseded" or (reason == "disconnected" and asked.leaves)


def _standing(log: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Without what a restart has made void."""
    standing: list[tuple[int, dict[str, Any]]] = []
    for frame_id, event in log:
        if event["type"] == "restart":
            standing = [one for one in standing if one[0] <= event["from_position"]]
        standing.append((int(frame_id.split(".")[0]), event))
    return [event for _, event in standing]


def _clocks(log: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [event["data"] for _, event in log if event["type"] == "custom" and event["name"] == "clock"]


def _last_clock(log: list[tuple[str, dict[str, Any]]]) -> str:
    return [frame_id for frame_id, event in log if event["type"] == "custom" and event["name"] == "clock"][-1]


def _check_sessions(people: People, logs: dict[str, list[tuple[str, dict[str, Any]]]]) -> list[str]:
    """One turn at a time: what an agent said in one is before all that one said in the next."""
    broken: list[str] = []
    for session_id in people.sessions:
        turns = [asked.turn_id for asked in people.asked if asked.session_id == session_id]
        latest = 0.0
        for turn_id in turns:
            times = [clock["at"] for clock in _clocks(logs[turn_id])]
            if times and times[0] < latest:
                broken.append(f"turn {turn_id} began before the one before it had ended")
            latest = max([latest, *times])
    return broken


async def _check_counts(people: People) -> list[str]:
    broken: list[str] = []
    for session_id, count in people.sessions.items():
        found = (await people.call("GET", f"/v1/sessions/{session_id}")).json()
        if len(found["turns"]) != count and session_id not in people.unsure:
            broken.append(f"session {session_id} has {len(found['turns'])} turns, and {count} were started")
    return broken


async def _takeover(
    people: People, asked: Asked, log: list[tuple[str, dict[str, Any]]], cluster: Cluster
) -> float | None:
    """How long after its worker was lost a turn was closed; None if that is not known.

    One in whose time there was no database, no server that was well, or no machine that moved, does not count, nor one
    that was closed by a server whose clock is wrong, or that whoever took it over first was lost with, too.
    """
    clocks = _clocks(log)
    if log[-1][1].get("reason") != "worker_lost" or not clocks:
        return None
    spoken, closed = (int(frame_id.split(".")[1]) for frame_id in (_last_clock(log), log[-1][0]))
    if closed != spoken + 1:
        return None
    found = (await people.call("GET", f"/v1/turns/{asked.turn_id}")).json()
    ended = time.monotonic() - (time.time() - datetime.fromisoformat(found["ended_at"]).timestamp())
    node = cluster.nodes[int(clocks[-1]["node"])]
    lost = next((at for at in node.lost_at if clocks[-1]["at"] < at < ended), None)
    if lost is None or ended - lost > _WRONG_CLOCK_SECONDS:
        return None
    hindered = any(since < ended and end > lost for since, end in [*cluster.away, *cluster.stalled])
    return None if hindered else ended - lost


def _agree(reader: Reader, truth: Reader) -> bool:
    if truth.raw == FAILED and reader.raw.endswith(b"}"):
        # It was read while it ran, and failed later; who comes after that is told so before the first byte.
        return b'"error":{' in reader.raw
    if reader.is_whole:
        return (reader.frames, reader.raw) == (truth.frames, truth.raw)
    # Somebody who has left, and had seen the beginning.
    return reader.frames == truth.frames[: len(reader.frames)] and truth.raw.startswith(reader.raw)


def _differ(reader: Reader, truth: Reader) -> str:
    if reader.raw or truth.raw:
        return f"{reader.raw[-200:]!r}, and there is {truth.raw[-200:]!r}"
    for place, (seen, there) in enumerate(zip(reader.frames, truth.frames, strict=False)):
        if seen != there:
            return f"at {place} {seen}, and there is {there}"
    return f"{len(reader.frames)} frames, and there are {len(truth.frames)}"
