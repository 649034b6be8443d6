"""The build's own step: the README of a package, whose links must work where the repository is not."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(\]\(|src=\"|srcset=\")(?![a-z]+:|#)")


class ReadmeHook(MetadataHookInterface):
    """Makes the relative links of the README absolute. Pictures need the address of the file itself."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        home = metadata["urls"]["Repository"]

        def absolute(match: re.Match[str]) -> str:
            return match[1] + f"{home}/{'blob' if match[1] == '](' else 'raw'}/main/"

        metadata["readme"] = {"content-type": "text/markdown", "text": _LINK.sub(absolute, text)}
