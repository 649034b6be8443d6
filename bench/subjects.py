"""Everything that has rows in the tables, by the name it is asked for and the name it is shown with."""

from bench.servers import VARIANTS

SUBJECTS = {variant.name: variant.label for variant in VARIANTS.values()} | {
    "fts5": "bare FTS5 table",
    "library": "Turnwire, library",
    "healthz": "GET /healthz",
    "bare": "the SDK alone",
    "turnwire": "as a turn of Turnwire",
}
