"""Claude Code, the program that the Claude Agent SDK runs, installed for the tests of its adapter.

`scripts/setup` installs the SDK without it, because it is 370 MB. Only `scripts/test --all` runs tests that need it.
"""

import fcntl
import subprocess
import sys
import zipfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

_PACKAGE = "claude-agent-sdk"
_MEMBER = "claude_agent_sdk/_bundled/claude"


@cache
def claude_program() -> Path:
    """Return the program, from the wheel of the SDK's version; the first process that needs it downloads it."""
    folder = Path(sys.prefix, "claude-code")
    program = folder / f"claude-{version(_PACKAGE)}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _download(program)
    return program


def _download(program: Path) -> None:
    with TemporaryDirectory(dir=program.parent) as temporary:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
        only = ["--no-deps", "--only-binary", _PACKAGE, "--dest", temporary]
        subprocess.run([*pip, *only, f"{_PACKAGE}=={version(_PACKAGE)}"], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(_MEMBER, temporary))
        path.chmod(0o755)
        path.rename(program)


if __name__ == "__main__":
    print(claude_program())
