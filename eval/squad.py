"""Reader of collections in SQuAD's format, such as XQuAD: one JSON file of articles, paragraphs and questions."""

import json
from pathlib import Path

from eval.collection import Collection, Document, Question


def read_squad(path: Path) -> Collection:
    """Read a file with one document per paragraph. Questions marked as impossible have no answer."""
    documents: list[Document] = []
    questions: list[Question] = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = str(len(documents))
            documents.append(Document(name, article.get("title", ""), paragraph["context"]))
            for entry in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in entry["answers"]))
                if entry.get("is_impossible"):
                    questions.append(Question(entry["id"], entry["question"], kind="near_miss"))
                else:
                    questions.append(Question(entry["id"], entry["question"], {name: 1.0}, answers))
    return Collection(path.stem, documents, questions)
