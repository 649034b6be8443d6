"""How the time of a turn is laid out on a line: evenly, but a long wait for a person takes little room."""

from itertools import pairwise

from turnwire.reporting.timeline import Span, Timeline

_WAIT_SHARE = 0.12
"""As much of the line as one wait takes at most."""
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)


class Scale:
    """Maps milliseconds to 0…1. `breaks` are the stretches that are drawn shorter than they were."""

    def __init__(self, line: Timeline) -> None:
        waits = [phase for phase in line.phases if phase.name in ("queued", "waiting")]
        rest = max(line.length - sum(phase.ms for phase in waits), 1)
        most = rest * _WAIT_SHARE
        self.breaks: list[Span] = [Span(phase.began, phase.ended) for phase in waits if phase.ms > most * 2]
        borders = sorted({0, max(line.length, 1), *(at for one in self.breaks for at in (one.began, one.ended))})
        shortened = {one.began for one in self.breaks}
        sizes = [most if begin in shortened else end - begin for begin, end in pairwise(borders)]
        whole = sum(sizes)
        self._pieces: list[tuple[int, int, float, float]] = []
        place = 0.0
        for (begin, end), size in zip(pairwise(borders), sizes, strict=True):
            self._pieces.append((begin, end, place, size / whole))
            place += size / whole

    def __call__(self, ms: float) -> float:
        for begin, end, place, size in self._pieces:
            if ms <= end:
                return place + size * max(ms - begin, 0) / (end - begin)
        return 1.0

    def moment(self, place: float) -> float:
        """The other way round."""
        for begin, end, start, size in self._pieces:
            if place <= start + size:
                return begin + (end - begin) * max(place - start, 0) / size
        return float(self._pieces[-1][1])

    def ticks(self, most: int) -> list[int]:
        """Round moments to write along the line, those inside a break left out."""
        length = self._pieces[-1][1]
        drawn = length - sum(one.ms for one in self.breaks) or length
        step = next((step for step in _STEPS if drawn / step <= most), 3_600_000)
        if length / step > 2_000:
            step = length // most
        return [at for at in range(0, length + 1, step) if not any(one.began < at < one.ended for one in self.breaks)]


def time_words(ms: float) -> str:
    """As short as can be: 850 ms, 12.4 s, 3 min 20 s, 2 h 5 min."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 100_000:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
