"""Sets in the format of SQuAD, such as XQuAD: one JSON file of articles, their paragraphs, and questions on each."""

import json
from pathlib import Path

from eval.collection import Collection, Document, Question


def read_squad(path: Path) -> Collection:
    """A paragraph is a document. Questions that version 2 of the format marks as impossible have no answer here."""
    documents: list[Document] = []
    questions: list[Question] = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = str(len(documents))
            documents.append(Document(name, article.get("title", ""), paragraph["context"]))
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                if asked.get("is_impossible"):
                    questions.append(Question(asked["id"], asked["question"], kind="near_miss"))
                else:
                    questions.append(Question(asked["id"], asked["question"], {name: 1.0}, answers))
    return Collection(path.stem, documents, questions)
