"""Golden files: recorded text that a test compares with what the code writes now."""

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).parent
UPDATE = "UPDATE_GOLDEN"
"""The environment variable that has the golden files written instead of compared, when it is set."""


def compare(name: str, text: str) -> None:
    """Fail with a unified diff if the text is not that of the golden file."""
    path, text = FOLDER / name, text.rstrip("\n") + "\n"
    if os.environ.get(UPDATE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return
    golden = path.read_bytes().decode() if path.exists() else ""
    if golden != text:
        diff = difflib.unified_diff(golden.split("\n"), text.split("\n"), f"golden/{name}", f"now/{name}", "", "", 2)
        lines = [line if len(line) < 2_000 else line[:2_000] + " …" for line in list(diff)[:400]]
        detail = "\n".join(lines)
        raise AssertionError(f"{name} has changed; if it must, run with {UPDATE}=1 and review the change\n{detail}")
