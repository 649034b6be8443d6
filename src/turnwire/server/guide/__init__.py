"""The documentation as a web site: one HTML page per Markdown file, under the same relative address.

Pages are rendered from the Markdown in the package when they are first read, so no build can be out of date. Links are
relative and nothing is loaded from elsewhere: the same files work at `/guide/`, below a mounted app, and on a static
host, for which `scripts/docs` writes them into a folder.
"""

from pathlib import Path


def find_documentation() -> Path | None:
    """Return the folder that has Turnwire's `README.md` and `docs/`, in the package or beside the source."""
    package = Path(__file__).parents[2]
    folders = (package / "documentation", package.parents[1])
    return next((folder for folder in folders if (folder / "docs" / "concepts.md").exists()), None)
