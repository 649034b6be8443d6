"""Counters and histograms of this process, for Prometheus.

Counting is an addition, timing a bisection, and nothing is locked, because all of it happens on the event loop. Nothing
is counted per token: only per commit, turn or stream. The numbers begin at zero with the process; a program that runs
two servers counts both together. Gauges (such as the number of running turns) are read when Prometheus scrapes.

A released name keeps its meaning for ever.
"""

from bisect import bisect_left
from collections.abc import Sequence

ALL: "list[Counter | Histogram | LabelledHistogram]" = []
"""All metrics, in the order they are declared below."""


class Counter:
    """A count of occurrences; with a `label`, one count for each kind."""

    __slots__ = ("help", "label", "name", "values")

    def __init__(self, name: str, help: str, label: str | None = None, kinds: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.label = label
        # The given kinds exist from the start: something that has not happened yet is zero, not absent.
        self.values: dict[str, int] = dict.fromkeys(kinds if label else ("",), 0)
        ALL.append(self)

    def add(self, kind: str = "", count: int = 1) -> None:
        self.values[kind] = self.values.get(kind, 0) + count


class Histogram:
    """A distribution: `counts[i]` values were at most `bounds[i]`, the last count is of those beyond all bounds."""

    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, help: str, bounds: Sequence[float], *, is_listed: bool = True) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        if is_listed:
            ALL.append(self)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, value: float, count: int) -> None:
        """Observe the same value `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class LabelledHistogram:
    """Distributions of one quantity, one for each kind."""

    __slots__ = ("bounds", "help", "labels", "name", "series")

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        self.series: dict[tuple[str, ...], Histogram] = {}
        ALL.append(self)

    def observe(self, value: float, *kinds: str) -> None:
        series = self.series.get(kinds)
        if series is None:
            series = self.series[kinds] = Histogram(self.name, self.help, self.bounds, is_listed=False)
        series.observe(value)


_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

TURNS = Counter(
    "turnwire_turns_total",
    "Turns that this process has ended, by outcome.",
    "outcome",
    ("completed", "failed", "cancelled", "interrupted", "joined"),
)
FIRST_EVENT = Histogram(
    "turnwire_first_event_seconds",
    "From a turn's acceptance to its first event after the message; counted when it ends.",
    _WAITS,
)
FIRST_TOKEN = Histogram(
    "turnwire_first_token_seconds",
    "From a turn's acceptance to the first token that its agent yields; counted when it ends.",
    _WAITS,
)
FIRST_TOKEN_DELIVERED = Histogram(
    "turnwire_first_token_delivered_seconds",
    "From a turn's acceptance to the first token written to a reader that was there for it.",
    _WAITS,
)
STREAM_FIRST_TOKEN = LabelledHistogram(
    "turnwire_stream_first_token_seconds",
    "From a turn's acceptance to the first token written to a stream that was there for it, by wire and route.",
    ("wire", "route"),
    _WAITS,
)
STREAM_SECONDS = LabelledHistogram(
    "turnwire_stream_seconds",
    "How long streams were open, by wire and route.",
    ("wire", "route"),
    (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 3600),
)
TURN_SECONDS = Histogram(
    "turnwire_turn_seconds",
    "From a turn's acceptance to its end, waits for people included.",
    (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 3600),
)
TOKEN_GAP = Histogram(
    "turnwire_token_gap_seconds",
    "Between the last token of one commit of a turn and the first of the next; less than 5 ms count as 0.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
CANCEL = Histogram(
    "turnwire_cancel_seconds", "From the call to cancel a turn to the commit of its end.", (*_QUICK, 5, 10)
)
COMMIT_SECONDS = Histogram("turnwire_commit_seconds", "How long a commit of the store has taken.", _QUICK)
COMMIT_EVENTS = Histogram(
    "turnwire_commit_events",
    "How many events, of all turns, a commit has had.",
    (0, 1, 2, 5, 10, 25, 50, 100, 250, 1000),
)
RESUMES = Counter("turnwire_stream_resumes_total", "Streams that went on after a position of an earlier one.")
GAPS = Counter("turnwire_stream_gaps_total", "Readers that were told that the events after their position are gone.")
SLOW_READERS = Counter(
    "turnwire_slow_readers_closed_total", "Readers that were closed because they took nothing for `write_timeout`."
)
OVERLOADS = Counter(
    "turnwire_overloads_total",
    "Requests that were refused because too many of the same principal were waiting, by kind.",
    "kind",
    ("requests", "searches", "uploads"),
)
REFUSED_KEYS = Counter("turnwire_refused_keys_total", "Requests and logins with a wrong, revoked or expired API key.")
TAKEOVERS = Counter("turnwire_takeovers_total", "Turns of lost workers that this process has taken over.")
CONTINUED = Counter("turnwire_turns_continued_total", "Turns that this process has continued from their journals.")
SAVED_CALLS = Counter(
    "turnwire_saved_calls_total",
    "Calls of continued turns that were answered from the journal and not made again, by kind.",
    "kind",
    ("model", "tool"),
)
SAVED_TOKENS = Counter(
    "turnwire_saved_tokens_total",
    "Tokens of the model calls that were answered from the journal, by direction.",
    "direction",
    ("input", "output"),
)
LOOP_BLOCKED = Counter(
    "turnwire_loop_blocks_total", "Times that code blocked the event loop for more than a second; the log names it."
)
FENCED = Counter(
    "turnwire_fenced_appends_total", "Appends that were refused because another worker had taken the turn over."
)
FEEDBACK = Counter("turnwire_feedback_total", "Feedback that users gave on turns, by value.", "value", ("up", "down"))
PUSHES = Counter(
    "turnwire_pushes_total",
    "Push messages to browsers: delivered to the push service, failed, or gone (the subscription is removed).",
    "result",
    ("delivered", "failed", "gone"),
)
WEBHOOKS = Counter(
    "turnwire_webhooks_total",
    "Webhook calls: delivered, failed (tried again), or given up.",
    "result",
    ("delivered", "failed", "given_up"),
)


def note_commit(events: int, seconds: float) -> None:
    """Count a commit of a store, successful or not."""
    COMMIT_EVENTS.observe(events)
    COMMIT_SECONDS.observe(seconds)


def note_ending(outcome: str, timings: dict[str, float]) -> None:
    """Count a turn whose end is committed; the timings are those of its state, in milliseconds."""
    TURNS.add(outcome)
    if outcome == "joined":
        return  # Its answer is in another turn.
    for name, histogram in (
        ("first_event_ms", FIRST_EVENT),
        ("first_token_ms", FIRST_TOKEN),
        ("total_ms", TURN_SECONDS),
    ):
        if (ms := timings.get(name)) is not None:
            histogram.observe(ms / 1000)
