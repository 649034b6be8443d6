"""WordPiece: text as the numbers that BERT models of lower-case English read.

Text is taken apart at spaces and punctuation, without accents and case; each word is then spelt with the
longest pieces that are in the vocabulary. Words such as `[SEP]` in a text are text, and never steer the model.

`vocab.txt` is that of BERT (uncased), as it comes with the model sentence-transformers/all-MiniLM-L6-v2:
30,522 pieces, one a line. Licence: Apache-2.0.
"""

import unicodedata
from collections.abc import Mapping
from importlib.resources import files
from itertools import islice

LONGEST_WORD = 100

# Ideographs: each is a word of its own. Not kana and not hangul, which are written with spaces or in pieces.
_IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)


class WordPiece:
    def __init__(self, vocabulary: Mapping[str, int] | None = None) -> None:
        self._vocabulary = vocabulary or read_vocabulary()
        self._start, self._end, self._unknown = (self._vocabulary[name] for name in ("[CLS]", "[SEP]", "[UNK]"))

    def encode(self, text: str, most: int) -> list[int]:
        """The text between the marks of its start and end; `most` numbers, and what does not fit is left out."""
        pieces = (piece for word in split_words(text) for piece in self._spell(word))
        return [self._start, *islice(pieces, most - 2), self._end]

    def _spell(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        pieces: list[int] = []
        start, mark = 0, ""
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self._vocabulary.get(mark + word[start:end])
                if piece is not None:
                    break
            else:
                # A word that cannot be spelt to its end is unknown as a whole.
                return [self._unknown]
            pieces.append(piece)
            start, mark = end, "##"
        return pieces


def read_vocabulary() -> dict[str, int]:
    lines = files("turnwire.retrieval.embedding").joinpath("vocab.txt").read_text("utf-8").split("\n")
    return {piece: number for number, piece in enumerate(lines) if piece}


def split_words(text: str) -> list[str]:
    return unicodedata.normalize("NFD", text).translate(_CHARACTERS).split()


class _Characters(dict[int, str]):
    """What becomes of a character: nothing, a space, a word of its own, or its lower case. Learnt as they come."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character.isspace() and (category[0] == "Z" or character in "\t\n\r"):
            replacement = " "
        elif category in ("Cc", "Cf", "Co", "Cs", "Mn") or code == 0xFFFD:
            replacement = ""
        elif category[0] == "P" or character in "$+<=>^`|~" or any(code in block for block in _IDEOGRAPHS):
            replacement = f" {character.lower()} "
        else:
            replacement = character.lower()
        self[code] = replacement
        return replacement


_CHARACTERS = _Characters()
