"""Files below a root. Nothing outside the root is ever opened, whatever links or names say."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from turnwire.core.errors import UnreadableDocumentError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.documents.parser import format_of

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv"})


class FoundFile(Struct, frozen=True):
    """A file below a root. `name` is its relative path, safe to print; `problem` says why it cannot be read."""

    name: str
    path: Path
    problem: str | None = None


def find_files(root: Path) -> Iterator[FoundFile]:
    """Yield every file of a supported format in a stable order; a link out of the root has a `problem`."""
    if not root.is_dir():
        yield FoundFile(printable_name(root.name), root)
        return
    errors: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=errors.append):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        documents = sorted(name for name in files if not name.startswith(".") and format_of(name) is not None)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for path in (Path(folder, name) for name in (*links, *documents)):
            name = printable_name(path.relative_to(root).as_posix())
            if not path.is_symlink():
                yield FoundFile(name, path)
            # Not `Path.resolve`, which raises for a link to itself.
            elif not Path(os.path.realpath(path)).is_relative_to(root):
                yield FoundFile(name, path, "it is a link to outside of the folder")
            # The target of a link inside the root is listed anyway.
    for error in errors:
        path = Path(error.filename)
        yield FoundFile(printable_name(path.relative_to(root).as_posix()), path, error.strerror)


def printable_name(name: str) -> str:
    """Return a file name as text that is safe to print, with bytes that are not UTF-8 as `\\xff`."""
    return clean_text(os.fsencode(name).decode("utf-8", "backslashreplace"))


def read_file(path: Path, root: Path, max_bytes: int) -> bytes:
    """Return the content of a file. Raise UnreadableDocumentError, also if a link has replaced a part of its path."""
    try:
        descriptor = _open(path, root)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableDocumentError("it is not a regular file")
            if status.st_size > max_bytes:
                raise UnreadableDocumentError(f"it is over the limit of {max_bytes:,} bytes")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableDocumentError(error.strerror or str(error)) from error


def _open(path: Path, root: Path) -> int:
    """Open each part of the path from the root on, because O_NOFOLLOW checks only the last part of a path."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path == root or os.open not in os.supports_dir_fd:
        return os.open(path, flags)
    current = os.open(root, flags)
    try:
        for part in path.relative_to(root).parts:
            child = os.open(part, flags, dir_fd=current)
            os.close(current)
            current = child
    except OSError:
        os.close(current)
        raise
    return current
