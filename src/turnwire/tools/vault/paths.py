"""Which names a note may have. A path comes from a model, which may have it from a note that wants to be obeyed."""

import re
import unicodedata

from turnwire.core.errors import ToolError

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
