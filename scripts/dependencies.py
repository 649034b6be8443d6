"""The packages that Turnwire depends on, for `scripts/audit` and `scripts/release`.

`python -m scripts.dependencies requirements` writes all of them, with the versions of constraints.txt and the hashes of
their files; `python -m scripts.dependencies licences REQUIREMENTS` their licences, and fails if one is not allowed;
`python -m scripts.dependencies vulnerabilities FILE` the findings of pip-audit, and fails if there are any or if not
every package could be checked.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple, cast

from scripts.release_facts import ROOT, project

# Licences that permit use and distribution in any program, if the notices are kept. MPL applies to its own files only.
_ALLOWED = re.compile(
    r"\b(0BSD|Apache|BSD|CC0|HPND|ISC|MIT|MIT-0|MIT-CMU|MPL|Mozilla Public License|PSF|PSF-2\.0|Python-2\.0|"
    r"Python Software Foundation|Unlicense|Zlib)\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"\b(AGPL|GPL|LGPL|GNU|SSPL|BUSL|Commons Clause|Proprietary|NonCommercial)", re.IGNORECASE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_NO_LICENCE = "unknown"
_CLASSIFIER = "License :: OSI Approved :: "


class Dependency(NamedTuple):
    name: str
    version: str
    licence: str | None
    """None if the package is not installed here, such as one for another system."""

    @property
    def is_allowed(self) -> bool:
        return self.licence is None or is_allowed(self.licence)


def is_allowed(licence: str) -> bool:
    """Return True if a licence, or one of several to choose from, is allowed."""
    choices = re.split(r"\s+OR\s+", licence)
    return any(_ALLOWED.search(choice) and not _REFUSED.search(choice) for choice in choices)


def licence_of(package: Distribution) -> str:
    """Return what the package states: an SPDX expression, else its classifiers, else the first line of its text."""
    metadata = cast("Message", package.metadata)
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith(_CLASSIFIER)]
    if classifiers:
        return ", ".join(text.removeprefix(_CLASSIFIER) for text in classifiers)
    return next((line.strip() for line in (metadata.get("License") or "").splitlines() if line.strip()), _NO_LICENCE)


def read_pins(requirements: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for line in requirements.splitlines() if (match := _PIN.match(line))]


def without_hash(requirements: str) -> list[str]:
    """Return the names of the pins that have no hash."""
    entries = re.split(r"^(?=[A-Za-z0-9])", requirements, flags=re.MULTILINE)
    return [match[1] for entry in entries if (match := _PIN.match(entry)) and "--hash=sha256:" not in entry]


def dependencies(requirements: str) -> list[Dependency]:
    found: list[Dependency] = []
    for name, version in read_pins(requirements):
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:
            licence = None
        found.append(Dependency(name, version, licence))
    return found


def make_requirements() -> str:
    """Return pins with hashes for all systems, of Turnwire and all extras but `dev`. Raises RuntimeError."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise RuntimeError("uv is missing, which finds the hashes; pip install uv")
    extras = [name for name in project()["optional-dependencies"] if name != "dev"]
    options = [part for extra in extras for part in ("--extra", extra)]
    command = (uv, "pip", "compile", "pyproject.toml", "-c", "constraints.txt", *options, "--generate-hashes")
    compiled = subprocess.run(
        [*command, "--universal", "--python-version", "3.11", "--quiet", "--no-header", "--no-annotate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if compiled.returncode:
        raise RuntimeError(compiled.stderr.strip())
    lines = [line for line in compiled.stdout.splitlines(keepends=True) if not line.startswith("--")]
    requirements = "".join(lines)
    if missing := without_hash(requirements):
        raise RuntimeError(f"the index has no hashes of {', '.join(missing)}")
    return requirements


def licence_report(found: Iterable[Dependency]) -> str:
    lines = ["| package | version | licence |", "| --- | --- | --- |"]
    lines += [
        f"| {each.name} | {each.version} | {each.licence or 'not installed here, so not read'}"
        f"{'' if each.is_allowed else ' **(not allowed)**'} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"


def judge_audit(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code for a report of pip-audit, and lines about it.

    pip-audit itself calls a package that its database does not know no finding, also if it could not be asked.
    """
    packages = report["dependencies"]
    lines = [
        f"{package['name']} {package['version']}: {finding['id']}, fixed in {', '.join(finding['fix_versions']) or '-'}"
        for package in packages
        for finding in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if not packages or skipped:
        lines.append(f"{len(skipped)} of {len(packages)} packages were NOT checked: the database does not know them")
    return 1 if any("vulns" in package and package["vulns"] for package in packages) else 3 if lines else 0, lines


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["requirements"]:
            try:
                print(make_requirements(), end="")
            except RuntimeError as error:
                print(f"dependencies: {error}", file=sys.stderr)
                return 1
        case ["licences", path]:
            found = dependencies(Path(path).read_text())
            print(licence_report(found), end="")
            if refused := [each.name for each in found if not each.is_allowed]:
                print(f"dependencies: the licences of {', '.join(refused)} are not allowed", file=sys.stderr)
                return 1
        case ["vulnerabilities", path]:
            code, lines = judge_audit(json.loads(Path(path).read_text()))
            print(*lines or ["no known vulnerabilities"], sep="\n")
            return code
        case _:
            commands = "requirements | licences REQUIREMENTS | vulnerabilities FILE"
            print(f"usage: python -m scripts.dependencies {commands}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
