"""Sentences: their borders in any script, and the citation markers in them."""

import re
from itertools import pairwise

# Bounded, so that the held-back text is bounded, and split in the same way however the text arrives.
MARKER = r"\[\s{0,3}\d{1,3}(?:\s{0,3}[,;]\s{0,3}\d{1,3}){0,15}\s{0,3}\]"
MARKERS = re.compile(MARKER)
_LETTER = re.compile(r"[^\W_]")
_ABBREVIATIONS = frozenset(
    {"al", "approx", "art", "cf", "ch", "co", "corp", "dr", "e.g", "ed", "eds", "eq", "etc", "fig", "i.e", "inc", "jr"}
    | {"ltd", "mr", "mrs", "ms", "no", "nos", "p", "pp", "prof", "sec", "sr", "st", "u.s", "viz", "vol", "vs", "z.b"}
)
# The end of a sentence, or a border like it: a blank line, a list item, a table row, a heading.
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
# A fenced code block or a table row, from its first marker on.
_WHOLE = re.compile(r"^[ \t]*((`{3,}|~{3,}).*?(?:^[ \t]*\2[`~]*[ \t]*$\n?|\Z)|\|[^\n]*)", re.DOTALL | re.MULTILINE)
_LAST_WORD = re.compile(r"([^\s(\[\"'“]+?)\.+$")
# No abbreviation is longer; without the bound a hostile text would take hours.
_LOOK_BACK = 20


def sentence_starts(text: str) -> list[int]:
    """Return the offsets at which sentences begin, without the first. A fenced code block or a table row is one."""
    starts: list[int] = []
    last = 0
    wholes = [match.span(1) for match in _WHOLE.finditer(text)]
    wholes.reverse()
    for match in _END.finditer(text):
        end = match.end()
        while wholes and wholes[-1][1] <= end:
            wholes.pop()
        if wholes and wholes[-1][0] < end:
            continue
        if end < len(text) and not _is_abbreviation(text, last, match):
            starts.append(end)
            last = end
    return starts


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each sentence, without the white space around it."""
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
    """Return a clause as a sentence: capitalised, with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _is_abbreviation(text: str, start: int, border: re.Match[str]) -> bool:
    """Return True if a full stop belongs to an abbreviation or an initial and ends no sentence."""
    if not border[0].startswith("."):
        return False
    if text[border.end()].islower():
        return True
    match = _LAST_WORD.search(text[max(start, border.start() - _LOOK_BACK) : border.start() + 1])
    if match is None:
        return False
    word = match[1].lower()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and match[1].isupper())


def citation_coverage(answer: str) -> float:
    """Return the share of an answer's sentences that carry a marker."""
    bare = re.sub(rf"(?<=[.!?])(\s*{MARKER})+", lambda match: match[0].strip(), answer)
    sentences = [bare[slice(*span)] for span in sentence_spans(bare)]
    prose = [sentence for sentence in sentences if _LETTER.search(MARKERS.sub("", sentence))]
    return sum(bool(MARKERS.search(sentence)) for sentence in prose) / len(prose) if prose else 0.0
