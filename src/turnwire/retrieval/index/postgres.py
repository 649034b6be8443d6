"""The library in PostgreSQL, which the processes of all machines share.

Words are stemmed by PostgreSQL's dictionary and found by its index. Passages are ranked by the formula of `bm25`,
from the statistics of those that the reader may read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turnwire.core.contracts.stores import BlockingConnection, BlockingDatabase
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.index.bm25 import K1, MIN_RARITY, B
from turnwire.retrieval.index.library import (
    HEADING_MARK,
    PASSAGE_COLUMNS,
    VISIBLE,
    DocumentLibrary,
    IndexConnection,
    NewDocument,
    Passage,
    T,
    passage_from,
    term_weights,
)
from turnwire.retrieval.index.terms import content_terms, plain_words

# An advisory lock: of several processes that read the same folder, one writes at a time.
_LOCK = 0x7475726E_00000003
_MAX_WORD = 200
_MAX_STEMS = 50_000
_MAX_POSITION = 16_383
"""Of a word in a tsvector."""
# Every occurrence of a word of the query is counted once, for its rarity and for the scores.
_SEARCH = f"""
    WITH readable AS (
        SELECT sum(d.passages)::float8 AS total, sum(d.length)::float8 AS words FROM document d WHERE {VISIBLE}
    ), hit AS MATERIALIZED (
        SELECT p.id, p.length, w.lexeme, cardinality(w.positions)::float8 AS frequency
        FROM passage p JOIN document d ON d.id = p.document_id, unnest(p.words) AS w
        WHERE p.words @@ ?::text::tsquery AND {VISIBLE} AND w.lexeme = ANY(?::text[])
    ), rarity AS (
        SELECT lexeme, greatest(ln((total - count(*) + 0.5) / (count(*) + 0.5)), {MIN_RARITY}) AS weight
        FROM hit, readable GROUP BY lexeme, total
    ), best AS (
        SELECT hit.id, sum(weight * frequency * {K1 + 1}
            / (frequency + {K1} * ({1 - B} + {B} * hit.length * total / words))) AS score
        FROM hit JOIN rarity USING (lexeme), readable GROUP BY hit.id ORDER BY score DESC, hit.id LIMIT ?
    )
    SELECT {PASSAGE_COLUMNS}, best.score FROM best JOIN passage p USING (id) JOIN document d ON d.id = p.document_id
    ORDER BY best.score DESC, p.id
"""


_TABLES = """
    -- Words are split and stemmed by a configuration of its own, which knows no stop words.
    CREATE TEXT SEARCH DICTIONARY turnwire.stems (TEMPLATE = snowball, language = english);
    CREATE TEXT SEARCH CONFIGURATION turnwire.words (PARSER = default);
    ALTER TEXT SEARCH CONFIGURATION turnwire.words
        ADD MAPPING FOR asciiword, word, numword, int, uint, float, sfloat, version WITH turnwire.stems;

    CREATE TABLE turnwire.index_version (version bigint NOT NULL);
    INSERT INTO turnwire.index_version VALUES (0);
    CREATE TABLE turnwire.document_root (
        path text COLLATE "C" PRIMARY KEY,
        is_own boolean NOT NULL          -- Turnwire's own documentation: it leaves when there is anything else
    );
    CREATE TABLE turnwire.document (
        id text COLLATE "C" PRIMARY KEY,
        root text COLLATE "C",           -- null for what was uploaded
        name text COLLATE "C" NOT NULL,  -- the path below the root, or the name it was uploaded with
        folded_name text NOT NULL,
        folded_title text NOT NULL,
        owner text COLLATE "C",          -- null for what everyone may read
        title text NOT NULL,
        format text NOT NULL,
        digest text NOT NULL,
        bytes bigint NOT NULL,
        characters bigint NOT NULL,
        pages integer,
        passages integer NOT NULL,
        length bigint NOT NULL,          -- the number of words in all passages
        indexed_at bigint NOT NULL
    );
    CREATE INDEX document_by_root ON turnwire.document (root);
    CREATE INDEX document_by_owner ON turnwire.document (owner);
    CREATE TABLE turnwire.passage (
        id bigserial PRIMARY KEY,        -- never given twice: who holds an old id must not find another text
        document_id text COLLATE "C" NOT NULL REFERENCES turnwire.document ON DELETE CASCADE,
        ordinal integer NOT NULL,
        heading text NOT NULL,
        text text NOT NULL,              -- up to the next passage: all of them joined are the document
        char_start integer NOT NULL,
        char_end integer NOT NULL,
        line_start integer NOT NULL,
        line_end integer NOT NULL,
        page integer,
        length integer NOT NULL,         -- the number of words
        words tsvector NOT NULL,
        UNIQUE (document_id, ordinal)
    );
    CREATE INDEX passage_by_word ON turnwire.passage USING gin (words);
    CREATE TABLE turnwire.passage_vector (
        passage_id bigint NOT NULL REFERENCES turnwire.passage ON DELETE CASCADE,
        embedder text COLLATE "C" NOT NULL,
        vector bytea NOT NULL,           -- float32, of length one
        PRIMARY KEY (passage_id, embedder)
    );
    ALTER TABLE turnwire.passage_vector ALTER COLUMN vector SET STORAGE EXTERNAL;
"""


class _CleanConnection:
    """A connection that leaves out of texts what PostgreSQL refuses: NUL and lone surrogates."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Iterable[Any]:
        cleaned = [clean_text(value) if isinstance(value, str) else value for value in values]
        return self._connection.execute(query, cleaned)


class PostgresLibrary(DocumentLibrary):
    """A library in a database, which its owner closes."""

    is_shared = True
    in_list = "= ANY(?::bigint[])"
    position = "strpos"

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database
        self._stems: dict[str, str] = {}

    @property
    def location(self) -> str:
        return self._database.location

    def open(self) -> None:
        self._database.open()
        self._database.transaction(_create_tables)

    def exists(self) -> bool:
        """Return True if a process has opened the library before."""
        return self._database.transaction(_has_tables)

    def close(self) -> None:
        self._stems.clear()

    def _read(self, query: str, *values: object) -> list[Any]:
        return self._database.transaction(lambda database: [*_CleanConnection(database).execute(query, values)])

    def _write(self, work: Callable[[IndexConnection], T]) -> T:
        def write(database: BlockingConnection) -> T:
            database.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            database.execute("UPDATE index_version SET version = version + 1")
            return work(_CleanConnection(database))

        return self._database.transaction(write)

    def _insert(self, database: IndexConnection, document: NewDocument) -> None:
        chunks = document.chunks
        texts = [f"{document.indexed_heading(chunk)}\n{chunk.text}" for chunk in chunks]
        words = [[word[:_MAX_WORD] for word in plain_words(text)] for text in texts]
        stems = self._stemmed(database, {word for each in words for word in each})
        self._insert_record(database, document.record, length=sum(map(len, words)))
        columns: list[list[Any]] = [
            list(range(len(chunks))),
            [clean_text(HEADING_MARK.join(chunk.headings)) for chunk in chunks],
            [chunk.text for chunk in chunks],
            [chunk.start for chunk in chunks],
            [chunk.end for chunk in chunks],
            [chunk.line_start for chunk in chunks],
            [chunk.line_end for chunk in chunks],
            [chunk.page for chunk in chunks],
            [len(each) for each in words],
            [_vector_text([stems[word] for word in each]) for each in words],
        ]
        database.execute(
            "INSERT INTO passage (document_id, ordinal, heading, text, char_start, char_end, line_start, line_end,"
            " page, length, words) SELECT ?, u.ordinal, u.heading, u.text, u.char_start, u.char_end, u.line_start,"
            " u.line_end, u.page, u.length, u.words::tsvector FROM unnest(?::int[], ?::text[], ?::text[], ?::int[],"
            " ?::int[], ?::int[], ?::int[], ?::int[], ?::int[], ?::text[]) AS u (ordinal, heading, text, char_start,"
            " char_end, line_start, line_end, page, length, words) ORDER BY u.ordinal",
            [document.record.id, *columns],
        )

    def _stemmed(self, database: IndexConnection, words: set[str]) -> dict[str, str]:
        """Return the stem of each word by PostgreSQL's dictionary."""
        if len(self._stems) > _MAX_STEMS:
            self._stems = {}
        known = self._stems
        if new := [word for word in words if word not in known]:
            query = "SELECT w, (ts_lexize('turnwire.stems', w))[1] FROM unnest(?::text[]) AS w"
            known.update((word, stem or word) for word, stem in database.execute(query, (new,)))
        return {word: known[word] for word in words}

    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> list[Passage]:
        words = {word[:_MAX_WORD] for term in content_terms(query) for word in _query_words(term)}
        if not words:
            return []

        def read(database: BlockingConnection) -> list[Any]:
            stems = sorted(set(self._stemmed(database, words).values()))
            values = (owner, " | ".join(map(_quoted, stems)), owner, stems, limit)
            return database.execute(_SEARCH, values)

        return [passage_from(row, score) for *row, score in self._database.transaction(read)]

    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        words = {term: [word[:_MAX_WORD] for word in plain_words(term)] for term in terms}

        def read(database: BlockingConnection) -> dict[str, float]:
            query = f"SELECT coalesce(sum(passages), 0)::bigint FROM document d WHERE {VISIBLE}"
            ((total,),) = database.execute(query, (owner,))
            stems = self._stemmed(database, {word for each in words.values() for word in each})
            counts: dict[str, int] = dict.fromkeys(terms, 0)
            query = (
                "SELECT count(*) FROM passage p JOIN document d ON d.id = p.document_id"
                f" WHERE p.words @@ ?::text::tsquery AND {VISIBLE}"
            )
            for term, each in words.items():
                if each:
                    phrase = " <-> ".join(_quoted(stems[word]) for word in each)
                    ((counts[term],),) = database.execute(query, (phrase, owner))
            return term_weights(total, counts)

        return self._database.transaction(read)


def _query_words(term: str) -> list[str]:
    """Return the words of a term, without the letter after an apostrophe, which is in every second passage."""
    words = list(plain_words(term))
    return [word for word in words if len(word) > 1] or words


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _vector_text(lexemes: Sequence[str]) -> str:
    """Return a tsvector as text: each lexeme with its positions."""
    positions: dict[str, list[str]] = {}
    for position, lexeme in enumerate(lexemes, start=1):
        positions.setdefault(lexeme, []).append(str(min(position, _MAX_POSITION)))
    return " ".join(f"{_quoted(lexeme)}:{','.join(where)}" for lexeme, where in positions.items())


def _create_tables(database: BlockingConnection) -> None:
    database.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if not _has_tables(database):
        for statement in _TABLES.split(";")[:-1]:
            database.execute(statement)


def _has_tables(database: BlockingConnection) -> bool:
    return database.execute("SELECT to_regclass('turnwire.passage_vector') IS NOT NULL")[0][0]
