"""Evidence: passages with a number. A number is given when a passage is first seen, and never changes."""

from collections.abc import Sequence

from msgspec import Struct

from turnwire.core.events import CitationEvent, Hit
from turnwire.retrieval.index.records import Passage
from turnwire.retrieval.sentences import Matcher

_RANK_CONSTANT = 60
_SNIPPET = 300


class Evidence(Struct, frozen=True):
    """`tool` is what found it, `strength` how well: 1 for the best of a search, less for the others."""

    index: int
    passage: Passage
    tool: str
    strength: float = 1.0


class EvidenceBook:
    """All that was seen in a turn. Several searches that agree on a passage lift it (reciprocal rank fusion)."""

    def __init__(self) -> None:
        self._by_chunk: dict[str, Evidence] = {}
        self._merit: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._by_chunk)

    def get(self, index: object) -> Evidence | None:
        return next((one for one in self._by_chunk.values() if one.index == index), None)

    def note(self, passages: Sequence[Passage], tool: str) -> list[Evidence]:
        """Numbers what is new. Returns the evidence for each passage, in their order."""
        noted: list[Evidence] = []
        top = max((passage.score for passage in passages), default=0) or 1
        for rank, passage in enumerate(passages):
            strength = max(0.0, passage.score / top)
            known = self._by_chunk.get(passage.chunk_id)
            if known is None:
                known = Evidence(len(self._by_chunk) + 1, passage, tool, strength)
                self._by_chunk[passage.chunk_id] = known
            self._merit[known.index] = self._merit.get(known.index, 0) + 1 / (_RANK_CONSTANT + rank + 1)
            noted.append(known)
        return noted

    def ranked(self) -> list[Evidence]:
        """Best first."""
        return sorted(self._by_chunk.values(), key=lambda one: (-self._merit[one.index], one.index))


class RetrievalResult(Struct, frozen=True, kw_only=True):
    """What was found for a question: `evidence` is what was kept of it, best first.

    `citations` has one entry for each of them, as it would be cited whole. `sufficient` is false when the
    evidence does not answer the question. `model_failed` is set when the model is of no use in this turn.
    """

    question: str
    evidence: tuple[Evidence, ...]
    citations: tuple[CitationEvent, ...]
    sufficient: bool
    matcher: Matcher
    tools_used: tuple[str, ...] = ()
    model_failed: str | None = None


def hit_of(evidence: Evidence, matcher: Matcher) -> Hit:
    passage = evidence.passage
    return Hit(
        index=evidence.index,
        document_id=passage.document_id,
        chunk_id=passage.chunk_id,
        title=passage.title,
        page_number=passage.page,
        text=matcher.snippet(passage.text, _SNIPPET),
        score=round(passage.score, 4),
        heading=passage.heading,
    )


def cite(
    evidence: Evidence, start: int, end: int, answer_start: int | None = None, answer_end: int | None = None
) -> CitationEvent:
    """A citation of a part of the passage, for a part of the answer if it is tied to one."""
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


def cite_whole(evidence: Evidence) -> CitationEvent:
    return cite(evidence, 0, len(evidence.passage.text))
