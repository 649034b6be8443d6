"""`scripts/faults`: run a fault campaign and print a table of its results."""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.campaign import FAULTS, Verdict, run_campaign
from tests.faults.channel_campaign import run_channel_campaign
from tests.faults.checks import TAKEOVER_SECONDS, percentile
from tests.faults.cluster import StoreName
from tests.faults.neighbour_campaign import NOISE, NeighbourVerdict, run_neighbour_campaign
from tests.faults.office_campaign import OfficeVerdict, office_sdks, run_office_campaign
from tests.faults.replica_campaign import run_replica_campaign


def main() -> int:
    options = _options()
    if options.agents:
        return run_against_agents(options)
    if options.channels:
        return run_against_channels(options)
    if options.neighbour:
        return run_with_neighbour(options)
    if options.replicas:
        return run_against_replicas(options)
    folder = Path(tempfile.mkdtemp(prefix="turnwire-faults-"))
    old_source = older_source(options.upgrade_from, folder) if options.upgrade_from else None
    workers = options.workers if options.store == "postgres" else 1
    print(f"seed {options.seed}; {options.store}, {workers} workers; the servers' own logs are in {folder}", flush=True)
    verdict = asyncio.run(
        run_campaign(
            seconds=options.minutes * 60,
            seed=options.seed,
            workers=workers,
            folder=folder,
            pace=options.pace,
            store=options.store,
            faults=["upgrade"] if old_source else options.only.split(",") if options.only else None,
            old_source=old_source,
            takeover_seconds=options.takeover,
            report=lambda text: print(f"  {text}", flush=True),
        )
    )
    print_report(verdict)
    return 1 if verdict.broken else 0


def older_source(commit: str, folder: Path) -> Path:
    """Return the sources of a commit of this repository."""
    archive = subprocess.run(["git", "archive", commit, "src"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder / "src"


def run_against_agents(options: argparse.Namespace) -> int:
    """Kill servers with agents of each SDK, over each store."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-faults-"))
    print(f"seed {options.seed}; the servers' own logs are in {folder}", flush=True)
    chosen = set(options.only.split(",")) if options.only else {*office_sdks(), "sqlite", "postgres"}
    sdks = [name for name in office_sdks() if name in chosen] or office_sdks()
    stores: list[StoreName] = [name for name in ("sqlite", "postgres") if name in chosen] or ["sqlite", "postgres"]
    is_broken = False
    for sdk in sdks:
        for store in stores:
            place = folder / f"{sdk}-{store}"
            place.mkdir()
            verdict = asyncio.run(
                run_office_campaign(
                    sdk,
                    store,
                    kills=options.kills,
                    seed=options.seed,
                    workers=options.workers,
                    folder=place,
                    takeover_seconds=options.takeover,
                    report=lambda text: print(f"  {text}", flush=True),
                )
            )
            print_office_report(verdict)
            is_broken = is_broken or bool(verdict.broken)
    return 1 if is_broken else 0


def run_against_channels(options: argparse.Namespace) -> int:
    """Kill the server that runs the Telegram channel, in the middle of answers."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-faults-"))
    print(f"seed {options.seed}; the servers' own logs are in {folder}", flush=True)
    verdict = asyncio.run(
        run_channel_campaign(
            kills=options.kills,
            seed=options.seed,
            servers=max(options.workers, 2),
            folder=folder,
            report=lambda text: print(f"  {text}", flush=True),
        )
    )
    rows: list[tuple[str, object]] = [
        ("kill -9 of the server with the channel", verdict.kills),
        ("answers", verdict.answers),
        ("takeovers, p50 and slowest", _times(verdict.takeovers)),
        ("violations", len(verdict.broken)),
    ]
    for name, value in rows:
        print(f"| {name} | {value} |")
    for violation in verdict.broken[:40]:
        print(f"VIOLATION: {violation}", flush=True)
    return 1 if verdict.broken else 0


def run_with_neighbour(options: argparse.Namespace) -> int:
    """Measure a principal while another one makes noise."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-faults-"))
    print(f"the server's own log is in {folder}", flush=True)
    phases = max(1, round(options.minutes * 60 / (2 * options.phase)))
    verdict = asyncio.run(
        run_neighbour_campaign(
            options.store,
            folder=folder,
            phases=phases,
            seconds=options.phase,
            report=lambda text: print(f"  {text}", flush=True),
            kinds=options.only.split(",") if options.only else (*NOISE,),
        )
    )
    print_neighbour_report(verdict)
    return 1 if verdict.broken else 0


def print_neighbour_report(verdict: NeighbourVerdict) -> None:
    print(f"\n{verdict.store}: {len(verdict.quiet.post)} quiet and {len(verdict.noisy.post)} noisy turns")
    print("| p95 | quiet | noisy | ratio |\n| --- | --- | --- | --- |")
    for name, (quiet, noisy, ratio) in verdict.ratios().items():
        print(f"| {name} | {quiet * 1000:.1f} ms | {noisy * 1000:.1f} ms | {ratio:.2f} |")
    print(f"noise: {', '.join(f'{count} × {kind}' for kind, count in sorted(verdict.noise.items()))}")
    for violation in verdict.broken:
        print(f"VIOLATION: {violation}", flush=True)


def run_against_replicas(options: argparse.Namespace) -> int:
    """Steer, answer and cancel turns from the server that does not run them, and kill servers meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-faults-"))
    print(f"seed {options.seed}; the servers' own data are in {folder}", flush=True)
    verdict = asyncio.run(
        run_replica_campaign(
            repetitions=options.repetitions,
            kills=random.Random(options.seed).sample(range(options.repetitions), options.repetitions // 5),
            seed=options.seed,
            folder=folder,
            report=lambda text: print(f"  {text}", flush=True),
        )
    )
    every = [second for seconds in verdict.seconds.values() for second in seconds]
    rows: list[tuple[str, object]] = [
        *((f"{action}: p50, p95, slowest", _percentiles(seconds)) for action, seconds in verdict.seconds.items()),
        ("all: p50, p95, slowest", _percentiles(every)),
        ("kill -9", verdict.kills),
        ("requests repeated", verdict.repeated),
        ("violations", len(verdict.broken)),
    ]
    for name, value in rows:
        print(f"| {name} | {value} |")
    for violation in verdict.broken[:40]:
        print(f"VIOLATION: {violation}", flush=True)
    return 1 if verdict.broken else 0


def _percentiles(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    values = [percentile(seconds, 0.5), percentile(seconds, 0.95), max(seconds)]
    return ", ".join(f"{value * 1000:.0f} ms" for value in values) + f" ({len(seconds)})"


def print_office_report(verdict: OfficeVerdict) -> None:
    rows: list[tuple[str, object]] = [
        ("kill -9", verdict.kills),
        ("rolling restarts", verdict.restarts),
        ("turns", verdict.turns),
        ("… that were continued", verdict.continued),
        ("… that never got further and were closed", verdict.closed),
        ("model requests", verdict.requests),
        ("tool runs", verdict.tool_runs),
        ("repeats that a person allowed", verdict.repeats),
        ("takeovers, p50 and slowest", _times(verdict.takeovers)),
        ("… not timed: a server that was not killed lost its lease", verdict.hindered),
        ("violations", len(verdict.broken)),
    ]
    print(f"\n{verdict.sdk}, {verdict.store}, seed {verdict.seed}")
    for name, value in rows:
        print(f"| {name} | {value} |")
    for violation in verdict.broken[:40]:
        print(f"VIOLATION: {violation}", flush=True)


def print_report(verdict: Verdict) -> None:
    rows: list[tuple[str, object]] = [
        *((f"fault: {name}", count) for name, count in sorted(verdict.faults.items())),
        ("turns", verdict.turns),
        *((f"… {outcome}", count) for outcome, count in sorted(verdict.outcomes.items())),
        ("events seen by readers of the log", verdict.events),
        ("readers", verdict.readers),
        ("reconnects", verdict.reconnects),
        ("resets", verdict.resets),
        ("starts repeated", verdict.repeated),
        ("requests of another principal, refused", verdict.strangers),
        ("cancels, p50 and slowest", _times(verdict.stops)),
        ("takeovers, p50 and slowest", _times(verdict.takeovers.seconds)),
        ("… not timed: the next worker was lost too", verdict.takeovers.lost_again),
        ("… not timed: no database, no server, or a machine that stood still", verdict.takeovers.hindered),
        ("requests that no server answered in time", len(verdict.unanswered)),
        ("violations", len(verdict.broken)),
    ]
    print(f"\nseed {verdict.seed}")
    for name, value in rows:
        print(f"| {name} | {value} |")
    for request in verdict.unanswered[:10]:
        print(f"no server answered: {request}")
    for violation in verdict.broken[:40]:
        print(f"VIOLATION: {violation}")


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} s, {ordered[-1]:.2f} s ({len(ordered)})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long faults are injected (default: 0.5)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="the seed of the random choices")
    parser.add_argument("--workers", type=int, default=4, help="the number of server processes (default: 4)")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds between two faults (default: 1)")
    parser.add_argument(
        "--only",
        default="",
        help=f"only these, separated by commas: {', '.join(FAULTS)}; with --agents, SDKs and stores",
    )
    parser.add_argument(
        "--takeover",
        type=float,
        default=TAKEOVER_SECONDS,
        help=f"the longest time until the turns of a lost worker are closed (default: {TAKEOVER_SECONDS:g} s)",
    )
    parser.add_argument(
        "--upgrade-from",
        default="",
        metavar="COMMIT",
        help="start with servers of this commit, and replace them one by one",
    )
    parser.add_argument("--agents", action="store_true", help="kill servers with agents of each SDK, over each store")
    parser.add_argument(
        "--channels", action="store_true", help="kill the server that runs the Telegram channel, on PostgreSQL"
    )
    parser.add_argument(
        "--neighbour", action="store_true", help="measure a principal while another one makes noise, over --store"
    )
    parser.add_argument("--phase", type=float, default=10.0, help="with --neighbour: seconds of a phase (default: 10)")
    parser.add_argument(
        "--store",
        choices=("postgres", "sqlite"),
        default="postgres",
        help="the servers' store (default: postgres)",
    )
    parser.add_argument(
        "--replicas", action="store_true", help="talk into turns from the server that does not run them, on PostgreSQL"
    )
    parser.add_argument("--repetitions", type=int, default=200, help="with --replicas: how often (default: 200)")
    parser.add_argument(
        "--kills", type=int, default=200, help="with --agents: kills for each SDK and store; with --channels: in all"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
