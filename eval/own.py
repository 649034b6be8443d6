"""The bundled collections: questions about Turnwire, answered by its own documentation.

Each file has one question per line. An `answerable` question names the document, the heading and the exact text that
answers it, and may name other texts that do (`also`); a test fails when one is no longer there. A `near_miss` is about
other software, an `off_topic` question about anything else: both should be refused.

The weights of the ranking are fitted to `own_questions.jsonl` and `newcomer_questions.jsonl`. The latter are what
people ask first, and a test checks that each is answered. The others only measure. They were written before any answer
was seen, and the documentation was improved from the failures of all but the last since: `held_out_questions.jsonl`;
`blind_questions.jsonl` and `second_blind_questions.jsonl`, whose passages were drawn at random;
`third_blind_questions.jsonl`, what people who evaluate, start and run Turnwire want to know, written from the table of
contents; `fourth_blind_questions.jsonl`, the same, written from reading the guides; `fifth_blind_questions.jsonl`, what
people who evaluate it, integrate it and run it type, written from the README, the table of contents and the list of
commands before the answers were looked for.
The questions in `cargo_questions.jsonl` and `rust_questions.jsonl` are the same for handbooks of another project: The
Cargo Book, and the rustc and rustdoc books, which come with Rust as folders of HTML files and are not bundled here.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from eval.collection import Collection, Document, Question
from turnwire.retrieval.indexer import answers_users

ROOT = Path(__file__).parents[1]
QUESTIONS = Path(__file__).parent / "own_questions.jsonl"
NEWCOMERS = Path(__file__).parent / "newcomer_questions.jsonl"
HELD_OUT = Path(__file__).parent / "held_out_questions.jsonl"
BLIND = Path(__file__).parent / "blind_questions.jsonl"
SECOND_BLIND = Path(__file__).parent / "second_blind_questions.jsonl"
THIRD_BLIND = Path(__file__).parent / "third_blind_questions.jsonl"
FOURTH_BLIND = Path(__file__).parent / "fourth_blind_questions.jsonl"
FIFTH_BLIND = Path(__file__).parent / "fifth_blind_questions.jsonl"
CARGO = Path(__file__).parent / "cargo_questions.jsonl"
RUST = Path(__file__).parent / "rust_questions.jsonl"
KINDS = ("answerable", "near_miss", "off_topic")

_HANDBOOK_FOLDERS = ("getting-started", "guide", "reference")
_RUST_BOOKS = ("rustc", "rustdoc")
# Hundreds of pages with the same form: one for each target and lint, and the letters of a mangled name.
_NOT_READ = ("platform-support", "listing", "symbol-mangling")
_WHOLE_BOOK = ("print.html", "toc.html", "404.html")
_HEADING = re.compile(r"(#{1,6})\s+(.*\S)")


@dataclass(frozen=True)
class OwnQuestion:
    question: str
    kind: str
    document: str = ""
    heading: str = ""
    answer: str = ""
    also: tuple[str, ...] = ()


def read_own(root: Path = ROOT, path: Path = QUESTIONS) -> Collection:
    return Collection("own documentation", read_documents(root), _collected(path))


def read_handbook(folder: Path, path: Path = CARGO) -> Collection:
    """Return the HTML pages of a handbook, without those of its commands, and the questions about it."""
    pages = [page for page in sorted(folder.rglob("*.html")) if page.parent.name in _HANDBOOK_FOLDERS]
    return Collection("cargo questions", _documents(folder, pages), _collected(path))


def read_rust_books(folder: Path, path: Path = RUST) -> Collection:
    """Return the HTML pages of the rustc and rustdoc books, and the questions about them."""
    pages = [page for book in _RUST_BOOKS for page in sorted((folder / book).rglob("*.html"))]
    pages = [page for page in pages if page.name not in _WHOLE_BOOK and not {*_NOT_READ}.intersection(page.parts)]
    return Collection("rust questions", _documents(folder, pages), _collected(path))


def _documents(folder: Path, pages: list[Path]) -> list[Document]:
    return [Document(page.relative_to(folder).as_posix(), "", page.read_text("utf-8")) for page in pages]


def _collected(path: Path) -> list[Question]:
    return [
        Question(str(number), own.question, {own.document: 1.0}, (own.answer, *own.also))
        if own.kind == "answerable"
        else Question(str(number), own.question, kind=own.kind)
        for number, own in enumerate(read_questions(path), start=1)
    ]


def read_questions(path: Path = QUESTIONS) -> list[OwnQuestion]:
    return [OwnQuestion(**json.loads(line)) for line in path.read_text("utf-8").split("\n") if line]


def read_documents(root: Path = ROOT) -> list[Document]:
    """Return the pages that the default agent answers from."""
    docs = root / "docs"
    pages = [path for path in sorted(docs.rglob("*.md")) if answers_users(path.relative_to(docs).as_posix())]
    paths = [root / "README.md", *pages]
    return _documents(root, paths)


def section(text: str, heading: str) -> str:
    """Return the text under a heading, with its subheadings; empty if there is no such heading."""
    lines: list[str] = []
    level = 0
    in_code = False
    for line in text.split("\n"):
        in_code ^= line.lstrip().startswith("```")
        heading_match = None if in_code else _HEADING.fullmatch(line.rstrip())
        if level and heading_match and len(heading_match[1]) <= level:
            break
        if level:
            lines.append(line)
        elif heading_match and heading_match[2] == heading:
            level = len(heading_match[1])
    return "\n".join(lines)
