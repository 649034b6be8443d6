"""The library in PostgreSQL, which the processes of all machines share.

Words are stemmed by PostgreSQL's dictionary and found by its index. Passages are ranked by the formula of `bm25`,
from the statistics of those that the reader may read.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from turnwire.core.contracts.stores import BlockingConnection, BlockingDatabase
from turnwire.core.errors import DocumentNotFoundError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.index.bm25 import K1, MIN_RARITY, B
from turnwire.retrieval.index.library import (
    DOCUMENT_COLUMNS,
    HEADING_MARK,
    PASSAGE_COLUMNS,
    Document,
    NewDocument,
    Passage,
    document_from,
    indexed_heading,
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
_VISIBLE = "(d.owner IS NULL OR d.owner = ?)"
# Every occurrence of a word of the query is counted once, for its rarity and for the scores.
_SEARCH = f"""
    WITH readable AS (
        SELECT sum(d.passages)::float8 AS total, sum(d.length)::float8 AS words FROM document d WHERE {_VISIBLE}
    ), hit AS MATERIALIZED (
        SELECT p.id, p.length, w.lexeme, cardinality(w.positions)::float8 AS frequency
        FROM passage p JOIN document d ON d.id = p.document_id, unnest(p.words) AS w
        WHERE p.words @@ ?::text::tsquery AND {_VISIBLE} AND w.lexeme = ANY(?::text[])
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


class PostgresLibrary:
    """A `DocumentLibrary` in a database, which its owner closes."""

    is_shared = True

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

    # Documents

    def put(self, documents: Iterable[NewDocument]) -> None:
        new = list(documents)

        def write(database: BlockingConnection) -> None:
            _begin_write(database)
            kept = self._unchanged(database, new)
            for document in new:
                if document.record.id not in kept:
                    database.execute("DELETE FROM document WHERE id = ?", (document.record.id,))
                    self._insert(database, document)

        self._database.transaction(write)

    def _unchanged(self, database: BlockingConnection, documents: Sequence[NewDocument]) -> set[str]:
        """Return the ids of documents that another process has indexed meanwhile, whose vectors would be lost."""
        digests = {document.record.id: document.record.digest for document in documents}
        query = "SELECT id, digest FROM document WHERE id = ANY(?::text[])"
        return {row[0] for row in database.execute(query, (list(digests),)) if digests[row[0]] == row[1]}

    def _insert(self, database: BlockingConnection, document: NewDocument) -> None:
        record = document.record
        texts = [f"{indexed_heading(record, chunk)}\n{chunk.text}" for chunk in document.chunks]
        words = [[word[:_MAX_WORD] for word in plain_words(text)] for text in texts]
        stems = self._stemmed(database, {word for each in words for word in each})
        values = {name: getattr(record, name) for name in DOCUMENT_COLUMNS.split(", ")}
        values |= {name: _storable(value) for name, value in values.items() if isinstance(value, str)}
        values |= {
            "folded_name": values["name"].lower(),
            "folded_title": values["title"].lower(),
            "length": sum(map(len, words)),
        }
        marks = ",".join("?" * len(values))
        database.execute(f"INSERT INTO document ({', '.join(values)}) VALUES ({marks})", [*values.values()])
        chunks = document.chunks
        columns: list[list[Any]] = [
            list(range(len(chunks))),
            [_storable(HEADING_MARK.join(chunk.headings)) for chunk in chunks],
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
            [record.id, *columns],
        )

    def _stemmed(self, database: BlockingConnection, words: set[str]) -> dict[str, str]:
        """Return the stem of each word by PostgreSQL's dictionary."""
        if len(self._stems) > _MAX_STEMS:
            self._stems = {}
        known = self._stems
        if new := [word for word in words if word not in known]:
            query = "SELECT w, (ts_lexize('turnwire.stems', w))[1] FROM unnest(?::text[]) AS w"
            known.update((word, stem or word) for word, stem in database.execute(query, (new,)))
        return {word: known[word] for word in words}

    def remove(self, document_ids: Iterable[str]) -> None:
        ids = list(document_ids)

        def write(database: BlockingConnection) -> None:
            _begin_write(database)
            database.execute("DELETE FROM document WHERE id = ANY(?::text[])", (ids,))

        self._database.transaction(write)

    def documents(
        self, *, owner: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Document]:
        conditions, values = [_VISIBLE], list[object]([owner])
        if search:
            conditions.append("(strpos(folded_name, ?) > 0 OR strpos(folded_title, ?) > 0)")
            # A search for a NUL character alone becomes an empty text, which every name contains; NULL is in none.
            values += [_storable(search).lower() or None] * 2
        if after is not None:
            conditions.append("(name, id) > (SELECT name, id FROM document WHERE id = ?)")
            values.append(_storable(after))
        query = f"SELECT {DOCUMENT_COLUMNS} FROM document d WHERE {' AND '.join(conditions)} ORDER BY name, id LIMIT ?"
        return [document_from(row) for row in self._select(query, *values, limit)]

    def document(self, document_id: str, *, owner: str | None = None) -> Document:
        query = f"SELECT {DOCUMENT_COLUMNS} FROM document d WHERE id = ? AND {_VISIBLE}"
        rows = self._select(query, _storable(document_id), owner)
        if not rows:
            raise DocumentNotFoundError(document_id)
        return document_from(rows[0])

    def uploads(self, owner: str) -> int:
        return self._select("SELECT count(*) FROM document WHERE owner = ?", owner)[0][0]

    def count(self) -> tuple[int, int]:
        return self._select("SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM passage)")[0]

    def version(self) -> int:
        return self._select("SELECT version FROM index_version")[0][0]

    # Passages

    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> list[Passage]:
        words = {word[:_MAX_WORD] for term in content_terms(query) for word in _query_words(term)}
        if not words:
            return []

        def read(database: BlockingConnection) -> list[Any]:
            stems = sorted(set(self._stemmed(database, words).values()))
            values = (owner, " | ".join(map(_quoted, stems)), owner, stems, limit)
            return database.execute(_SEARCH, values)

        return [passage_from(row) for row in self._database.transaction(read)]

    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        words = {term: [word[:_MAX_WORD] for word in plain_words(term)] for term in terms}

        def read(database: BlockingConnection) -> dict[str, float]:
            query = f"SELECT coalesce(sum(passages), 0)::bigint FROM document d WHERE {_VISIBLE}"
            (total,) = database.execute(query, (owner,))[0]
            stems = self._stemmed(database, {word for each in words.values() for word in each})
            counts: dict[str, int] = dict.fromkeys(terms, 0)
            query = (
                "SELECT count(*) FROM passage p JOIN document d ON d.id = p.document_id"
                f" WHERE p.words @@ ?::text::tsquery AND {_VISIBLE}"
            )
            for term, each in words.items():
                if each:
                    phrase = " <-> ".join(_quoted(stems[word]) for word in each)
                    (counts[term],) = database.execute(query, (phrase, owner))[0]
            return term_weights(total, counts)

        return self._database.transaction(read)

    def passages(self, ids: Sequence[int], *, owner: str | None = None) -> list[Passage]:
        rows = self._select(
            f"SELECT {PASSAGE_COLUMNS}, 0.0::float8 FROM passage p JOIN document d ON d.id = p.document_id"
            f" WHERE p.id = ANY(?::bigint[]) AND {_VISIBLE}",
            list(ids),
            owner,
        )
        passages = {row[0]: passage_from(row) for row in rows}
        return [passages[passage_id] for passage_id in ids if passage_id in passages]

    def passage(self, chunk_id: str, *, owner: str | None = None) -> Passage:
        document_id, _, ordinal = chunk_id.rpartition(":")
        if ordinal.isdecimal() and len(ordinal) < 10:
            rows = self._select(
                f"SELECT {PASSAGE_COLUMNS}, 0.0::float8 FROM passage p JOIN document d ON d.id = p.document_id"
                f" WHERE p.document_id = ? AND p.ordinal = ? AND {_VISIBLE}",
                _storable(document_id),
                int(ordinal),
                owner,
            )
            if rows:
                return passage_from(rows[0])
        raise DocumentNotFoundError(chunk_id)

    def document_passages(self, document_id: str, *, start: int = 0, end: int | None = None) -> list[Passage]:
        rows = self._select(
            f"SELECT {PASSAGE_COLUMNS}, 0.0::float8 FROM passage p JOIN document d ON d.id = p.document_id"
            " WHERE p.document_id = ? AND p.char_start + char_length(p.text) > ?"
            " AND p.char_start < coalesce(?::bigint, p.char_start + 1) ORDER BY p.ordinal",
            _storable(document_id),
            start,
            end,
        )
        return [passage_from(row, whole=True) for row in rows]

    # Roots

    def roots(self) -> dict[str, bool]:
        return dict(self._select("SELECT path, is_own FROM document_root ORDER BY path"))

    def add_root(self, path: str, *, is_own: bool = False) -> None:
        def write(database: BlockingConnection) -> None:
            _begin_write(database)
            database.execute(
                "INSERT INTO document_root VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET is_own = excluded.is_own",
                (_storable(path), is_own),
            )
            if not is_own:
                own = "SELECT path FROM document_root WHERE is_own"
                database.execute(f"DELETE FROM document WHERE root IN ({own})")
                database.execute("DELETE FROM document_root WHERE is_own")

        roots = self.roots()
        if roots.get(path) is not is_own or (not is_own and True in roots.values()):
            self._database.transaction(write)

    def forget_root(self, path: str) -> int:
        def write(database: BlockingConnection) -> int:
            _begin_write(database)
            database.execute("DELETE FROM document_root WHERE path = ?", (_storable(path),))
            return len(database.execute("DELETE FROM document WHERE root = ? RETURNING id", (_storable(path),)))

        return self._database.transaction(write)

    def digests(self, root: str) -> dict[str, tuple[str, str]]:
        rows = self._select("SELECT name, id, digest FROM document WHERE root = ?", _storable(root))
        return {name: (document_id, digest) for name, document_id, digest in rows}

    # Vectors

    def vector_owners(self, embedder: str) -> list[tuple[int, str | None, bool]]:
        return self._select(
            "SELECT p.id, d.owner, v.passage_id IS NOT NULL FROM passage p JOIN document d ON d.id = p.document_id"
            " LEFT JOIN passage_vector v ON v.passage_id = p.id AND v.embedder = ? ORDER BY p.id",
            embedder,
        )

    def vectors(self, embedder: str, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        query = "SELECT passage_id, vector FROM passage_vector WHERE embedder = ? AND passage_id = ANY(?::bigint[])"
        return self._select(query, embedder, list(ids))

    def without_vector(self, embedder: str, limit: int) -> list[tuple[int, str]]:
        return self._select(
            # The title comes first, because an encoder truncates, and a passage alone may lack its subject.
            "SELECT p.id, d.title || chr(10) || p.heading || chr(10) || p.text"
            " FROM passage p JOIN document d ON d.id = p.document_id WHERE NOT EXISTS"
            " (SELECT 1 FROM passage_vector v WHERE v.passage_id = p.id AND v.embedder = ?) ORDER BY p.id LIMIT ?",
            embedder,
            limit,
        )

    def vector_counts(self, embedder: str) -> tuple[int, int]:
        query = "SELECT (SELECT count(*) FROM passage_vector WHERE embedder = ?), (SELECT count(*) FROM passage)"
        return self._select(query, embedder)[0]

    def put_vectors(self, embedder: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        def write(database: BlockingConnection) -> None:
            _begin_write(database)
            database.execute(
                "INSERT INTO passage_vector SELECT p.id, ?, u.vector FROM unnest(?::bigint[], ?::bytea[])"
                " AS u (id, vector) JOIN passage p ON p.id = u.id"
                " ON CONFLICT (passage_id, embedder) DO UPDATE SET vector = excluded.vector",
                (embedder, [passage_id for passage_id, _ in vectors], [vector for _, vector in vectors]),
            )

        self._database.transaction(write)

    def _select(self, query: str, *values: object) -> list[Any]:
        return self._database.transaction(lambda database: database.execute(query, values))


def _query_words(term: str) -> list[str]:
    """Return the words of a term, without the letter after an apostrophe, which is in every second passage."""
    words = list(plain_words(term))
    return [word for word in words if len(word) > 1] or words


def _has_tables(database: BlockingConnection) -> bool:
    return database.execute("SELECT to_regclass('turnwire.passage_vector') IS NOT NULL")[0][0]


def _create_tables(database: BlockingConnection) -> None:
    database.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if not _has_tables(database):
        for statement in _TABLES.split(";")[:-1]:
            database.execute(statement)


def _begin_write(database: BlockingConnection) -> None:
    """Wait for other writers, and change the version."""
    database.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
    database.execute("UPDATE index_version SET version = version + 1")


def _storable(text: str) -> str:
    """Return the text without what PostgreSQL refuses: NUL and lone surrogates."""
    return clean_text(text)


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _vector_text(lexemes: Sequence[str]) -> str:
    """Return a tsvector as text: each lexeme with its positions."""
    positions: dict[str, list[str]] = {}
    for position, lexeme in enumerate(lexemes, start=1):
        positions.setdefault(lexeme, []).append(str(min(position, _MAX_POSITION)))
    return " ".join(f"{_quoted(lexeme)}:{','.join(where)}" for lexeme, where in positions.items())
