"""The workers of `--workers`: every test is reported once, whatever becomes of the process that ran it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import os
import pytest

def test_that_ends_its_process():
    os.kill(os.getpid(), 9)

@pytest.mark.parametrize("number", range(20))
def test_number(number, tmp_path):
    print("the number is", number)
    assert number != 7
"""


PROCESSES = """
import os
import pytest

@pytest.mark.parametrize("number", range(2))
def test_number(number):
    with open("processes", "a") as file:
        print(__file__, os.getpid(), file=file)
"""


def run(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--workers", str(workers), "-c", os.devnull]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(folder), "-q", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.process
def test_run_with_a_failed_test_and_a_killed_worker_reports_each_test_once(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS)
    done = run(tmp_path, 3)
    assert done.returncode == 1
    assert "2 failed, 19 passed" in done.stdout
    assert "the number is 7" in done.stdout
    assert "the number is 8" not in done.stdout
    assert "ended with signal 9" in done.stdout


@pytest.mark.process
def test_worker_stays_with_its_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(PROCESSES)
    done = run(tmp_path, 2)
    assert done.returncode == 0, done.stdout
    ran = (tmp_path / "processes").read_text().splitlines()
    assert (len(ran), len(set(ran))) == (4, 2)
    assert len({line.split()[1] for line in ran}) == 2
