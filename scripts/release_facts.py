"""Facts of a release, for `scripts/release`: `python -m scripts.release_facts version|repository|changelog`."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each package of the project states."""
    manifests = (*sorted((root / "clients").glob("*/package.json")), root / "clients" / "obsidian" / "manifest.json")
    found = {str(path.relative_to(root)): json.loads(path.read_text())["version"] for path in manifests}
    return {"pyproject.toml": project(root)["version"], **found}


def project(root: Path = ROOT) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def changes(text: str, version: str) -> str:
    """Return the section of a version in a changelog. Raises ValueError if there is none, or it has no date."""
    pattern = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    section = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise ValueError(f"the changelog has no section '## [{version}] - YYYY-MM-DD' with text")
    return f"Turnwire {version}\n\n{section[1].strip()}\n"


def main(command: str) -> int:
    stated = versions()
    version = stated["pyproject.toml"]
    if command == "version":
        if set(stated.values()) != {version}:
            print(*(f"{name}: {value}" for name, value in stated.items()), sep="\n", file=sys.stderr)
            return 1
        print(version)
    elif command == "repository":
        print(project()["urls"]["Repository"])
    elif command == "changelog":
        try:
            print(changes((ROOT / "CHANGELOG.md").read_text(), version), end="")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    else:
        print("usage: python -m scripts.release_facts version|repository|changelog", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else ""))
