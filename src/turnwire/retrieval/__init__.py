"""Answers with proof: documents, their index, and what is found, judged and quoted from it.

`documents` reads files into passages, `index` keeps and searches them, `embedding` compares by meaning.
Each step of a turn has a module: `collection` finds evidence (with a model's tool calls, or without a model), `review`
judges it, `synthesis` writes the answer from it. `agent` puts them together; `indexer` keeps the index up to date.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.collection import collect_evidence
    from turnwire.retrieval.evidence import Evidence, RetrievalResult
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.index.searcher import Searcher
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
    "Searcher": "index.searcher",
    "collect_evidence": "collection",
    "stream_synthesis": "synthesis",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire.retrieval' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.retrieval.{home}"), name)
    return value
