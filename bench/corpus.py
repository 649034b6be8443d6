"""Markdown files and questions that nobody wrote: the same ones on every machine.

Words are drawn as they are in real text, where the word of rank r comes about 1/r as often as the
first: the commonest are English stop words, the others are made of syllables and have the endings
that a stemmer works on. Files have what documentation has: headings, paragraphs, lists, code, tables.
"""

import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

SEED = 20_260
VOCABULARY = 30_000
COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they"
    " which one you were all her she there would their we him been has when who will no more if out so said what up"
    " its about into than them can only other some could these two may then do first any my now such like our over"
)
ASKING = "how what which when why where who does"
STARTS = "b br c ch cl d dr f fl g gr h j k l m n p pl qu r s st t tr v w z"
MIDDLES = "a ai e ea i o oo u"
ENDS = "b d ft g l ll m n nd p r rt s st t x"
ENDINGS = "ing ed s es er tion ly ment able"

QUESTION_WORDS = 8
# Mandelbrot's correction of Zipf's law, so that the very first words are not too common.
SHIFT = 2.7


def vocabulary(size: int = VOCABULARY) -> list[str]:
    """Different words, the commonest first."""
    chance = random.Random(SEED)
    starts, middles, ends, endings = (parts.split() for parts in (STARTS, MIDDLES, ENDS, ENDINGS))
    words = dict.fromkeys(COMMON.split())
    while len(words) < size:
        syllables = chance.choice((1, 2, 2, 2, 3))
        word = "".join(chance.choice(starts) + chance.choice(middles) for _ in range(syllables)) + chance.choice(ends)
        words.setdefault(word + chance.choice(endings) if chance.random() < 0.4 else word)
    return list(words)


class Writer:
    """Writes text of the vocabulary; the same seed writes the same."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._words = vocabulary()
        self._weights = list(accumulate(1 / (rank + SHIFT) for rank in range(1, len(self._words) + 1)))
        self._blocks: list[Callable[[], str]] = [self.paragraph] * 6 + [self.bullets] * 2 + [self.fence, self.table]

    def words(self, count: int) -> list[str]:
        return self._chance.choices(self._words, cum_weights=self._weights, k=count)

    def phrase(self, fewest: int, most: int) -> str:
        return " ".join(self.words(self._chance.randint(fewest, most)))

    def paragraph(self) -> str:
        sentences = range(self._chance.randint(1, 4))
        return " ".join(self.phrase(6, 20).capitalize() + "." for _ in sentences)

    def bullets(self) -> str:
        return "\n".join(f"- {self.phrase(4, 14)}" for _ in range(self._chance.randint(2, 6)))

    def fence(self) -> str:
        lines = (f"{one} = {other}({third!r})" for one, other, third in (self.words(3) for _ in range(6)))
        return "\n".join(("```python", *lines, "```"))

    def table(self) -> str:
        rows = (" | ".join(f"`{word}`" for word in self.words(3)) for _ in range(self._chance.randint(3, 8)))
        return "\n".join(("| name | means | default |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)))

    def section(self, level: int) -> str:
        blocks = (self._chance.choice(self._blocks)() for _ in range(self._chance.randint(1, 5)))
        return "\n\n".join((f"{'#' * level} {self.phrase(1, 5).capitalize()}", *blocks))

    def file(self, sections: int) -> str:
        levels = [1] + [self._chance.choice((2, 2, 3)) for _ in range(sections - 1)]
        return "\n\n".join(self.section(level) for level in levels) + "\n"

    def question(self) -> str:
        return f"{self._chance.choice(ASKING.split())} {' '.join(self.words(QUESTION_WORDS - 1))}?".capitalize()


def write_files(folder: Path, files: int, sections: int) -> None:
    """A folder with subfolders of twenty files each."""
    writer = Writer(SEED)
    for number in range(files):
        path = folder / f"part-{number // 20:03}" / f"file-{number:05}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(writer.file(sections), "utf-8")


def questions(count: int) -> list[str]:
    writer = Writer(SEED + 1)
    return [writer.question() for _ in range(count)]
