"""Cuts a long answer into messages.

Between paragraphs if that can be, else between lines, sentences, words; inside code only if one block of it does not
fit in a message, and then each piece is a block of its own. Where a cut falls depends only on what stands before it, so
an answer that grows is never cut anew: what is in a full message stays there.
"""

import re
import unicodedata
from bisect import bisect_right
from itertools import accumulate

from turnwire.channels.telegram.formatted import LIMIT, Entity, Formatted, utf16_length, within

_SENTENCE = re.compile(r"[.!?…。！？][\"')\]»”]*\s+")
_BREAKS = (re.compile(r"\n\n+"), re.compile(r"\n+"), _SENTENCE, re.compile(r"\s+"))
# A message may stay this empty for the sake of a better place to cut.
_LEAST_FILLED = 0.5


def split(formatted: Formatted, limit: int = LIMIT) -> list[Formatted]:
    """Pieces of at most `limit` UTF-16 units, which together are the text. `limit` must be at least 2."""
    text = formatted.text
    # units[i] is where the i-th character begins, in UTF-16.
    units = list(accumulate((1 + (char > "\uffff") for char in text), initial=0))
    pieces: list[Formatted] = []
    start = 0
    while units[-1] - units[start] > limit:
        most = bisect_right(units, units[start] + limit) - 1
        end = _cut(text, start, most, units, formatted.entities)
        pieces.append(_piece(formatted, start, end, units))
        start = end
    pieces.append(_piece(formatted, start, len(text), units))
    return pieces


def messages(formatted: Formatted) -> list[Formatted]:
    """The same as they will look: Telegram trims messages, and refuses blank ones."""
    return [_trimmed(piece) for piece in split(formatted) if not piece.is_blank]


def _trimmed(piece: Formatted) -> Formatted:
    text = piece.text
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if any(entity.offset < start for entity in piece.entities):
        # The first line of some code, with its indent.
        start = 0
    return Formatted(text[start:end], within(piece.entities, utf16_length(text[:start]), utf16_length(text[:end])))


def _piece(formatted: Formatted, start: int, end: int, units: list[int]) -> Formatted:
    return Formatted(formatted.text[start:end], within(formatted.entities, units[start], units[end]))


def _cut(text: str, start: int, most: int, units: list[int], entities: tuple[Entity, ...]) -> int:
    """Where the next piece begins: after `start`, at most at `most`."""
    # Code of which the end does not fit goes to the next message as a whole, if it is not the first half of this one.
    least = start + max(1, int((most - start) * _LEAST_FILLED))
    code = next((entity for entity in entities if entity.type == "pre" and _holds(entity, units[most])), None)
    if code is not None:
        before = bisect_right(units, code.offset) - 1
        if before >= least:
            return before
        return _last_break(text, least, most, _BREAKS[1:2]) or _between_letters(text, start, most)
    return _last_break(text, least, most, _BREAKS) or _between_letters(text, start, most)


def _holds(entity: Entity, unit: int) -> bool:
    return entity.offset < unit < entity.end


def _last_break(text: str, least: int, most: int, breaks: tuple[re.Pattern[str], ...]) -> int | None:
    for pattern in breaks:
        # The white space goes with the piece before it, as far as it fits.
        ends = [min(found.end(), most) for found in pattern.finditer(text, least, most) if found.end() > least]
        if ends:
            return ends[-1]
    return None


def _between_letters(text: str, start: int, most: int) -> int:
    """Not between a letter and its accent, or inside an emoji that is made of several."""
    for end in range(most, max(start, most - 16), -1):
        joined = text[end - 1] == "\u200d" or text[end] == "\u200d" or "\ufe00" <= text[end] <= "\ufe0f"
        if not joined and not unicodedata.combining(text[end]) and not "\U0001f3fb" <= text[end] <= "\U0001f3ff":
            return end
    return most
