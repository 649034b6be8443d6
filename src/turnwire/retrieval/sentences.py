"""Sentences: where they begin and end in a piece of text, in any script, without a model."""

import re
from itertools import pairwise

_ABBREVIATIONS = frozenset(
    {"al", "approx", "art", "cf", "ch", "co", "corp", "dr", "e.g", "ed", "eds", "eq", "etc", "fig", "i.e", "inc", "jr"}
    | {"ltd", "mr", "mrs", "ms", "no", "nos", "p", "pp", "prof", "sec", "sr", "st", "u.s", "viz", "vol", "vs", "z.b"}
)
# The end of a sentence, or of what stands like one: a blank line, a list item, a table row, a heading.
_END = re.compile(
    r"""
      (?<! [.!?…] ) [.!?…]+ ["'”’)\]*_`]* \s+
    | [。！？｡]+ ["”’）」』]* \s*
    | \n [ \t]* \n \s*
    | \n (?= [ \t]* (?: [-*+•#>] | \d{1,3}[.)] ) [ \t] )
    | \n (?= [ \t]* (?: ``` | ~~~ | \| ) )
    """,
    re.VERBOSE,
)
# A fence of code or a row of a table, from its mark on.
_WHOLE = re.compile(r"^[ \t]*((`{3,}|~{3,}).*?(?:^[ \t]*\2[`~]*[ \t]*$\n?|\Z)|\|[^\n]*)", re.DOTALL | re.MULTILINE)
_LAST_WORD = re.compile(r"([^\s(\[\"'“]+?)\.+$")
# As far back as an abbreviation reaches. To look further would take hours for a text that somebody made for it.
_LOOK_BACK = 20


def sentence_starts(text: str) -> list[int]:
    """The offsets at which a sentence begins, all but the first. A fence of code is one sentence, and a row one."""
    starts: list[int] = []
    last = 0
    wholes = [found.span(1) for found in _WHOLE.finditer(text)]
    wholes.reverse()
    for found in _END.finditer(text):
        end = found.end()
        while wholes and wholes[-1][1] <= end:
            wholes.pop()
        if wholes and wholes[-1][0] < end:
            continue
        if end < len(text) and not _goes_on(text, last, found):
            starts.append(end)
            last = end
    return starts


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without the space around it."""
    borders = [0, *sentence_starts(text), len(text)]
    spans: list[tuple[int, int]] = []
    for start, end in pairwise(borders):
        piece = text[start:end]
        stripped = piece.strip()
        if stripped:
            first = start + piece.index(stripped[0])
            spans.append((first, first + len(stripped)))
    return spans


def as_sentence(text: str) -> str:
    """A text that may be part of a sentence, as one that stands alone."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _goes_on(text: str, start: int, found: re.Match[str]) -> bool:
    """Whether a full stop is only an abbreviation's or an initial's."""
    if not found[0].startswith("."):
        return False
    following = text[found.end()]
    if following.islower():
        return True
    word = _LAST_WORD.search(text[max(start, found.start() - _LOOK_BACK) : found.start() + 1])
    if word is None:
        return False
    told = word[1].lower()
    return told in _ABBREVIATIONS or (len(told) == 1 and told.isalpha() and word[1].isupper())
