"""Answers with proof: documents, their index, and what is found, judged and quoted from it.

`documents` reads files into passages, `index` keeps and searches them, `embedding` compares by meaning.
On top of that, one step of a turn each: `collecting` finds evidence (by the `agent_loop` of a model, or by
itself), `review` judges it, `synthesis` writes the answer from it. `agent` puts them together, `librarian`
keeps the documents up to date.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.collecting import collect_evidence
    from turnwire.retrieval.evidence import Evidence, RetrievalResult
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.searching import Searcher
    from turnwire.retrieval.synthesis import stream_synthesis

__all__ = [
    "Evidence",
    "Library",
    "RetrievalAgent",
    "RetrievalResult",
    "Searcher",
    "collect_evidence",
    "stream_synthesis",
]

# Imported when first asked for, because parts of this package are used alone.
_HOMES = {
    "Evidence": "evidence",
    "Library": "index.library",
    "RetrievalAgent": "agent",
    "RetrievalResult": "evidence",
    "Searcher": "searching",
    "collect_evidence": "collecting",
    "stream_synthesis": "synthesis",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire.retrieval' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.retrieval.{home}"), name)
    return value
