"""The tables of the bench, one module each."""

from collections.abc import Callable

from bench.plan import Plan
from bench.results import Table
from bench.tables.adapters import adapters
from bench.tables.answers import answers
from bench.tables.fanout import fanout
from bench.tables.idle import idle
from bench.tables.indexing import indexing
from bench.tables.latency import latency
from bench.tables.page import page
from bench.tables.protocols import protocols
from bench.tables.replay import replay
from bench.tables.search import search
from bench.tables.stores import stores
from bench.tables.streams import streams
from bench.tables.wires import wires

TABLES: dict[str, Callable[[Plan], Table]] = {
    "streams": streams,
    "fan-out": fanout,
    "idle": idle,
    "replay": replay,
    "latency": latency,
    "indexing": indexing,
    "search": search,
    "answers": answers,
    "adapters": adapters,
    "wires": wires,
    "protocols": protocols,
    "stores": stores,
    "page": page,
}
