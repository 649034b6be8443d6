"""BM25 over the passages that one principal may read.

FTS5 ranks by the statistics of the whole index. If it has documents that this principal may not read, they would change
the scores, and so reveal that somebody has a document with a certain word. Then the same formula is computed here, from
the readable passages alone. Without such documents FTS5's own ranking has the same scores and is faster.
"""

import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from turnwire.retrieval.index.terms import TOKENIZER

# The constants of FTS5's bm25().
K1, B, MIN_RARITY = 1.2, 0.75, 1e-6


def rarity(total: int, count: int) -> float:
    """Return the inverse document frequency of a term that `count` of `total` passages contain."""
    return max(math.log((total - count + 0.5) / (count + 0.5)), MIN_RARITY)


class Tokenizer:
    """FTS5's tokenizer, which stems words as the index does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, list[str]] = {}
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(f'CREATE VIRTUAL TABLE term USING fts5(text, tokenize="{TOKENIZER}")')
        self._database.execute("CREATE VIRTUAL TABLE token USING fts5vocab(term, instance)")

    def tokens(self, term: str) -> list[str]:
        with self._lock:
            if len(self._known) > 10_000:
                self._known.clear()
            if term not in self._known:
                self._database.execute("DELETE FROM term")
                self._database.execute("INSERT INTO term VALUES (?)", (term,))
                rows = self._database.execute("SELECT term FROM token ORDER BY offset").fetchall()
                self._known[term] = [row[0] for row in rows]
            return self._known[term]

    def close(self) -> None:
        self._database.close()


class PassageLengths:
    """The length in words and the owner of every passage, at one version of the index."""

    def __init__(self, version: int, database: sqlite3.Connection) -> None:
        self.version = version
        self._lengths: dict[int, int] = {}
        self._private: dict[int, str] = {}
        rows = database.execute(
            "SELECT p.id, d.owner, s.sz FROM passage p JOIN document d ON d.id = p.document_id"
            " JOIN words_docsize s ON s.id = p.id"
        )
        for passage_id, owner, sizes in rows:
            self._lengths[passage_id] = sum(_varints(sizes))
            if owner is not None:
                self._private[passage_id] = owner
        # Passages and words of each owner; None is everybody's.
        self._passages, self._words = Counter[str | None](), Counter[str | None]()
        for passage_id, length in self._lengths.items():
            owner = self._private.get(passage_id)
            self._passages[owner] += 1
            self._words[owner] += length

    def total(self, owner: str | None) -> int:
        """Return the number of passages that `owner` may read."""
        return self._passages[None] + (self._passages[owner] if owner is not None else 0)

    def frequencies(self, database: sqlite3.Connection, tokens: Sequence[str], owner: str | None) -> dict[int, int]:
        """Return how often a word, or a phrase of several, occurs in each passage that `owner` may read."""
        if not tokens:
            return {}
        if len(tokens) == 1:
            rows = database.execute("SELECT doc, count(*) FROM occurrence WHERE term = ? GROUP BY doc", tokens)
        else:
            rows = _phrase_counts(database, tokens).items()
        private = self._private
        return {
            passage_id: count
            for passage_id, count in rows
            if passage_id in self._lengths and (passage_id not in private or private[passage_id] == owner)
        }

    def scores(self, frequencies: Sequence[Mapping[int, int]], owner: str | None) -> Counter[int]:
        """Return the BM25 score of each passage; `frequencies` are those of each term of the query."""
        total = self.total(owner)
        words = self._words[None] + (self._words[owner] if owner is not None else 0)
        average = words / total if total else 1.0
        scores = Counter[int]()
        for counts in frequencies:
            weight = rarity(total, len(counts))
            for passage_id, count in counts.items():
                norm = K1 * (1 - B + B * self._lengths[passage_id] / average)
                scores[passage_id] += weight * count * (K1 + 1) / (count + norm)  # pyright: ignore[reportArgumentType]
        return scores


def _phrase_counts(database: sqlite3.Connection, tokens: Sequence[str]) -> Counter[int]:
    query = "SELECT doc, col, offset FROM occurrence WHERE term = ?"
    begins: set[tuple[int, str, int]] = set(database.execute(query, tokens[:1]))
    for distance, token in enumerate(tokens[1:], start=1):
        begins &= {(doc, col, offset - distance) for doc, col, offset in database.execute(query, (token,))}
    return Counter(doc for doc, _, _ in begins)


def _varints(data: bytes) -> list[int]:
    """Return the numbers in a row of FTS5's table of sizes: seven bits in each byte, the highest first."""
    numbers = [0]
    for byte in data:
        numbers[-1] = numbers[-1] << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(0)
    return numbers[:-1]
