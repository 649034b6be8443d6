"""Which files a root holds. Nothing outside of it is ever opened, whatever links or names say."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from turnwire.core.codec import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.parser import format_of

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv"})


class FoundFile(Struct, frozen=True):
    """A file below a root; `name` is its path from there, as text that can be shown."""

    name: str
    path: Path
    problem: str | None = None


def find_files(root: Path) -> Iterator[FoundFile]:
    """Every file of a known format, in a stable order; a link out of the root is named as a problem."""
    if not root.is_dir():
        yield FoundFile(shown(root.name), root)
        return
    closed: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=closed.append):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        documents = sorted(name for name in files if not name.startswith(".") and format_of(name) is not None)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for path in (Path(folder, name) for name in (*links, *documents)):
            name = shown(path.relative_to(root).as_posix())
            if not path.is_symlink():
                yield FoundFile(name, path)
            # Not `Path.resolve`: that raises for a link to itself.
            elif not Path(os.path.realpath(path)).is_relative_to(root):
                yield FoundFile(name, path, "it is a link to outside of the folder")
            # A link inside the folder leads to what is found anyway.
    for error in closed:
        path = Path(error.filename)
        yield FoundFile(shown(path.relative_to(root).as_posix()), path, error.strerror)


def shown(name: str) -> str:
    """A file's name as text that is safe to print: bytes that are not UTF-8 are written as `\\xff`."""
    return clean_text(os.fsencode(name).decode("utf-8", "backslashreplace"))


def read_file(path: Path, root: Path, most_bytes: int) -> bytes:
    """Raises UnreadableDocumentError. A link that took the place of the file, or of a folder on the way, ends it."""
    try:
        descriptor = _open(path, root)
        try:
            told = os.fstat(descriptor)
            if not stat.S_ISREG(told.st_mode):
                raise UnreadableDocumentError("it is not a regular file")
            if told.st_size > most_bytes:
                raise UnreadableDocumentError(f"it is over the limit of {most_bytes:,} bytes")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(most_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableDocumentError(error.strerror or str(error)) from error


def _open(path: Path, root: Path) -> int:
    """Step by step from the root, because O_NOFOLLOW looks at the last part of a path only."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path == root or os.open not in os.supports_dir_fd:
        return os.open(path, flags)
    here = os.open(root, flags)
    try:
        for part in path.relative_to(root).parts:
            there = os.open(part, flags, dir_fd=here)
            os.close(here)
            here = there
    except OSError:
        os.close(here)
        raise
    return here
