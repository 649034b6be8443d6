"""A folder of Markdown notes, such as an Obsidian vault, and the tools that read and write it.

The root is opened once. From there every folder on the way to a note is opened by its name and never through a link, so
that no path, and no link created meanwhile, leads out of the vault. All methods of `Vault` block.

The tools frame their results as data, and reach no network. Do not give an agent both these tools and a tool that
reaches a network: a hostile note could make it send another note away.
"""

import asyncio
import errno
import os
import re
import stat
import threading
import unicodedata
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from turnwire.core.errors import ToolError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.prompts import framed
from turnwire.tools.declaration import Tool, tool

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, because opening a named pipe would wait for its writer.
_NOTE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


class VaultLimits(Struct, frozen=True, kw_only=True):
    """Limits of a vault: `note_bytes` for a whole note, `write_bytes` for a single write."""

    note_bytes: int = 2_000_000
    write_bytes: int = 200_000


class Vault:
    """A folder of notes. All methods raise ToolError, with a message for the model."""

    def __init__(self, root: Path, limits: VaultLimits | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self._limits = limits or VaultLimits()
        self._descriptor: int | None = None
        self._opening = threading.Lock()
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        """The vault's name in Obsidian."""
        return self.root.name

    def close(self) -> None:
        with self._opening:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def read(self, path: str) -> bytes:
        *folders, name = note_parts(path)
        with _tool_errors(path), self._opened(folders) as folder:
            descriptor = os.open(name, os.O_RDONLY | _NOTE, dir_fd=folder)
            with open(descriptor, "rb") as file:
                self._check(descriptor, path)
                return file.read(self._limits.note_bytes)

    def notes(self, folder: str = "") -> list[str]:
        """Return the sorted paths of all notes below a folder."""
        parts = folder_parts(folder)
        with _tool_errors(folder or "the vault"), self._opened(parts) as descriptor:
            return sorted(_walk(descriptor, "".join(f"{part}/" for part in parts)))

    def create(self, path: str, content: str) -> None:
        """Create a note and its folders. An existing note is never touched."""
        *folders, name = new_note_parts(path)
        data = self._encoded(content)
        with self._writing, _tool_errors(path), self._opened(folders, make=True) as folder:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOTE, 0o666, dir_fd=folder)
            try:
                _write(descriptor, data)
            except OSError:
                # A partial note would prevent the next attempt.
                os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
            os.fsync(folder)

    def append(self, path: str, content: str) -> None:
        """Append lines to an existing note."""
        *folders, name = note_parts(path)
        data = self._encoded(content)
        with self._writing, _tool_errors(path), self._opened(folders) as folder:
            descriptor = os.open(name, os.O_RDWR | os.O_APPEND | _NOTE, dir_fd=folder)
            try:
                size = self._check(descriptor, path, len(data) + 1)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b"\n" + data
                try:
                    _write(descriptor, data)
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)

    def _encoded(self, content: str) -> bytes:
        data = content.encode() if content.endswith("\n") else f"{content}\n".encode()
        if len(data) > self._limits.write_bytes:
            raise ToolError(f"that is over {self._limits.write_bytes:,} bytes at once; write less")
        return data

    def _check(self, descriptor: int, path: str, more: int = 0) -> int:
        """Return the size of an open note. Raise ToolError if it is no file, or too large with `more` bytes."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{path!r} is not a note")
        if status.st_size + more > self._limits.note_bytes:
            raise ToolError(f"the note {path!r} is, or would be, over {self._limits.note_bytes:,} bytes")
        return status.st_size

    def _root(self) -> int:
        """Return a new descriptor of the vault's folder, which a `close` in another thread leaves open."""
        with self._opening:
            if self._descriptor is None:
                try:
                    # Links are followed here, because the operator chose this path.
                    self._descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError as error:
                    raise ToolError(f"the vault cannot be opened: {error.strerror}") from error
            return os.dup(self._descriptor)

    @contextmanager
    def _opened(self, folders: Sequence[str], *, make: bool = False) -> Generator[int]:
        current = self._root()
        try:
            for part in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=current)
                child = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = child
            yield current
        finally:
            os.close(current)


def _walk(folder: int, prefix: str, depth: int = 0) -> Iterator[str]:
    """Yield the paths of notes, without links, unreadable folders and names that are not text."""
    with os.scandir(folder) as scan:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in scan]
    for name, is_folder, is_link in entries:
        if is_link or name.startswith(".") or _SURROGATE.search(name):
            continue
        if not is_folder:
            if is_note(name):
                yield prefix + name
        elif depth < _MAX_DEPTH:
            with suppress(OSError):
                child = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(child, f"{prefix}{name}/", depth + 1)
                finally:
                    os.close(child)


def _write(descriptor: int, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]
    os.fsync(descriptor)


@contextmanager
def _tool_errors(path: str) -> Generator[None]:
    """Raise ToolError in place of an OSError, without paths of the machine."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolError(f"there is no {path!r} in the vault; list_notes tells what there is") from error
    except FileExistsError as error:
        raise ToolError(f"the note {path!r} is there already; append_to_note adds to it") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ToolError(f"{path!r} goes through a link, or through a file") from error
        raise ToolError(f"{path!r} cannot be used: {error.strerror}") from error


# Paths: which names a note may have. A path comes from a model, which may have it from a hostile note.

_MAX_PATH = 1_000
_MAX_PART_BYTES = 255
# The joiner is part of many emoji; every other invisible character could make one name look like another.
_JOINER = "\u200d"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Separators of folders, drives or file streams on some system.
_SEPARATOR = re.compile(r"[\\:]")
# Characters that some system, or a link in Obsidian, cannot have in a name: vaults move between systems.
_NOT_PORTABLE = re.compile(r'[*?"<>|#^\[\]]')
_DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def note_parts(path: str) -> tuple[str, ...]:
    """Return the folders and the name of a note. Raise ToolError, which tells the model what is allowed."""
    parts = _parts(path)
    if not is_note(parts[-1]):
        raise ToolError("only notes can be read and written: give a path that ends in .md")
    return parts


def new_note_parts(path: str) -> tuple[str, ...]:
    """Return the folders and the name of a new note, which must be valid on every system. Raise ToolError."""
    parts = note_parts(path)
    if _NOT_PORTABLE.search(path):
        raise ToolError('a new note must have none of * ? " < > | # ^ [ ] in its path')
    return parts


def folder_parts(path: str) -> tuple[str, ...]:
    """Return the folders of a path, none for the vault itself. Raise ToolError."""
    return () if path.strip() in ("", ".", "/") else _parts(path.rstrip("/"))


def is_note(name: str) -> bool:
    return name.lower().endswith(".md") and len(name) > len(".md")


def _parts(path: str) -> tuple[str, ...]:
    if len(path) > _MAX_PATH:
        raise ToolError(f"the path is longer than {_MAX_PATH:,} characters")
    if any(unicodedata.category(character) in _INVISIBLE and character != _JOINER for character in path):
        raise ToolError("the path has an invisible character in it; leave it out")
    if path.startswith(("/", "~")) or _SEPARATOR.search(path):
        raise ToolError("give the path below the vault, such as 'Projects/Plan.md', with no colon or backslash in it")
    parts = tuple(path.split("/"))
    for part in parts:
        # Some file systems ignore a joiner, so a name that begins with one and a dot is hidden too.
        if part.replace(_JOINER, "").startswith("."):
            raise ToolError("hidden files and folders, and what is outside of the vault, are not notes")
        if not part.strip() or part != part.strip() or part.endswith(".") or _DEVICE_NAME.fullmatch(part):
            raise ToolError(f"no file can be called {part!r}")
        if len(part.encode()) > _MAX_PART_BYTES:
            raise ToolError("a name in the path is too long")
    return parts


# Tools: three that read, and two that write after approval.

_MAX_FOUND = 20
_MAX_LISTED = 200


class NoteIndex(Protocol):
    """A search in the notes' text. The numbers in its results are those that an answer may cite."""

    async def search(self, query: str, limit: int) -> Any:
        """Return the passages that match the query best, best first."""
        ...

    async def passages(self, path: str, content: bytes, start: int) -> Any:
        """Return the passages of a note from a character on, as many as a model can take at once."""
        ...


def vault_tools(vault: Vault, index: NoteIndex) -> list[Tool]:
    """Return the tools of a vault, the reading ones first."""

    @tool
    async def search_vault(query: str, limit: int = 8) -> str:
        """Full-text search in the user's notes. Returns numbered passages, each with the path of its note.

        What has a document in place of a note was uploaded, and can be cited but not read or written.

        Give a few telling words as the query; limit is how many passages, at most 20.
        """
        return framed(await index.search(query, max(1, min(limit, _MAX_FOUND))))

    @tool
    async def read_note(path: str, start: int = 0) -> str:
        """Reads a note by its path in the vault, as numbered passages.

        Of a long note the first part is returned, and with it the start to give for the next one.
        """
        content = await asyncio.to_thread(vault.read, path)
        return framed(await index.passages(path, content, max(0, start)))

    @tool
    def list_notes(folder: str = "", search: str = "", after: str = "") -> str:
        """Lists the paths of the notes in a folder and those below it, all of the vault if none is given.

        search keeps those with this in their path; after goes on behind a path that was listed.
        """
        search = search.casefold()
        notes = [note for note in vault.notes(folder) if search in note.casefold() and note > after]
        return framed({"notes": [*map(clean_text, notes[:_MAX_LISTED])], "more": max(0, len(notes) - _MAX_LISTED)})

    @tool(needs_approval=True)
    def create_note(path: str, content: str) -> str:
        """Makes a new note with this Markdown in it. The user is asked first. A note that is there is not replaced."""
        vault.create(path, clean_text(content))
        return f"Created {path}"

    @tool(needs_approval=True)
    def append_to_note(path: str, content: str) -> str:
        """Adds Markdown to the end of a note that is there. The user is asked first."""
        vault.append(path, clean_text(content))
        return f"Added to {path}"

    return [search_vault, read_note, list_notes, create_note, append_to_note]
