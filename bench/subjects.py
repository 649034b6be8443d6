"""Everything that has rows in the tables, by the name it is asked for and the name it is shown with."""

from bench.servers import VARIANTS
from turnwire.assembly import SOCKET_WIRES, WIRES

SUBJECTS = {
    **{variant.name: variant.label for variant in VARIANTS.values()},
    "postgres": "Turnwire, PostgreSQL store",
    **{name: f"`{name}`" for name in (*WIRES, *SOCKET_WIRES)},
    "fts5": "bare FTS5 table",
    "library": "Turnwire, library",
    "healthz": "GET /healthz",
    "bare": "the SDK alone",
    "turnwire": "as a turn of Turnwire",
}
