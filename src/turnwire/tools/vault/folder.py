"""The folder of notes itself: what is read and written below it, and nothing beside it.

Its root is opened once; from there every folder on the way to a note is opened by its name, never through a link, so
that no name, and no link that is put there meanwhile, leads out of it. All methods block.
"""

import errno
import os
import re
import stat
import threading
import unicodedata
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from turnwire.core.errors import ToolError

# Which names a note may have. A path comes from a model, which may have it from a note that wants to be obeyed.


_LONGEST_PATH = 1_000
_LONGEST_PART_BYTES = 255
_JOINER = "\u200d"
"""Holds many an emoji together; every other invisible character could make one name look like another."""
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# What one system or another takes for a folder, a drive or a stream of a file.
_SPECIAL = re.compile(r"[\\:]")
# What some system cannot have in a name, or a link of Obsidian's. A vault is carried from one to another.
_UNWISE = re.compile(r'[*?"<>|#^\[\]]')
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def note_parts(path: str) -> tuple[str, ...]:
    """The folders and the name of a note below the vault. Raises ToolError, which tells the model what would do."""
    parts = _parts(path)
    if not is_note(parts[-1]):
        raise ToolError("only notes can be read and written: give a path that ends in .md")
    return parts


def new_note_parts(path: str) -> tuple[str, ...]:
    """The same for a note that is to be made, whose name must do everywhere."""
    parts = note_parts(path)
    if _UNWISE.search(path):
        raise ToolError('a new note must have none of * ? " < > | # ^ [ ] in its path')
    return parts


def folder_parts(path: str) -> tuple[str, ...]:
    """The folders of a path below the vault; of the vault itself there are none. Raises ToolError."""
    return () if path.strip() in ("", ".", "/") else _parts(path.rstrip("/"))


def is_note(name: str) -> bool:
    return name.lower().endswith(".md") and len(name) > len(".md")


def _parts(path: str) -> tuple[str, ...]:
    if len(path) > _LONGEST_PATH:
        raise ToolError(f"the path is longer than {_LONGEST_PATH:,} characters")
    if any(unicodedata.category(character) in _INVISIBLE and character != _JOINER for character in path):
        raise ToolError("the path has a character in it that nobody could see")
    if path.startswith(("/", "~")) or _SPECIAL.search(path):
        raise ToolError("give the path below the vault, such as 'Projects/Plan.md', with no colon or backslash in it")
    parts = tuple(path.split("/"))
    for part in parts:
        # Some file systems do not see a joiner, so that a name which begins with one would be hidden all the same.
        if part.replace(_JOINER, "").startswith("."):
            raise ToolError("hidden files and folders, and what is outside of the vault, are not notes")
        if not part.strip() or part != part.strip() or part.endswith(".") or _DEVICE.fullmatch(part):
            raise ToolError(f"no file can be called {part!r}")
        if len(part.encode()) > _LONGEST_PART_BYTES:
            raise ToolError("a name in the path is too long")
    return parts


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What is no file must not keep anybody waiting until somebody writes into it.
_NOTE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


class VaultLimits(Struct, frozen=True, kw_only=True):
    """`note_bytes` is for a whole note, read or grown; `write_bytes` for what is written at once."""

    note_bytes: int = 2_000_000
    write_bytes: int = 200_000


class Vault:
    """Raises ToolError, in words for a model, wherever something cannot be done."""

    def __init__(self, root: Path, limits: VaultLimits | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self._limits = limits or VaultLimits()
        self._descriptor: int | None = None
        self._opening = threading.Lock()
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        """What Obsidian calls the vault."""
        return self.root.name

    def close(self) -> None:
        with self._opening:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def read(self, path: str) -> bytes:
        *folders, name = note_parts(path)
        with _explained(path), self._opened(folders) as folder:
            descriptor = os.open(name, os.O_RDONLY | _NOTE, dir_fd=folder)
            with open(descriptor, "rb") as file:
                self._check(descriptor, path)
                return file.read(self._limits.note_bytes)

    def notes(self, folder: str = "") -> list[str]:
        """The paths of all notes below a folder, in order."""
        parts = folder_parts(folder)
        with _explained(folder or "the vault"), self._opened(parts) as descriptor:
            return sorted(_walk(descriptor, "".join(f"{part}/" for part in parts)))

    def create(self, path: str, content: str) -> None:
        """Makes a note, and the folders on the way to it. One that is there already is never touched."""
        *folders, name = new_note_parts(path)
        written = self._encoded(content)
        with self._writing, _explained(path), self._opened(folders, make=True) as folder:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOTE, 0o666, dir_fd=folder)
            try:
                _write(descriptor, written)
            except OSError:
                # Half a note would keep the whole one from being made.
                os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
            os.fsync(folder)

    def append(self, path: str, content: str) -> None:
        """Adds lines to the end of a note that is there."""
        *folders, name = note_parts(path)
        written = self._encoded(content)
        with self._writing, _explained(path), self._opened(folders) as folder:
            descriptor = os.open(name, os.O_RDWR | os.O_APPEND | _NOTE, dir_fd=folder)
            try:
                size = self._check(descriptor, path, len(written) + 1)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    written = b"\n" + written
                try:
                    _write(descriptor, written)
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)

    def _encoded(self, content: str) -> bytes:
        written = content.encode() if content.endswith("\n") else f"{content}\n".encode()
        if len(written) > self._limits.write_bytes:
            raise ToolError(f"that is over {self._limits.write_bytes:,} bytes at once; write less")
        return written

    def _check(self, descriptor: int, path: str, more: int = 0) -> int:
        """The size of an open note, which must be one."""
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode):
            raise ToolError(f"{path!r} is not a note")
        if told.st_size + more > self._limits.note_bytes:
            raise ToolError(f"the note {path!r} is, or would be, over {self._limits.note_bytes:,} bytes")
        return told.st_size

    def _root(self) -> int:
        with self._opening:
            if self._descriptor is None:
                try:
                    # The one link that is followed is the operator's own.
                    self._descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError as error:
                    raise ToolError(f"the vault cannot be opened: {error.strerror}") from error
            return self._descriptor

    @contextmanager
    def _opened(self, folders: Sequence[str], *, make: bool = False) -> Generator[int]:
        here = os.dup(self._root())
        try:
            for part in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=here)
                there = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = there
            yield here
        finally:
            os.close(here)


def _walk(folder: int, above: str, depth: int = 0) -> Iterator[str]:
    """Links are left out, and so are folders that cannot be opened and names that are no text."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries]
    for name, is_folder, is_link in found:
        if is_link or name.startswith(".") or _SURROGATE.search(name):
            continue
        if not is_folder:
            if is_note(name):
                yield above + name
        elif depth < _DEEPEST:
            with suppress(OSError):
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(below, f"{above}{name}/", depth + 1)
                finally:
                    os.close(below)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


@contextmanager
def _explained(path: str) -> Generator[None]:
    """What the system says of a path, without the machine's own paths."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolError(f"there is no {path!r} in the vault; list_notes tells what there is") from error
    except FileExistsError as error:
        raise ToolError(f"the note {path!r} is there already; append_to_note adds to it") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ToolError(f"{path!r} goes through a link, or through what is no folder") from error
        raise ToolError(f"{path!r} cannot be used: {error.strerror}") from error
