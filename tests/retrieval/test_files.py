"""Finding and reading files, without ever opening anything outside the root."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents import files
from turnwire.retrieval.documents.files import find_files, printable_name, read_file

MOST = 1_000
OUTSIDE = "it is a link to outside of the folder"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder beside another one with a secret."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.md").write_text("secret")
    folder = tmp_path / "documents"
    folder.mkdir()
    return folder


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def found(root: Path) -> dict[str, str | None]:
    return {item.name: item.problem for item in find_files(root)}


def failure_reason(path: Path, root: Path, most: int = MOST) -> str:
    with pytest.raises(UnreadableDocumentError) as refused:
        read_file(path, root, most)
    return str(refused.value)


# Finding


def test_supported_files_are_found_in_a_stable_order(root: Path) -> None:
    write(root, "b.md", "a.txt", "c.exe", "folder/z.pdf", "folder/deep/y.html", "another/x.docx", "none")
    assert list(found(root)) == ["a.txt", "b.md", "another/x.docx", "folder/z.pdf", "folder/deep/y.html"]
    assert list(found(root)) == list(found(root))


def test_hidden_and_vendored_folders_are_skipped(root: Path) -> None:
    write(root, ".hidden.md", ".git/a.md", "folder/.cache/a.md", "node_modules/a.md", "venv/a.md", "__pycache__/a.md")
    write(root, "folder/kept.md")
    assert list(found(root)) == ["folder/kept.md"]


def test_root_can_be_a_single_file(root: Path) -> None:
    write(root, "a.md", "b.md")
    (item,) = find_files(root / "a.md")
    assert (item.name, item.path) == ("a.md", root / "a.md")
    assert read_file(item.path, root / "a.md", MOST) == b"a.md"


def test_missing_root_is_listed_but_unreadable(root: Path) -> None:
    (item,) = find_files(root / "gone.md")
    assert failure_reason(item.path, root / "gone.md") == "No such file or directory"


def test_name_that_is_not_utf8_is_printable_and_unique(root: Path) -> None:
    for name in (b"caf\xe9.md", b"caf\xe8.md", "café.md".encode(), b"new\nline\x1b[31m.md"):
        (root / os.fsdecode(name)).write_bytes(name)
    assert sorted(found(root)) == ["caf\\xe8.md", "caf\\xe9.md", "café.md", "new\nline[31m.md"]
    for item in find_files(root):
        item.name.encode()
        assert read_file(item.path, root, MOST) == os.fsencode(item.path.name)
    assert printable_name(os.fsdecode(b"\xff")) == "\\xff"


def test_unreadable_folder_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "a.md", "closed/b.md", "open/c.md")
    scandir = os.scandir

    def refusing(path: str) -> Iterator[os.DirEntry[str]]:
        # Simulated, because the tests may run as root, who may read everything.
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert found(root) == {"a.md": None, "open/c.md": None, "closed": "Permission denied"}


# Links


def test_link_out_of_the_root_is_a_problem(root: Path) -> None:
    (root / "file.md").symlink_to(root.parent / "secret" / "key.md")
    (root / "relative.md").symlink_to("../secret/key.md")
    (root / "folder").symlink_to(root.parent / "secret")
    (root / "beside").symlink_to("../documents-of-another")
    (root / "sub").mkdir()
    (root / "sub" / "up.md").symlink_to("../../secret/key.md")
    assert found(root) == dict.fromkeys(("folder", "file.md", "relative.md", "sub/up.md"), OUTSIDE)


def test_folder_with_the_same_prefix_is_outside(root: Path) -> None:
    (root.parent / "documents-2").mkdir()
    (root.parent / "documents-2" / "a.md").write_text("secret")
    (root / "a.md").symlink_to("../documents-2/a.md")
    assert found(root) == {"a.md": OUTSIDE}


def test_link_inside_the_root_is_listed_once(root: Path) -> None:
    write(root, "folder/a.md")
    (root / "b.md").symlink_to("folder/a.md")
    (root / "again").symlink_to("folder")
    (root / "round").symlink_to(".")
    assert found(root) == {"folder/a.md": None}


def test_dangling_link_is_ignored(root: Path) -> None:
    write(root, "a.md")
    (root / "itself.md").symlink_to("itself.md")
    (root / "there.md").symlink_to("back.md")
    (root / "back.md").symlink_to("there.md")
    (root / "dangling.md").symlink_to("nothing.md")
    assert found(root) == {"a.md": None}


def test_link_that_replaced_a_file_is_not_opened(root: Path) -> None:
    write(root, "a.md")
    (item,) = find_files(root)
    item.path.unlink()
    item.path.symlink_to(root.parent / "secret" / "key.md")
    assert "symbolic links" in failure_reason(item.path, root)


def test_link_that_replaced_a_folder_is_not_followed(root: Path) -> None:
    write(root, "folder/deep/key.md")
    (item,) = find_files(root)
    (root / "folder" / "deep").rename(root / "folder" / "kept")
    (root / "folder" / "deep").symlink_to(root.parent / "secret")
    assert item.path.read_text() == "secret"
    assert failure_reason(item.path, root)
    (root / "folder").rename(root / "moved")
    (root / "folder").symlink_to(root / "moved")
    assert failure_reason(item.path, root)


# Unreadable files


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_special_file_is_refused_without_blocking(
    make: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("d")  # A socket's path must be short.
    make(root / "a.md")
    assert list(found(root)) == ["a.md"]
    assert failure_reason(root / "a.md", root) in ("it is not a regular file", "No such device or address")


def test_folder_named_like_a_document_is_a_folder(root: Path) -> None:
    write(root, "a.md/b.md")
    assert list(found(root)) == ["a.md/b.md"]
    assert failure_reason(root / "a.md", root)


def test_file_over_the_limit_is_refused_unread(root: Path) -> None:
    (root / "a.md").write_bytes(b"x" * 1_001)
    assert failure_reason(root / "a.md", root, 1_000) == "it is over the limit of 1,000 bytes"
    assert len(read_file(root / "a.md", root, 1_001)) == 1_001


def test_file_without_permission_is_refused_with_a_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "a.md")
    opened = os.open

    def refusing(path: str, flags: int, **where: int) -> int:
        if os.fspath(path).endswith("a.md"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, **where)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "supports_dir_fd", {refusing})
    assert failure_reason(root / "a.md", root) == "Permission denied"


def test_no_descriptor_leaks(root: Path) -> None:
    write(root, "folder/a.md")
    (root / "folder" / "link.md").symlink_to("a.md")
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        read_file(root / "folder" / "a.md", root, MOST)
        failure_reason(root / "folder" / "link.md", root)
        failure_reason(root / "folder" / "a.md", root, 2)
        failure_reason(root / "folder", root)
        failure_reason(root / "nothing" / "a.md", root)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_system_without_dir_fd_reads_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "folder/a.md")
    monkeypatch.setattr(files.os, "supports_dir_fd", set())
    assert read_file(root / "folder" / "a.md", root, MOST) == b"folder/a.md"
