"""The subjects of the tables' rows: command line names and display names."""

from bench.servers import VARIANTS
from turnwire.assembly import build_socket_wires, build_wires

SUBJECTS = {
    **{variant.name: variant.label for variant in VARIANTS.values()},
    "elsewhere": "PostgreSQL, read in another process",
    "two": "PostgreSQL, two workers, each read where it runs",
    "crossed": "PostgreSQL, two workers, each read at the other",
    "simulation": "the simulation",
    **{name: f"`{name}`" for name in (*build_wires(), *build_socket_wires())},
    "fts5": "bare FTS5 table",
    "library": "Turnwire, library",
    "healthz": "GET /healthz",
    "bare": "the SDK alone",
    "turnwire": "as a turn of Turnwire",
    "unjournaled": "without a journal",
    "journaled": "with a journal",
}
