"""Write the site into a folder: `python -m turnwire.server.guide FOLDER`. Fails on a link that leads nowhere."""

import sys
from pathlib import Path

from turnwire.server.guide.site import own_guide


def main(arguments: list[str]) -> int:
    guide = own_guide()
    if guide is None or len(arguments) != 1:
        print("usage: python -m turnwire.server.guide FOLDER, with the documentation in place", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if dead := guide.dead_links():
        print("These links lead nowhere:", *dead, sep="\n  ", file=sys.stderr)
        return 1
    for name in guide.names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(guide.read(name) or b"")
    print(f"{len(guide.names)} files in {folder}; open {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
