"""The files beside the database: the folder's lock, and the ballast for a full disk."""

import os
import shutil
import threading
from pathlib import Path
from typing import IO

from turnwire.core.errors import StoreUnusableError

LOCK_NAME = "turnwire.lock"
BALLAST_NAME = "ballast"
BALLAST_BYTES = 4 * 1024 * 1024
# The end of a turn changes a few pages, however long its answer is.
_BYTES_PER_TURN = 8 * 1024


class FolderLock:
    """A lock that lets one process write to a data folder. The system releases it when the process dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises StoreUnusableError if another process has it, and OSError."""
        file = self._path.open("a+")
        try:
            _lock(file)
        except OSError as error:
            file.close()
            raise StoreUnusableError(
                str(self._path.parent),
                "another turnwire server is using it; stop that one, or give another --data folder",
            ) from error
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_locked(folder: Path) -> bool:
    """Return True if a server is using the folder now."""
    lock = FolderLock(folder)
    if not (folder / LOCK_NAME).exists():
        return False
    try:
        lock.acquire()
    except StoreUnusableError:
        return True
    lock.release()
    return False


class Ballast:
    """A file that reserves room: when the disk is full, it is deleted so that running turns can be ended."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BALLAST_NAME
        self._size = BALLAST_BYTES
        # Many new turns may find at once that there is too little room.
        self._restoring = threading.Lock()

    def covers(self, turns: int) -> bool:
        """Return True if the file reserves enough room for the ends of this many turns."""
        return turns * _BYTES_PER_TURN <= self._size

    def restore(self, turns: int = 0) -> bool:
        """Reserve the room again, or more if this many turns need it. Return False while the disk has too little."""
        with self._restoring:
            return self._restore(turns)

    def _restore(self, turns: int) -> bool:
        while not self.covers(turns):
            self._size *= 2
        if self._path.exists() and self._path.stat().st_size == self._size:
            return True
        if shutil.disk_usage(self._path.parent).free < 2 * self._size:
            return False
        try:
            with self._path.open("wb") as file:
                # Real blocks, not a hole: a sparse file would free nothing.
                for _ in range(self._size // 65_536):
                    file.write(bytes(65_536))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)


try:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _lock(file: IO[str]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
