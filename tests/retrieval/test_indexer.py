"""The indexer: reading, watching, uploads, embedding and closing."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.retrieval.paper import note, opened, pdf
from tests.retrieval.test_vectors import Toy
from tests.serving import PATIENCE, until, within
from turnwire.core.errors import (
    EmbedderError,
    EmbedderUnusableError,
    StoreError,
    StoreUnusableError,
    TooManyDocumentsError,
    UnreadableDocumentError,
)
from turnwire.retrieval import indexer as indexer_module
from turnwire.retrieval.documents import files
from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.index.searcher import VectorIndex
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.indexer import DocumentIndexer
from turnwire.retrieval.settings import DocumentSettings


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire"):
        yield


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors or "expects_errors" in request.fixturenames


@pytest.fixture
def expects_errors() -> None:
    """Marker of tests with an expected failure in the log."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "documents.db"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("green", "black", "white"):
        (folder / f"{name}.md").write_text(f"# {name.title()}\n\nA tea.")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "turnwire.md").write_text("# Turnwire\n\nA log for every turn.")
    return folder


@asynccontextmanager
async def open_indexer(
    path: Path, *roots: Path, own: tuple[Path, ...] = (), meaning: Toy | None = None, watch: bool = False, **limits: Any
) -> AsyncIterator[DocumentIndexer]:
    library = SqliteLibrary(path)
    vectors = None if meaning is None else VectorIndex(library, meaning)
    indexer = DocumentIndexer(library, roots, own, settings=DocumentSettings(**limits), meaning=vectors, watch=watch)
    await indexer.open()
    try:
        yield indexer
    finally:
        await within(indexer.close())


async def read(indexer: DocumentIndexer) -> None:
    await until(lambda: not indexer.is_reading)


async def names(indexer: DocumentIndexer, owner: str | None = None) -> list[str]:
    documents = await asyncio.to_thread(indexer.library.documents, owner=owner)
    return [document.name for document in documents]


def fill(path: Path) -> None:
    with opened(path) as library:
        library.put([note("Tea")])


def count(path: Path) -> int:
    with opened(path) as library:
        return library.count()[0]


class Gate:
    """A gate that holds the reading of files, with a bounded wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._name = name
        self._read = files.read_file
        monkeypatch.setattr("turnwire.retrieval.indexer.read_file", self)

    def __call__(self, path: Path, *rest: Any) -> bytes:
        if path.name == self._name:
            self.reached.set()
            assert self.open.wait(PATIENCE)
        return self._read(path, *rest)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Gate]:
    """Return a factory of gates before the file of a name."""
    return lambda name: Gate(monkeypatch, name)


# Reading


async def test_configured_roots_are_read_in_the_background(path: Path, docs: Path, own: Path) -> None:
    async with open_indexer(path, docs, own=(own,)) as indexer:
        await read(indexer)
        assert await names(indexer) == ["black.md", "green.md", "white.md"]
        assert (indexer.progress.done, indexer.progress.total) == (3, 3)


async def test_stored_roots_are_read_again(path: Path, docs: Path, own: Path) -> None:
    async with open_indexer(path, docs) as indexer:
        await read(indexer)
    (docs / "red.md").write_text("Rooibos.")
    (docs / "white.md").unlink()
    async with open_indexer(path, own=(own,)) as indexer:
        await read(indexer)
        assert await names(indexer) == ["black.md", "green.md", "red.md"]


async def test_own_documentation_is_read_without_other_roots(path: Path, docs: Path, own: Path) -> None:
    async with open_indexer(path, own=(own / "turnwire.md",)) as indexer:
        await read(indexer)
        assert await names(indexer) == ["turnwire.md"]
    async with open_indexer(path, docs, own=(own,)) as indexer:
        await read(indexer)
        assert "turnwire.md" not in await names(indexer)


async def test_own_documentation_is_read_without_the_pages_for_contributors(path: Path, own: Path) -> None:
    for folder in ("adr", "guides", "research"):
        (own / folder).mkdir()
        (own / folder / f"{folder}.md").write_text("About tea.")
    for page in ("architecture.md", "designs.md", "releasing.md"):
        (own / page).write_text("About tea.")
    async with open_indexer(path, own=(own,)) as indexer:
        await read(indexer)
        assert await names(indexer) == ["guides/guides.md", "turnwire.md"]
    # Documents of the user's own may have such names.
    async with open_indexer(path, own, own=(own,)) as indexer:
        await read(indexer)
        assert "adr/adr.md" in await names(indexer)


async def test_unreadable_file_is_logged(path: Path, docs: Path, caplog: pytest.LogCaptureFixture) -> None:
    (docs / "broken.pdf").write_bytes(b"no PDF")
    async with open_indexer(path, docs) as indexer:
        await read(indexer)
        assert len(await names(indexer)) == 3
    assert "broken.pdf was not indexed: it is not a valid PDF" in caplog.text


async def test_missing_folder_does_not_stop_the_others(path: Path, docs: Path) -> None:
    async with open_indexer(path, docs.parent / "a" / "gone", docs, watch=True) as indexer:
        await read(indexer)
        assert len(await names(indexer)) == 3
        (docs / "red.md").write_text("Rooibos.")
        await until(lambda: indexer.progress.total == 4)


async def test_unusable_library_file_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database " * 100)
    with pytest.raises(StoreUnusableError):
        async with open_indexer(path):
            pass


# Notices


async def notices_of(indexer: DocumentIndexer) -> list[str]:
    return [notice async for notice in indexer.notices()]


async def test_no_notice_after_everything_is_read(path: Path, docs: Path) -> None:
    async with open_indexer(path, docs) as indexer:
        await read(indexer)
        assert await notices_of(indexer) == []


async def test_question_to_an_empty_library_waits(path: Path, docs: Path, gate: Callable[[str], Gate]) -> None:
    held = gate("green.md")
    async with open_indexer(path, docs) as indexer:
        assert await asyncio.to_thread(held.reached.wait, PATIENCE)
        notices = indexer.notices()
        assert await within(anext(notices)) == "The documents are still being read: 1 of 3 files."
        rest = asyncio.ensure_future(anext(notices, None))
        done, _ = await asyncio.wait([rest], timeout=0.05)
        assert not done
        held.open.set()
        assert await within(rest) is None
        assert len(await names(indexer)) == 3


async def test_question_to_a_filled_library_does_not_wait(path: Path, docs: Path, gate: Callable[[str], Gate]) -> None:
    await asyncio.to_thread(fill, path)
    held = gate("black.md")
    async with open_indexer(path, docs) as indexer:
        assert await asyncio.to_thread(held.reached.wait, PATIENCE)
        assert await within(notices_of(indexer)) == ["The documents are still being read."]
        held.open.set()


async def test_question_waits_briefly_once_some_documents_are_read(
    path: Path, docs: Path, gate: Callable[[str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer_module, "_BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(indexer_module, "_PARTIAL_WAIT_SECONDS", 0.01)
    held = gate("white.md")
    async with open_indexer(path, docs) as indexer:
        assert await asyncio.to_thread(held.reached.wait, PATIENCE)
        assert await within(notices_of(indexer)) == ["The documents are still being read: 2 of 3 files."]
        assert indexer.is_reading
        held.open.set()


async def test_question_wait_is_bounded(
    path: Path, docs: Path, gate: Callable[[str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer_module, "_EMPTY_WAIT_SECONDS", 0.01)
    held = gate("black.md")
    async with open_indexer(path, docs) as indexer:
        assert await within(notices_of(indexer))
        assert indexer.is_reading
        held.open.set()


# Uploads


@pytest.mark.process
async def test_upload_is_visible_to_its_owner_only(path: Path) -> None:
    async with open_indexer(path) as indexer:
        document = await within(indexer.add("tea.pdf", pdf("Anna drinks oolong."), "anna"))
        assert (document.owner, document.format, document.pages, document.root) == ("anna", "pdf", 1, None)
        assert await names(indexer, "anna") == ["tea.pdf"]
        assert await names(indexer, "bert") == []
        assert await asyncio.to_thread(indexer.library.search, "oolong", owner="anna")
        await indexer.remove(document.id)
        assert await names(indexer, "anna") == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tea.exe", b"Tea", "its format is not known"),
        ("tea.pdf", b"no PDF", "it is not a valid PDF"),
    ],
)
async def test_unreadable_upload_is_refused_with_a_reason(path: Path, name: str, content: bytes, why: str) -> None:
    async with open_indexer(path, max_uploads=1) as indexer:
        with pytest.raises(UnreadableDocumentError, match=why):
            await within(indexer.add(name, content, "anna"))
        # A refused upload does not count.
        await within(indexer.add("tea.md", b"Tea", "anna"))


@pytest.mark.process
async def test_slow_upload_is_refused(path: Path) -> None:
    async with open_indexer(path, timeout=0.001) as indexer:
        with pytest.raises(UnreadableDocumentError, match=r"it took longer than 0\.001 seconds to read"):
            await within(indexer.add("tea.md", b"Tea", "anna"))


async def test_parallel_uploads_keep_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def parse_here(name: str, content: bytes, timeout: float) -> ParsedDocument:
        return await asyncio.to_thread(parse, name, content)

    monkeypatch.setattr(indexer_module, "parse_in_sandbox", parse_here)
    async with open_indexer(path, max_uploads=3) as indexer:
        adding = [indexer.add(f"{number}.md", b"Tea", "anna") for number in range(10)]
        answers = await within(asyncio.gather(*adding, return_exceptions=True))
        refused = [answer for answer in answers if isinstance(answer, TooManyDocumentsError)]
        assert len(refused) == 7
        assert len(await names(indexer, "anna")) == 3
        assert "3 documents are uploaded already" in str(refused[0])
        # The limit is per owner, and deleting a document frees its slot.
        document = await within(indexer.add("tea.md", b"Tea", "bert"))
        assert document.owner == "bert"
        (first, *_) = await asyncio.to_thread(indexer.library.documents, owner="anna")
        await indexer.remove(first.id)
        await within(indexer.add("again.md", b"Tea", "anna"))


# Watching


async def test_changed_file_is_indexed_by_the_watch(path: Path, docs: Path) -> None:
    async with open_indexer(path, docs, watch=True) as indexer:
        await read(indexer)
        (docs / "green.md").write_text("# Sencha\n\nFrom Japan.")
        (docs / "black.md").unlink()
        await until(lambda: indexer.progress.removed == 1)
        await within(_until_found(indexer, "sencha"))
        assert await names(indexer) == ["green.md", "white.md"]


async def test_change_before_the_watch_began_is_indexed(path: Path, docs: Path, gate: Callable[[str], Gate]) -> None:
    held = gate("white.md")
    async with open_indexer(path, docs, watch=True) as indexer:
        # Without a change, the other two are not read again.
        assert await asyncio.to_thread(held.reached.wait, PATIENCE)
        (docs / "black.md").write_text("# Assam\n\nFrom India.")
        held.open.set()
        await within(_until_found(indexer, "assam"))


async def test_single_file_is_watched(path: Path, docs: Path) -> None:
    async with open_indexer(path, docs / "green.md", watch=True) as indexer:
        await read(indexer)
        (docs / "black.md").write_text("Nobody asked for it.")
        # Editors save by replacing the file.
        (docs / "new").write_text("# Sencha\n\nFrom Japan.")
        (docs / "new").rename(docs / "green.md")
        await within(_until_found(indexer, "sencha"))
        assert await names(indexer) == ["green.md"]


async def _until_found(indexer: DocumentIndexer, query: str) -> None:
    while not await asyncio.to_thread(indexer.library.search, query):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# Vectors


@pytest.mark.process
async def test_vectors_are_made_after_reading_and_after_uploads(path: Path, docs: Path) -> None:
    toy = Toy()
    async with open_indexer(path, docs, meaning=toy) as indexer:
        await until(lambda: indexer.embedded == (3, 3))
        await within(indexer.add("tea.md", b"Oolong", "anna"))
        await until(lambda: indexer.embedded == (4, 4))
    assert toy.is_closed


@pytest.mark.process
async def test_failed_embedding_leaves_the_search_by_words(
    path: Path, docs: Path, caplog: pytest.LogCaptureFixture, expects_errors: None
) -> None:
    toy = Toy()
    toy.error = EmbedderError("toy", "it is broken; mend it")
    async with open_indexer(path, docs, meaning=toy) as indexer:
        await until(lambda: "the search is by words only" in caplog.text)
        await within(indexer.add("tea.md", b"Oolong", "anna"))
        assert await asyncio.to_thread(indexer.library.search, "tea")


@pytest.mark.process
async def test_embedding_goes_on_after_a_passing_failure(
    path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(indexer_module, "_RETRY_SECONDS", 0.01)
    toy = Toy()
    toy.error = EmbedderError("toy", "its server answered 503; try again later")
    async with open_indexer(path, docs, meaning=toy) as indexer:
        await until(lambda: "answered 503" in caplog.text)
        toy.error = None
        await until(lambda: indexer.embedded == (3, 3))


@pytest.mark.process
async def test_embedding_ends_when_the_embedder_is_unusable(
    path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expects_errors: None
) -> None:
    monkeypatch.setattr(indexer_module, "_RETRY_SECONDS", 0)
    toy = Toy()
    toy.error = EmbedderUnusableError("toy", "its server answered 401; check its key")
    async with open_indexer(path, docs, meaning=toy) as indexer:
        await until(lambda: "the passages cannot be embedded" in caplog.text)
        toy.error = None
        await within(indexer.add("tea.md", b"Oolong", "anna"))
    assert toy.embedded == []


@pytest.mark.process
@pytest.mark.parametrize("error", [StoreError("the database is away"), sqlite3.OperationalError("database is locked")])
@pytest.mark.parametrize("method", ["put", "put_vectors"])
async def test_indexer_goes_on_after_a_failure_of_the_database(
    path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    monkeypatch.setattr(indexer_module, "_RETRY_SECONDS", 0.01)
    works, failures = getattr(SqliteLibrary, method), [error, error]

    def fail_twice(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(*args)

    monkeypatch.setattr(SqliteLibrary, method, fail_twice)
    async with open_indexer(path, docs, meaning=Toy()) as indexer:
        await until(lambda: indexer.embedded == (3, 3))
        assert failures == []


# Closing


async def test_failed_indexer_can_be_searched_and_closed(
    path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expects_errors: None
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("nobody thought of this")

    await asyncio.to_thread(fill, path)
    monkeypatch.setattr(indexer_module, "sync_root", fail)
    async with open_indexer(path, docs) as indexer:
        await read(indexer)
        assert await names(indexer) == ["note.md"]
    assert "the documents are no longer kept up to date" in caplog.text
    assert await asyncio.to_thread(count, path) == 1


async def test_close_ends_a_sync_between_two_files(path: Path, docs: Path, gate: Callable[[str], Gate]) -> None:
    held = gate("green.md")
    async with open_indexer(path, docs) as indexer:
        assert await asyncio.to_thread(held.reached.wait, PATIENCE)
        closing = asyncio.ensure_future(indexer.close())
        # Closing waits for the current file only.
        done, _ = await asyncio.wait([closing], timeout=0.05)
        assert not done
        held.open.set()
        await within(closing)
        assert indexer.progress.done == 2
    assert await asyncio.to_thread(count, path) == 0
    async with open_indexer(path, docs) as indexer:
        await read(indexer)
        assert len(await names(indexer)) == 3


@pytest.mark.parametrize("turns", range(0, 12, 3))
async def test_indexer_can_be_closed_at_any_time(path: Path, docs: Path, turns: int) -> None:
    async with open_indexer(path, docs, meaning=Toy(), watch=True):
        for _ in range(turns):
            await asyncio.sleep(0)
    assert await asyncio.to_thread(count, path) in (0, 3)


async def test_close_while_watching_does_not_hang(path: Path, docs: Path) -> None:
    async with open_indexer(path, docs, watch=True) as indexer:
        await read(indexer)
        (docs / "green.md").write_text("Sencha")


async def test_close_during_an_upload_leaves_no_process(path: Path) -> None:
    async with open_indexer(path) as indexer:
        adding = asyncio.ensure_future(indexer.add("tea.md", b"Tea", "anna"))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(adding)
        assert await names(indexer, "anna") == []
