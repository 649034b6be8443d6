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


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--workers", "3", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(folder), "-q", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.process
def test_run_with_a_failed_test_and_a_killed_worker_reports_each_test_once(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "2 failed, 19 passed" in done.stdout
    assert "the number is 7" in done.stdout
    assert "the number is 8" not in done.stdout
    assert "ended with signal 9" in done.stdout
