"""Metrics in Prometheus' text format, version 0.0.4.

Written by hand, because the metrics are plain numbers (`core.metrics`): the official client takes a lock for each of
them and is slow to import. The tests read the output with the official parser.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from turnwire.core.metrics import ALL, Counter, Histogram

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricReading(Struct, frozen=True):
    """A value that is read at the moment of a scrape."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    kind: str = "gauge"


def render(readings: Iterable[MetricReading]) -> str:
    """Render the metrics of this process and these readings, which must be grouped by name."""
    lines: list[str] = []
    previous = ""
    for reading in readings:
        if reading.name != previous:
            lines += _heading(reading.name, reading.help, reading.kind)
            previous = reading.name
        lines.append(f"{reading.name}{_labels(reading.labels)} {_number(reading.value)}")
    for metric in ALL:
        if isinstance(metric, Counter):
            lines += _counter(metric)
        else:
            lines += _heading(metric.name, metric.help, "histogram")
            is_plain = isinstance(metric, Histogram)
            series = {(): metric} if is_plain else dict(metric.series)
            names = () if is_plain else metric.labels
            for kinds, histogram in series.items():
                lines += _series(histogram, dict(zip(names, kinds, strict=True)))
    return "\n".join(lines) + "\n"


def _heading(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP {name} {_escape(help)}", f"# TYPE {name} {kind}"]


def _counter(counter: Counter) -> list[str]:
    lines = _heading(counter.name, counter.help, "counter")
    for kind, value in list(counter.values.items()):
        labels = {} if counter.label is None else {counter.label: kind}
        lines.append(f"{counter.name}{_labels(labels)} {value}")
    return lines


def _series(histogram: Histogram, labels: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    cumulative = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        cumulative += count
        lines.append(f"{histogram.name}_bucket{_labels({**labels, 'le': _number(bound)})} {cumulative}")
    lines.append(f"{histogram.name}_sum{_labels(labels)} {_number(histogram.total)}")
    lines.append(f"{histogram.name}_count{_labels(labels)} {cumulative}")
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value, quoted=True)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escape(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
