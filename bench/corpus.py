"""Generated Markdown files and questions, the same on every machine.

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
    """Return distinct words, the most common first."""
    rng = random.Random(SEED)
    starts, middles, ends, endings = (parts.split() for parts in (STARTS, MIDDLES, ENDS, ENDINGS))
    words = dict.fromkeys(COMMON.split())
    while len(words) < size:
        syllables = rng.choice((1, 2, 2, 2, 3))
        word = "".join(rng.choice(starts) + rng.choice(middles) for _ in range(syllables)) + rng.choice(ends)
        words.setdefault(word + rng.choice(endings) if rng.random() < 0.4 else word)
    return list(words)


class Writer:
    """A generator of text from the vocabulary; the same seed gives the same text."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._words = vocabulary()
        self._weights = list(accumulate(1 / (rank + SHIFT) for rank in range(1, len(self._words) + 1)))
        self._blocks: list[Callable[[], str]] = [self.paragraph] * 6 + [self.bullets] * 2 + [self.fence, self.table]

    def words(self, count: int) -> list[str]:
        return self._rng.choices(self._words, cum_weights=self._weights, k=count)

    def phrase(self, minimum: int, maximum: int) -> str:
        return " ".join(self.words(self._rng.randint(minimum, maximum)))

    def paragraph(self) -> str:
        sentences = range(self._rng.randint(1, 4))
        return " ".join(self.phrase(6, 20).capitalize() + "." for _ in sentences)

    def bullets(self) -> str:
        return "\n".join(f"- {self.phrase(4, 14)}" for _ in range(self._rng.randint(2, 6)))

    def fence(self) -> str:
        lines = (f"{name} = {function}({argument!r})" for name, function, argument in (self.words(3) for _ in range(6)))
        return "\n".join(("```python", *lines, "```"))

    def table(self) -> str:
        rows = (" | ".join(f"`{word}`" for word in self.words(3)) for _ in range(self._rng.randint(3, 8)))
        return "\n".join(("| name | means | default |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)))

    def section(self, level: int) -> str:
        blocks = (self._rng.choice(self._blocks)() for _ in range(self._rng.randint(1, 5)))
        return "\n\n".join((f"{'#' * level} {self.phrase(1, 5).capitalize()}", *blocks))

    def file(self, sections: int) -> str:
        levels = [1] + [self._rng.choice((2, 2, 3)) for _ in range(sections - 1)]
        return "\n\n".join(self.section(level) for level in levels) + "\n"

    def question(self) -> str:
        return f"{self._rng.choice(ASKING.split())} {' '.join(self.words(QUESTION_WORDS - 1))}?".capitalize()


def write_files(folder: Path, files: int, sections: int) -> None:
    """Write files into subfolders of twenty files each."""
    writer = Writer(SEED)
    for number in range(files):
        path = folder / f"part-{number // 20:03}" / f"file-{number:05}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(writer.file(sections), "utf-8")


def questions(count: int) -> list[str]:
    writer = Writer(SEED + 1)
    return [writer.question() for _ in range(count)]
