"""Metrics as Prometheus reads them: its text format, version 0.0.4.

A module of our own, because the numbers are plain ones (`core.metrics`): the official client takes a lock for each of
them and longer to load than everything else that a command needs. Its parser is what the tests read this with.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from turnwire.core.metrics import ALL, Counter, Histogram

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricReading(Struct, frozen=True):
    """A number as it is now, read when somebody asks for it."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    kind: str = "gauge"


def render(readings: Iterable[MetricReading]) -> str:
    """All that this process counts, and these readings. Those of one name stand together."""
    lines: list[str] = []
    last = ""
    for reading in readings:
        if reading.name != last:
            lines += _heading(reading.name, reading.help, reading.kind)
            last = reading.name
        lines.append(f"{reading.name}{_labels(reading.labels)} {_number(reading.value)}")
    for metric in ALL:
        lines += _counter(metric) if isinstance(metric, Counter) else _histogram(metric)
    return "\n".join(lines) + "\n"


def _heading(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP {name} {_escape(help)}", f"# TYPE {name} {kind}"]


def _counter(counter: Counter) -> list[str]:
    lines = _heading(counter.name, counter.help, "counter")
    for kind, value in list(counter.values.items()):
        labels = {} if counter.label is None else {counter.label: kind}
        lines.append(f"{counter.name}{_labels(labels)} {value}")
    return lines


def _histogram(histogram: Histogram) -> list[str]:
    lines = _heading(histogram.name, histogram.help, "histogram")
    below = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        lines.append(f'{histogram.name}_bucket{{le="{_number(bound)}"}} {below}')
    lines.append(f"{histogram.name}_sum {_number(histogram.total)}")
    lines.append(f"{histogram.name}_count {below}")
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escape(value, quoted=True)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escape(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
