"""Reader of collections in BEIR's format: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.collection import Collection, Document, Question


def read_beir(folder: Path, split: str = "test") -> Collection:
    """Read the documents, and the questions that have a judgement in the split."""
    gains: dict[str, dict[str, float]] = defaultdict(dict)
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if float(row["score"]) > 0:
                gains[row["query-id"]][row["corpus-id"]] = float(row["score"])
    questions = [
        Question(row["_id"], row["text"], gains[row["_id"]])
        for row in _rows(folder / "queries.jsonl")
        if row["_id"] in gains
    ]
    return Collection(folder.resolve().name, read_corpus(folder), questions)


def read_corpus(folder: Path) -> list[Document]:
    return [Document(row["_id"], row.get("title", ""), row["text"]) for row in _rows(folder / "corpus.jsonl")]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        # Not `splitlines`, which also splits at characters inside a text.
        yield from (json.loads(line) for line in file if line.strip())
