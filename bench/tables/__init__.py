"""The tables of the bench, one module each."""

from collections.abc import Callable

from bench.plan import Plan
from bench.results import Table
from bench.tables.adapters import adapters, journal
from bench.tables.answers import answers
from bench.tables.crowd import crowd
from bench.tables.fanout import fanout
from bench.tables.hops import hops
from bench.tables.idle import idle
from bench.tables.indexing import indexing
from bench.tables.latency import latency
from bench.tables.page import opening, page
from bench.tables.protocols import protocols
from bench.tables.replay import replay
from bench.tables.scale import scale
from bench.tables.search import search
from bench.tables.stores import stores
from bench.tables.streams import streams
from bench.tables.synthesis import synthesis
from bench.tables.turns import turns
from bench.tables.wires import wires
from bench.tables.workers import workers

TABLES: dict[str, Callable[[Plan], Table]] = {
    "streams": streams,
    "turns": turns,
    "fan-out": fanout,
    "idle": idle,
    "replay": replay,
    "latency": latency,
    "hops": hops,
    "indexing": indexing,
    "search": search,
    "answers": answers,
    "synthesis": synthesis,
    "adapters": adapters,
    "journal": journal,
    "wires": wires,
    "protocols": protocols,
    "stores": stores,
    "workers": workers,
    "crowd": crowd,
    "scale": scale,
    "page": page,
    "opening": opening,
}
