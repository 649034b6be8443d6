"""Tests of `turnwire index`: its output, and the library afterwards."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.retrieval.paper import opened, pdf, word
from turnwire.cli.main import app
from turnwire.retrieval import indexer
from turnwire.retrieval.service import LIBRARY_FILE


@pytest.fixture(autouse=True)
def no_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_DOCUMENTS_EMBEDDINGS", "off")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "green.md").write_text("# Green\n\nA tea.")
    (folder / "deep" / "black.pdf").write_bytes(pdf("A black tea."))
    (folder / "white.docx").write_bytes(word("A white tea."))
    return folder


def call(data: Path, *arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["index", "--data", str(data), *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def names(data: Path) -> list[str]:
    with opened(data / LIBRARY_FILE) as library:
        return [document.name for document in library.documents()]


def test_folder_is_indexed_and_counted(data: Path, docs: Path) -> None:
    done = call(data, docs)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{docs}: 3 new, 0 changed, 0 unchanged, 0 gone, 0 not readable",
        f"The library holds 3 documents, 3 passages: {data / LIBRARY_FILE}",
    ]
    assert done.stderr == ""
    assert names(data) == ["deep/black.pdf", "green.md", "white.docx"]


def test_second_run_reads_only_changed_documents(data: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(data, docs)
    parsed: list[str] = []
    parse = indexer.parse
    monkeypatch.setattr(indexer, "parse", lambda name, content: (parsed.append(name), parse(name, content))[1])
    assert f"{docs}: 0 new, 0 changed, 3 unchanged, 0 gone" in call(data, docs).stdout
    assert parsed == []
    (docs / "green.md").write_text("# Green\n\nStill a tea.")
    (docs / "white.docx").unlink()
    (docs / "red.txt").write_text("Rooibos.")
    # Without a path, it reads the folders of the library again.
    assert f"{docs}: 1 new, 1 changed, 1 unchanged, 1 gone" in call(data).stdout
    assert sorted(parsed) == ["green.md", "red.txt"]


def test_unreadable_files_are_named_with_the_reason(data: Path, docs: Path) -> None:
    (docs / "broken.pdf").write_bytes(b"no PDF")
    (docs / "link.md").symlink_to("/etc/hostname")
    done = call(data, docs)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "  broken.pdf: it is not a valid PDF",
        "  link.md: it is a link to outside of the folder",
    ]
    assert "3 new, 0 changed, 0 unchanged, 0 gone, 2 not readable" in done.stdout


def test_several_files_and_folders_are_indexed(data: Path, docs: Path) -> None:
    done = call(data, docs / "green.md", docs / "deep")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:2]] == [
        str(docs / "green.md"),
        str(docs / "deep"),
    ]
    assert names(data) == ["black.pdf", "green.md"]


def test_file_of_unknown_format_is_named(data: Path, docs: Path) -> None:
    (docs / "tea.exe").write_text("Tea")
    assert "tea.exe: its format can't be read. Supported: .adoc" in call(data, docs / "tea.exe").stderr


def test_forgotten_folder_is_removed_and_its_files_stay(data: Path, docs: Path) -> None:
    call(data, docs, docs / "green.md")
    done = call(data, "--forget", docs)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"{docs}: 3 documents removed"
    assert "The library holds 1 documents" in done.stdout
    assert names(data) == ["green.md"]
    assert call(data, "--forget", docs).stdout.splitlines()[0] == f"{docs}: not in the library"
    assert (docs / "green.md").exists()


def test_folder_that_no_longer_exists_can_be_forgotten(data: Path, docs: Path) -> None:
    call(data, docs)
    docs.rename(docs.with_name("moved"))
    assert "3 documents removed" in call(data, "--forget", docs).stdout
    assert names(data) == []


def test_folder_can_replace_a_forgotten_folder(data: Path, docs: Path) -> None:
    call(data, docs)
    done = call(data, "--forget", docs, docs / "deep")
    assert "3 documents removed" in done.stdout
    assert names(data) == ["black.pdf"]


def test_index_without_any_folder_is_refused_with_a_hint(data: Path) -> None:
    refused = call(data)
    assert refused.exit_code == 1
    assert refused.stderr == "turnwire: nothing was indexed before; name files or folders: turnwire index PATH…\n"


def test_missing_path_is_refused_before_anything_is_read(data: Path, docs: Path) -> None:
    refused = call(data, docs, docs / "nothing")
    assert refused.exit_code == 1
    assert refused.stderr == f"turnwire: {docs / 'nothing'} does not exist\n"
    assert not (data / LIBRARY_FILE).exists()


def test_library_of_another_version_is_refused_with_a_reason(data: Path, docs: Path) -> None:
    call(data, docs)
    with opened(data / LIBRARY_FILE) as library, library.file.writing() as database:
        database.execute("PRAGMA user_version = 99")
    refused = call(data, docs)
    assert refused.exit_code == 1
    assert "it has version 99" in refused.stderr
    assert "Traceback" not in refused.output


def test_document_over_the_limit_is_named(data: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_DOCUMENTS_MAX_BYTES", "100")
    assert "white.docx: it is over the limit of 100 bytes" in call(data, docs).stderr


def test_interrupted_run_keeps_the_read_documents(data: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = indexer.parse
    monkeypatch.setattr(indexer, "_BATCH_DOCUMENTS", 1)

    def interrupted(name: str, content: bytes) -> object:
        if name == "white.docx":
            raise KeyboardInterrupt
        return parse(name, content)

    monkeypatch.setattr(indexer, "parse", interrupted)
    stopped = call(data, docs)
    assert "Stopped. The documents read so far are kept" in stopped.stdout
    monkeypatch.setattr(indexer, "parse", parse)
    assert names(data) == ["green.md"]
    assert "2 new, 0 changed, 1 unchanged" in call(data).stdout
