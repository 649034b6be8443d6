"""The time scale of a timeline, and the shortening of labels, which its renderers share."""

from bisect import bisect_left
from itertools import pairwise

from turnwire.reporting.timeline import Timeline

_WAIT_SHARE = 0.12
"""The largest share of the line that one wait may take."""
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)


class Scale:
    """A map of milliseconds to 0…1, even but for `breaks`: long waits, which are drawn shorter than they were."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        rest = max(line.length - sum(wait.ms for wait in line.waits), 1)
        break_size = rest * _WAIT_SHARE
        self.breaks = [wait for wait in line.waits if wait.ms > break_size * 2]
        borders = sorted({0, max(line.length, 1), *(at for wait in self.breaks for at in (wait.began, wait.ended))})
        shortened = {wait.began for wait in self.breaks}
        sizes = [break_size if begin in shortened else end - begin for begin, end in pairwise(borders)]
        total = sum(sizes)
        self._pieces: list[tuple[int, int, float, float]] = []
        offset = 0.0
        for (begin, end), size in zip(pairwise(borders), sizes, strict=True):
            self._pieces.append((begin, end, offset, size / total))
            offset += size / total

    def __call__(self, ms: float) -> float:
        for begin, end, offset, size in self._pieces:
            if ms <= end:
                return offset + size * max(ms - begin, 0) / (end - begin)
        return 1.0

    def moment(self, fraction: float) -> float:
        """Return the milliseconds at a fraction of the line."""
        for begin, end, offset, size in self._pieces:
            if fraction <= offset + size:
                return begin + (end - begin) * max(fraction - offset, 0) / size
        return float(self._pieces[-1][1])

    def is_broken(self, ms: float) -> bool:
        return any(wait.began < ms < wait.ended for wait in self.breaks)

    def ticks(self, max_count: int) -> list[int]:
        """Return round moments for the axis, without those inside a break."""
        length = self._pieces[-1][1]
        drawn = length - sum(wait.ms for wait in self.breaks) or length
        step = next((step for step in _STEPS if drawn / step <= max_count), 3_600_000)
        if length / step > 2_000:
            step = length // max_count
        return [at for at in range(0, length + 1, step) if not self.is_broken(at)]

    def token_rates(self, slices: int) -> list[float]:
        """Return the token rate in each of `slices` equal parts of the line, 1 for the highest."""
        borders = [self.moment(number / slices) for number in range(slices + 1)]
        borders[-1] += 1
        times = self._line.tokens.times
        rates = [
            (bisect_left(times, end) - bisect_left(times, begin)) / (end - begin) if end > begin else 0.0
            for begin, end in pairwise(borders)
        ]
        highest = max(rates) or 1
        return [rate / highest for rate in rates]


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
