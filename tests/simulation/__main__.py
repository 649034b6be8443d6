"""The command `scripts/simulate`."""

import argparse
import gc
import sys
import time
from collections import Counter

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import Result, first_failure, simulate

_TRACE_LINES = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="the number of seeds to run (500)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--trace", type=int, default=_TRACE_LINES, help="the lines of a trace to print (40; 0 is all)")
    parser.add_argument(
        "--mutate", choices=[*MUTATIONS, "all"], help="take a guard out, and find the first seed that fails"
    )
    options = parser.parse_args()
    if options.mutate:
        return mutate(list(MUTATIONS) if options.mutate == "all" else [options.mutate], options.seeds)
    if options.seed is not None:
        result = simulate(options.seed)
        print("\n".join(result.trace[-options.trace :]))
        print(f"seed {result.seed}: {result.steps} steps, {result.seconds:.1f} s, digest {result.digest[:16]}")
        print(f"turns: {dict(result.turns)}; faults: {dict(result.faults)}")
        return report([result], options.trace)
    began, failed = time.process_time(), list[Result]()
    turns: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        result = simulate(seed)
        turns += result.turns
        faults += result.faults
        if result.broken:
            failed.append(result)
            report([result], options.trace)
            if len(failed) >= 5:
                break
        if seed % 20 == 19:
            gc.collect()
    spent = time.process_time() - began
    print(f"{options.seeds} seeds, {len(failed)} with violations, {spent:.1f} CPU seconds")
    print(f"turns: {dict(turns)}\nfaults: {dict(faults)}")
    return 1 if failed else 0


def mutate(names: list[str], seeds: int) -> int:
    missed = 0
    for name in names:
        with mutated(name):
            result = first_failure(seeds)
        missed += result is None
        found = f"seed {result.seed}: {result.broken[0]}" if result else f"NOT found within {seeds} seeds"
        print(f"{name}: {found}", flush=True)
    return 1 if missed else 0


def report(results: list[Result], lines: int) -> int:
    for result in results:
        if result.broken:
            print(f"\nscripts/simulate --seed {result.seed}")
            for each in result.broken[:8]:
                print(f"  {each}")
    return 1 if any(result.broken for result in results) else 0


sys.exit(main())
