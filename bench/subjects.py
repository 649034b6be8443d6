"""Everything that has rows in the tables, by the name it is asked for and the name it is shown with."""

from bench.servers import VARIANTS
from turnwire.assembly import SOCKET_WIRES, WIRES

SUBJECTS = {
    **{variant.name: variant.label for variant in VARIANTS.values()},
    "elsewhere": "PostgreSQL, read in another process",
    "two": "PostgreSQL, two workers, each read where it runs",
    "crossed": "PostgreSQL, two workers, each read at the other",
    "simulation": "the simulation",
    **{name: f"`{name}`" for name in (*WIRES, *SOCKET_WIRES)},
    "fts5": "bare FTS5 table",
    "library": "Turnwire, library",
    "healthz": "GET /healthz",
    "bare": "the SDK alone",
    "turnwire": "as a turn of Turnwire",
}
