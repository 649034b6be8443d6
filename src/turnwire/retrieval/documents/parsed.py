"""A document as text: what every format is read into."""

from msgspec import Struct


class Block(Struct, frozen=True, gc=False):
    """A paragraph, a heading, a list, a piece of code: from `start` to the next block's start.

    `level` is 1 to 6 for a heading. `whole` is for what makes no sense in pieces, `rows` for what
    may be cut between its lines only.
    """

    start: int
    level: int = 0
    heading: str = ""
    whole: bool = False
    rows: bool = False
    page: int | None = None


class Parsed(Struct, frozen=True):
    """Offsets everywhere count code points of `text`, which is kept as it stands here."""

    text: str
    blocks: list[Block]
    title: str | None = None
    pages: int | None = None
