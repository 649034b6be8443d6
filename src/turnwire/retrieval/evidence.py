"""Evidence: numbered passages. A passage gets its number when it is first found, and keeps it."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from turnwire.core.log.events import CitationEvent, Hit
from turnwire.retrieval.index.library import Passage
from turnwire.retrieval.sentences import Matcher

Similarity = Callable[[str, Sequence[str]], Awaitable[list[float] | None]]
"""Return the similarity of a question to each text, or None if texts cannot be compared by meaning."""

_RANK_CONSTANT = 60
_MAX_SNIPPET = 300


class Evidence(Struct, frozen=True):
    """A numbered passage. `tool` found it; `strength` is 1 for the best hit of its search, less for the others."""

    index: int
    passage: Passage
    tool: str
    strength: float = 1.0


class EvidenceBook:
    """All evidence of a turn, ranked over its searches by reciprocal rank fusion."""

    def __init__(self) -> None:
        self._by_chunk: dict[str, Evidence] = {}
        self._rank_scores: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._by_chunk)

    def get(self, index: object) -> Evidence | None:
        return next((evidence for evidence in self._by_chunk.values() if evidence.index == index), None)

    def add(self, passages: Sequence[Passage], tool: str) -> list[Evidence]:
        """Number the new passages. Return the evidence of each passage in order."""
        added: list[Evidence] = []
        top = max((passage.score for passage in passages), default=0) or 1
        for rank, passage in enumerate(passages):
            strength = max(0.0, passage.score / top)
            evidence = self._by_chunk.get(passage.chunk_id)
            if evidence is None:
                evidence = Evidence(len(self._by_chunk) + 1, passage, tool, strength)
                self._by_chunk[passage.chunk_id] = evidence
            score = self._rank_scores.get(evidence.index, 0) + 1 / (_RANK_CONSTANT + rank + 1)
            self._rank_scores[evidence.index] = score
            added.append(evidence)
        return added

    def ranked(self) -> list[Evidence]:
        """Return all evidence, best first."""
        return sorted(self._by_chunk.values(), key=lambda item: (-self._rank_scores[item.index], item.index))


class RetrievalResult(Struct, frozen=True, kw_only=True):
    """The evidence that was kept for a question, best first.

    `citations` has a citation of the whole passage for each. `sufficient` is False if the evidence does not answer the
    question. `model_failed` says why the model cannot be used for the rest of the turn. `similarity` compares a
    question with texts by meaning.
    """

    question: str
    evidence: tuple[Evidence, ...]
    citations: tuple[CitationEvent, ...]
    sufficient: bool
    matcher: Matcher
    tools_used: tuple[str, ...] = ()
    model_failed: str | None = None
    similarity: Similarity | None = None


def hit_of(evidence: Evidence, matcher: Matcher) -> Hit:
    passage = evidence.passage
    return Hit(
        index=evidence.index,
        document_id=passage.document_id,
        chunk_id=passage.chunk_id,
        title=passage.title,
        page_number=passage.page,
        text=matcher.snippet(passage.text, _MAX_SNIPPET),
        score=round(passage.score, 4),
        heading=passage.heading,
    )


def cite(
    evidence: Evidence, start: int, end: int, answer_start: int | None = None, answer_end: int | None = None
) -> CitationEvent:
    """Return a citation of a range of the passage, tied to a range of the answer if one is given."""
    passage = evidence.passage
    return CitationEvent(
        index=evidence.index,
        document_id=passage.document_id,
        chunk_id=passage.chunk_id,
        title=passage.title,
        page_number=passage.page,
        supporting_quote=passage.text[start:end],
        source_tool=evidence.tool,
        score=round(passage.score, 4),
        source_start=passage.start + start,
        source_end=passage.start + end,
        answer_start=answer_start,
        answer_end=answer_end,
        heading=passage.heading,
    )
