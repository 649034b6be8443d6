"""Finds the finished blocks of a Markdown text that is still being written.

A block at the top level is finished when a later line has begun the next one: nothing that is still to come can
change it. A line counts only when it is complete, because `#` alone is a heading and `#1` is not.
Which blocks come out depends on the text alone, never on the pieces it came in.
"""

from markdown_it import MarkdownIt
from markdown_it.token import Token


def markdown_parser() -> MarkdownIt:
    """Markdown as it is shown here. Tags are text: what looks like HTML in an answer must not vanish."""
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


# Where blocks begin and end is all that is asked of it.
_splitter = markdown_parser().disable("inline")


class Blocks:
    def __init__(self) -> None:
        self._text = ""
        self._held = ""
        self._is_checked = True

    @property
    def rest(self) -> str:
        """What has come and is not finished."""
        return self._text + self._held

    @property
    def is_in_code(self) -> bool:
        """Whether what comes next is inside a fence that is still open."""
        last = next((token for token in reversed(_top_level(self._text)) if token.map), None)
        if last is None or last.type != "fence" or last.map is None:
            return False
        lines = self._text.rstrip("\n").split("\n")[last.map[0] :]
        closing = lines[-1].strip()
        return len(lines) < 2 or not closing.startswith(last.markup) or bool(closing.strip(last.markup[0]))

    def add(self, piece: str) -> None:
        piece = self._held + piece
        # The other half of a line end may be on its way.
        self._held = "\r" if piece.endswith("\r") else ""
        piece = piece.removesuffix("\r") if self._held else piece
        piece = piece.replace("\r\n", "\n").replace("\r", "\n")
        self._text += piece
        self._is_checked = self._is_checked and "\n" not in piece

    def finished(self) -> list[str]:
        """The blocks that have been finished since the last time."""
        if self._is_checked:
            return []
        self._is_checked = True
        complete, line_end, _ = self._text.rpartition("\n")
        spans = _spans(complete + line_end)
        if len(spans) < 2:
            return []
        lines = self._text.split("\n")
        self._text = "\n".join(lines[spans[-1][0] :])
        return [_cut(lines, span) for span in spans[:-1]]

    def preview(self, most: int) -> str:
        """The end of what is not finished, of about so many lines: enough to show how it goes on."""
        lines = self.rest.split("\n")
        if len(lines) <= most:
            return self.rest
        # What a fence or a table is shows in its first lines.
        is_fence, is_table = lines[0].startswith(("```", "~~~")), lines[1].lstrip(" |:").startswith("-")
        return "\n".join(lines[: 2 if is_table else int(is_fence)] + lines[-most:])

    def finish(self) -> list[str]:
        """All the rest: the text is complete."""
        self.add("\n")
        blocks = self.finished()
        lines = self._text.split("\n")
        blocks += [_cut(lines, span) for span in _spans(self._text)]
        self._text = ""
        return blocks


def _top_level(text: str) -> list[Token]:
    return [token for token in _splitter.parse(text) if token.level == 0 and token.nesting >= 0]


def _spans(text: str) -> list[tuple[int, int]]:
    return [(token.map[0], token.map[1]) for token in _top_level(text) if token.map]


def _cut(lines: list[str], span: tuple[int, int]) -> str:
    return "\n".join(lines[slice(*span)]).rstrip("\n")
