"""A power cut loses nothing that the SQLite store has acknowledged, whatever the disk makes of unsynced writes."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contracts.turns import whole_log
from turnwire.stores.sqlite import SqliteStore

_HERE = Path(__file__).parent / "power_cut"
_CUTS = int(os.environ.get("POWER_CUTS", "30"))
_SECTOR = 512


class Operation(NamedTuple):
    kind: str
    path: Path
    offset: int
    data: bytes


def _record(folder: Path, **faults: str) -> list[Operation]:
    """Run the writer, and return what it did to its files, in order."""
    library, recorded = folder / "recorder.so", folder / "recorded"
    source = _HERE / "recorder.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=120)
    (folder / "writer").mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RECORD_FOLDER": str(folder / "writer"),
        "RECORD_FILE": str(recorded),
        **faults,
    }
    command = [sys.executable, "-m", "tests.process.power_cut.writer", folder / "writer"]
    subprocess.run(command, env=environment, check=True, timeout=200)
    return list(_operations(recorded.read_bytes(), folder / "writer"))


def _operations(record: bytes, root: Path) -> Iterator[Operation]:
    start = 0
    while start < len(record):
        end = record.index(b"\n", start)
        kind, offset, size, path = record[start:end].decode().split(" ", 3)
        start = end + 1 + int(size)
        yield Operation(kind, Path(path).relative_to(root), int(offset), record[end + 1 : start])


def _apply(operation: Operation, file: bytearray) -> None:
    if operation.kind == "t":
        del file[operation.offset :]
        return
    end = operation.offset + len(operation.data)
    file.extend(bytes(max(0, end - len(file))))
    file[operation.offset : end] = operation.data


def _cut(operations: list[Operation], chooser: random.Random) -> dict[Path, bytearray]:
    """Return the files after a power cut: all that was synced, and some of the rest, perhaps torn."""
    files: dict[Path, bytearray] = defaultdict(bytearray)
    pending: dict[Path, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind == "s":
            for each in pending.pop(operation.path, ()):
                _apply(each, files[operation.path])
        elif operation.kind == "f":
            # After a failed sync, the kernel forgets what it could not write: a later sync does not bring it back.
            for each in pending.pop(operation.path, ()):
                if chooser.random() < 0.5:
                    _apply(each, files[operation.path])
        else:
            pending[operation.path].append(operation)
    for path, rest in pending.items():
        share = chooser.choice((0.0, 0.5, 1.0))
        for each in rest:
            if chooser.random() < share:
                sectors = chooser.randint(0, len(each.data) // _SECTOR + 1)
                is_torn = each.kind == "w" and chooser.random() < 0.2
                _apply(each._replace(data=each.data[: sectors * _SECTOR]) if is_torn else each, files[path])
    return files


def _acknowledged(operations: list[Operation]) -> dict[str, int]:
    lines = [each.data.decode().split() for each in operations if each.path.name == "acknowledged" and each.data]
    return {turn_id: int(position) for turn_id, position in lines}


async def _check(folder: Path, acknowledged: dict[str, int], texts: dict[tuple[str, int], bytes]) -> None:
    store = SqliteStore(folder)
    await store.open()
    try:
        for turn_id, position in acknowledged.items():
            log = await whole_log(store, turn_id, page=100)
            assert [logged.position for logged in log] == list(range(1, len(log) + 1))
            assert len(log) >= position, f"turn {turn_id} has {len(log)} of {position} acknowledged events"
            for logged in log:
                assert texts.setdefault((turn_id, logged.position), logged.body) == logged.body
    finally:
        await store.close()
    with sqlite3.connect(next(folder.glob("*.db"))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the recorder is preloaded into a Linux process")
async def test_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    await _cut_and_check(tmp_path, _record(tmp_path), {"w", "s"})


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the recorder is preloaded into a Linux process")
@pytest.mark.parametrize("seed", ["1", "2"])
async def test_failing_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: str) -> None:
    """Writes and syncs fail with EIO now and then, and then the power is cut."""
    await _cut_and_check(tmp_path, _record(tmp_path, FAULT_SEED=seed), {"w", "s", "f"})


async def _cut_and_check(folder: Path, operations: list[Operation], kinds: set[str]) -> None:
    database = [each for each in operations if each.path.suffix == ".db" or each.path.name.endswith("-wal")]
    assert kinds <= {each.kind for each in database}, "the writes of SQLite were not recorded, or none failed"
    texts: dict[tuple[str, int], bytes] = {}
    for seed in range(_CUTS):
        chooser = random.Random(seed)
        before = operations[: chooser.randint(1, len(operations))]
        if not (acknowledged := _acknowledged(before)):
            continue
        data = folder / f"cut{seed}"
        for path, body in _cut(before, chooser).items():
            if path.parts[0] == "data" and (path.suffix == ".db" or path.name.endswith("-wal")):
                (data / Path(*path.parts[1:])).parent.mkdir(parents=True, exist_ok=True)
                (data / Path(*path.parts[1:])).write_bytes(body)
        await _check(data, acknowledged, texts)
        shutil.rmtree(data)
