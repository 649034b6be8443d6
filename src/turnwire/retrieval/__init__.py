"""Retrieval: answers from documents, with citations.

`documents` parses files, `index` stores and searches their passages, `embedding` compares texts by meaning. Each step
of a turn has a module: `collection` finds evidence, with or without a model, `review` judges it, and `synthesis` writes
the answer. `agent` combines the steps; `indexer` keeps the index up to date.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.collection import collect_evidence
    from turnwire.retrieval.evidence import Evidence, RetrievalResult
    from turnwire.retrieval.index.searcher import Searcher
    from turnwire.retrieval.index.sqlite import SqliteLibrary
    from turnwire.retrieval.synthesis import stream_synthesis

__all__ = [
    "Evidence",
    "RetrievalAgent",
    "RetrievalResult",
    "Searcher",
    "SqliteLibrary",
    "collect_evidence",
    "stream_synthesis",
]

# Imported on first access, because some parts of this package are used alone.
_MODULES = {
    "Evidence": "evidence",
    "SqliteLibrary": "index.sqlite",
    "RetrievalAgent": "agent",
    "RetrievalResult": "evidence",
    "Searcher": "index.searcher",
    "collect_evidence": "collection",
    "stream_synthesis": "synthesis",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'turnwire.retrieval' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.retrieval.{module}"), name)
    return value
