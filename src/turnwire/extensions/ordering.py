"""In which order extensions start: each after those it depends on. A knot stops those in it, and nobody else."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from turnwire.extensions.manifest import Manifest


def start_order(manifests: Mapping[str, Manifest]) -> tuple[list[str], dict[str, str]]:
    """The ids in order, and what is wrong with those that cannot start. What needs one of these is not said here."""
    wrong = {
        name: f"it depends on {missing[0]!r}, which is not there; install it, or remove it from depends_on"
        for name, manifest in manifests.items()
        if (missing := [needed for needed in manifest.depends_on if needed not in manifests])
    }
    graph = {name: set(manifest.depends_on) & set(manifests) for name, manifest in manifests.items()}
    while (cycle := _find_cycle(graph)) is not None:
        for name in cycle:
            wrong[name] = f"its dependencies go round in a circle: {' → '.join(cycle)} → {cycle[0]}"
            graph[name] = set()
    # Wishes come last: one that would make a circle is not granted.
    for name, manifest in manifests.items():
        for earlier in manifest.after:
            if earlier in manifests and name not in wrong:
                graph[name].add(earlier)
                if _find_cycle(graph) is not None:
                    graph[name].discard(earlier)
    return list(TopologicalSorter(graph).static_order()), wrong


def _find_cycle(graph: Mapping[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[:0:-1]
    return None
