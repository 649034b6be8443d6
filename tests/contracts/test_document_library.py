"""Contract suite of a library of documents, in SQLite and in PostgreSQL: search, ownership, lists, roots, vectors."""

from collections.abc import Iterator

import pytest

from tests.contracts.libraries import another_process, check, libraries, library
from tests.retrieval.paper import ROOT, note, pdf
from turnwire.core.errors import DocumentNotFoundError
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.index.library import DocumentLibrary, NewDocument

__all__ = ["another_process", "libraries", "library"]

LONG = "\n\n".join(f"# Part {part}\n\n{f'Sentence {part} about oolong. ' * 60}" for part in range(4))


def names(library: DocumentLibrary, query: str, owner: str | None = None, limit: int = 10) -> list[str]:
    found = library.search(query, owner=owner, limit=limit)
    return [library.document(passage.document_id, owner=owner).name for passage in found]


# Searching


def test_best_passage_comes_first_with_the_highest_score(library: DocumentLibrary) -> None:
    library.put(
        [note("Tea. Tea. Green tea.", "tea.md"), note("A ship with tea in it, and much else to see.", "ship.md")]
    )
    found = library.search("green tea")
    assert [passage.title for passage in found] == ["tea", "ship"]
    assert found[0].score > found[1].score > 0
    assert library.search("zebra") == library.search("?") == library.search("") == []


def test_title_and_headings_match_every_passage(library: DocumentLibrary) -> None:
    library.put([note("# Oolong\n\nIt is hot.\n\n## Brewing\n\nFor three minutes.", "a.md")])
    assert library.search("oolong minutes")[0].headings == ("Oolong", "Brewing")
    assert library.search("brewing")[0].heading == "Oolong › Brewing"


def test_passage_has_its_location(library: DocumentLibrary) -> None:
    library.put([note(LONG, "a.md")])
    document = library.documents()[0]
    passages = library.document_passages(document.id)
    assert document.passages == len(passages) > 4
    assert document.characters == len(LONG)
    for ordinal, passage in enumerate(passages):
        assert (passage.ordinal, passage.chunk_id) == (ordinal, f"{document.id}:{ordinal}")
        reported = library.passage(passage.chunk_id)
        assert LONG[reported.start : reported.end] == reported.text == passage.text.rstrip()
        assert LONG.count("\n", 0, reported.start) + 1 == reported.line_start
        assert library.passages([passage.id]) == [reported]
    assert "".join(passage.text for passage in passages) == LONG


def test_passage_has_its_page(library: DocumentLibrary) -> None:
    content = pdf("Green tea", "Black tea")
    library.put([NewDocument("tea.pdf", "pdf", content, parse("tea.pdf", content), root=ROOT)])
    assert [passage.page for passage in library.search("black")] == [2]
    assert library.documents()[0].pages == 2


def test_passages_of_a_range_overlap_it(library: DocumentLibrary) -> None:
    library.put([note(LONG, "a.md")])
    (document,) = library.documents()
    every = library.document_passages(document.id)
    border = every[1].start
    assert library.document_passages(document.id, start=border) == every[1:]
    assert library.document_passages(document.id, start=border - 1) == every
    assert library.document_passages(document.id, end=border) == every[:1]
    assert library.document_passages(document.id, start=border, end=border + 1) == every[1:2]
    assert library.document_passages(document.id, start=len(LONG)) == []


def test_passages_have_the_order_of_the_ids(library: DocumentLibrary) -> None:
    library.put([note(LONG, "a.md")])
    ids = [passage.id for passage in library.document_passages(library.documents()[0].id)]
    requests = [ids[2], 10_000, ids[0], ids[1]]
    assert [passage.id for passage in library.passages(requests)] == [ids[2], ids[0], ids[1]]
    assert library.passages([]) == []


@pytest.mark.parametrize(
    "chunk_id", ["", "x", ":", "x:0", "{id}", "{id}:", "{id}:99", "{id}:-1", "{id}:1e3", "{id}:0:0", "{id}:99999999999"]
)
def test_missing_passage_raises_not_found(library: DocumentLibrary, chunk_id: str) -> None:
    library.put([note("Tea", "a.md")])
    with pytest.raises(DocumentNotFoundError):
        library.passage(chunk_id.format(id=library.documents()[0].id))


def test_rare_word_weighs_more_than_a_common_one(library: DocumentLibrary) -> None:
    library.put(
        [note(f"Tea number {number}, {'oolong' if number == 3 else 'green'}", f"{number}.md") for number in range(9)]
    )
    weights = library.weights(["tea", "oolong", "zebra", "绿茶", "don't", '"'])
    assert 0 < weights["tea"] < weights["oolong"] < weights["zebra"]
    assert len(weights) == 6


# Ownership


def test_owner_sees_shared_and_own_documents(library: DocumentLibrary) -> None:
    library.put(
        [
            note("Tea for all", "all.md"),
            note("Tea of Anna", "anna.md", owner="anna"),
            note("Tea of Bert", "bert.md", owner="bert"),
        ]
    )
    assert sorted(names(library, "tea", "anna")) == ["all.md", "anna.md"]
    assert sorted(names(library, "tea", "bert")) == ["all.md", "bert.md"]
    assert names(library, "tea") == names(library, "tea", "carl") == names(library, "tea", "") == ["all.md"]
    assert [document.name for document in library.documents(owner="anna")] == ["all.md", "anna.md"]
    assert [document.name for document in library.documents()] == ["all.md"]
    (anna,) = [document for document in library.documents(owner="anna") if document.owner]
    passage = library.search("anna", owner="anna")[0]
    for stranger in ("bert", None, ""):
        with pytest.raises(DocumentNotFoundError):
            library.document(anna.id, owner=stranger)
        with pytest.raises(DocumentNotFoundError):
            library.passage(passage.chunk_id, owner=stranger)
        assert library.passages([passage.id], owner=stranger) == []
    assert library.passage(passage.chunk_id, owner="anna").text == "Tea of Anna"
    assert (library.uploads("anna"), library.uploads("carl")) == (1, 0)


def test_own_document_is_found_behind_many_better_ones_of_others(library: DocumentLibrary) -> None:
    library.put([note("tea tea tea", f"{number}.md", owner="bert") for number in range(300)])
    library.put(
        [
            note("Some words, and among them tea, and more words after it", f"a{number}.md", owner="anna")
            for number in range(3)
        ]
    )
    assert names(library, "tea", "anna", limit=2) == ["a0.md", "a1.md"]
    assert len(names(library, "tea", "anna")) == 3
    assert names(library, "tea") == []


def test_uploads_with_the_same_content_or_name_are_separate(library: DocumentLibrary) -> None:
    library.put([note("Tea", owner="anna"), note("Tea", owner="bert"), note("Other tea", owner="anna")])
    library.put([note("Tea", owner="anna")])
    assert (library.uploads("anna"), library.uploads("bert")) == (2, 1)
    check(library)


# Writing


def test_document_replaces_the_one_with_its_id(library: DocumentLibrary) -> None:
    library.put([note(LONG, "a.md"), note("Ship", "b.md")])
    before = library.documents()[0]
    library.put([note("Only green tea", "a.md")])
    after = library.documents()[0]
    assert (after.id, after.passages) == (before.id, 1)
    assert library.search("oolong") == []
    assert names(library, "green") == ["a.md"]
    assert library.count() == (2, 2)
    check(library)


def test_failed_write_changes_nothing(library: DocumentLibrary) -> None:
    library.put([note("Tea", "a.md")])
    version = library.version()

    def broken() -> Iterator[NewDocument]:
        yield note("Ship", "a.md")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        library.put(broken())
    assert names(library, "tea") == ["a.md"]
    assert library.version() == version
    library.put([note("Ship", "b.md")])
    check(library)


def test_version_changes_with_every_write_of_any_process(
    library: DocumentLibrary, another_process: DocumentLibrary
) -> None:
    seen = {library.version()}
    library.put([note("Tea", "a.md")])
    seen.add(library.version())
    another_process.remove([library.documents()[0].id])
    seen.add(library.version())
    assert len(seen) == 3
    assert library.version() == max(seen)


# Lists


def test_documents_are_listed_by_name_in_pages(library: DocumentLibrary) -> None:
    library.put([note("Tea", f"{number}.md") for number in range(7)])
    library.put([note("Tea", "3.md", owner="anna")])
    seen: list[str] = []
    after = None
    while page := library.documents(owner="anna", after=after, limit=3):
        assert len(page) <= 3
        seen += [document.name for document in page]
        after = page[-1].id
    assert seen == ["0.md", "1.md", "2.md", "3.md", "3.md", "4.md", "5.md", "6.md"]
    assert library.documents(after="nothing") == []


def test_document_search_ignores_case_in_name_and_title(library: DocumentLibrary) -> None:
    library.put(
        [note("# Grüner Tee\n\nx", "Übersicht.md"), note("# Ship\n\nx", "folder/TEA_100%.md"), note("x", "c.md")]
    )

    def listed(search: str) -> list[str]:
        return [document.name for document in library.documents(search=search)]

    assert listed("übersicht") == listed("ÜBER") == listed("Übersicht.md") == listed("GRÜNER") == ["Übersicht.md"]
    assert listed("tea_1") == listed("ship") == listed("100%") == listed("FOLDER/") == ["folder/TEA_100%.md"]
    assert listed("%") == ["folder/TEA_100%.md"]
    assert listed("' OR 1=1 --") == []
    assert len(listed("")) == 3


# Roots


def test_forgotten_root_loses_its_documents_only(library: DocumentLibrary) -> None:
    library.add_root("/a")
    library.add_root("/b")
    library.put(
        [
            note("Tea", "1.md", root="/a"),
            note("Tea", "2.md", root="/a"),
            note("Tea", "3.md", root="/b"),
            note("Tea", owner="anna"),
        ]
    )
    assert library.roots() == {"/a": False, "/b": False}
    assert set(library.digests("/a")) == {"1.md", "2.md"}
    assert library.forget_root("/a") == 2
    assert library.forget_root("/a") == 0
    assert library.roots() == {"/b": False}
    assert library.count() == (2, 2)
    check(library)


def test_other_root_replaces_the_own_documentation(library: DocumentLibrary) -> None:
    library.add_root("/own", is_own=True)
    library.put([note("Tea", "own.md", root="/own")])
    assert library.roots() == {"/own": True}
    library.add_root("/a")
    assert library.roots() == {"/a": False}
    assert library.documents() == []
    check(library)


def test_own_documentation_added_as_a_root_is_kept(library: DocumentLibrary) -> None:
    library.add_root("/own", is_own=True)
    library.put([note("Tea", "own.md", root="/own")])
    library.add_root("/own")
    assert library.roots() == {"/own": False}
    assert library.count() == (1, 1)


# Statistics of one principal do not depend on the documents of another


def corpus() -> list[NewDocument]:
    texts = ["Tea is hot.", "A ship with tea and oolong.", "Oolong isn't black tea. Don't boil oolong.", "A star."]
    notes = [note(text, f"{number}.md") for number, text in enumerate(texts)]
    return [*notes, note("Anna has oolong, and a ship of her own.", "anna.md", owner="anna")]


@pytest.mark.parametrize("query", ["oolong", "tea ship", "Don't boil", "oolong star black", "茶"])
@pytest.mark.parametrize("reader", ["anna", None, "carl"])
def test_scores_and_weights_ignore_documents_of_others(
    library: DocumentLibrary, query: str, reader: str | None
) -> None:
    library.put(corpus())
    terms = query.lower().split()
    before = [(passage.chunk_id, passage.score) for passage in library.search(query, owner=reader)]
    weights = library.weights(terms, owner=reader)
    library.put(
        [note(f"Oolong, oolong! Don't. A star {number}. 茶", f"{number}.md", owner="bert") for number in range(9)]
    )
    after = [(passage.chunk_id, passage.score) for passage in library.search(query, owner=reader)]
    assert after == [(chunk_id, pytest.approx(score, rel=1e-9)) for chunk_id, score in before]
    assert library.weights(terms, owner=reader) == pytest.approx(weights, rel=1e-9)


def test_scores_change_with_the_readers_own_documents(library: DocumentLibrary) -> None:
    library.put(corpus())
    before = library.search("oolong", owner="anna")[0].score
    library.put([note(f"Oolong number {number}.", f"{number}.md", owner="anna") for number in range(9)])
    assert library.search("oolong", owner="anna")[0].score != pytest.approx(before, rel=1e-3)


# Words


def test_words_match_in_other_forms_and_scripts(library: DocumentLibrary) -> None:
    library.put([note("The café's ferries are running. 绿茶很好喝。 snake_case and example.org/path", "a.md")])
    for query in ("ferry", "run", "cafe", "CAFÉ", "绿茶", "case", "example", "path"):
        assert names(library, query) == ["a.md"], query
    assert names(library, "tractor") == []


def test_word_of_any_length_is_indexed(library: DocumentLibrary) -> None:
    library.put([note("x" * 9_000 + " tea", "a.md"), note("tea " * 20_000, "b.md")])
    assert sorted(set(names(library, "tea", limit=100))) == ["a.md", "b.md"]


# Vectors


def test_vectors_are_kept_for_passages_that_exist(library: DocumentLibrary) -> None:
    library.put([note("Tea", "a.md"), note("Ship", "b.md", owner="anna")])
    missing = library.without_vector("toy", 10)
    assert [text.split("\n")[-1].strip() for _, text in missing] == ["Tea", "Ship"]
    ids = [passage_id for passage_id, _ in missing]
    library.put_vectors("toy", [(ids[0], b"\0\0\x80?"), (ids[1] + 100, b"\0\0\0\0")])
    library.put_vectors("toy", [(ids[0], b"\0\0\x80?")])
    assert library.vectors("toy", ids) == [(ids[0], b"\0\0\x80?")]
    assert library.vector_owners("toy") == [(ids[0], None, True), (ids[1], "anna", False)]
    assert library.vector_counts("toy") == (1, 2)
    assert library.vector_counts("other") == (0, 2)
    library.remove([library.documents()[0].id])
    assert library.vector_counts("toy") == (0, 1)


# Several processes


def test_document_of_another_process_is_found_at_once(
    library: DocumentLibrary, another_process: DocumentLibrary
) -> None:
    library.put([note("Tea", "a.md")])
    assert names(another_process, "tea") == ["a.md"]
    another_process.put([note("Oolong", "b.md", owner="anna")])
    assert names(library, "oolong", "anna") == ["b.md"]


def test_same_folder_read_by_two_processes_is_indexed_once(
    library: DocumentLibrary, another_process: DocumentLibrary
) -> None:
    notes = [note(f"Tea number {number}.", f"{number}.md") for number in range(5)]
    library.put(notes)
    another_process.put(notes)
    assert library.count() == (5, 5)
    check(library)
