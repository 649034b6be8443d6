"""Tests of the readers of public collections: BEIR and SQuAD."""

import json
from pathlib import Path

from eval.beir import read_beir
from eval.collection import Document, Question
from eval.squad import read_squad


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_beir_folder_is_read_with_the_questions_of_its_split(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    documents = ({"_id": "d1", "title": "Tea", "text": "Green.\u2028Black."}, {"_id": "d2", "text": "Coffee."})
    (tmp_path / "corpus.jsonl").write_text(lines(*documents), "utf-8")
    (tmp_path / "queries.jsonl").write_text(
        lines({"_id": "1", "text": "Which tea?"}, {"_id": "2", "text": "Of the training set"}), "utf-8"
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td1\t2\n1\td2\t0\n", "utf-8")
    collection = read_beir(tmp_path)
    assert collection.name == tmp_path.name
    assert collection.documents == [Document("d1", "Tea", "Green.\u2028Black."), Document("d2", "", "Coffee.")]
    assert collection.questions == [Question("1", "Which tea?", {"d1": 2.0})]


def test_squad_file_is_read_by_paragraph(tmp_path: Path) -> None:
    def question(name: str, *answers: str, **fields: object) -> dict[str, object]:
        return {"id": name, "question": f"{name}?", "answers": [{"text": text} for text in answers], **fields}

    paragraphs = [
        {"context": "Green tea.", "qas": [question("colour", "Green", "Green"), question("no", is_impossible=True)]},
        {"context": "Black coffee.", "qas": [question("drink", "coffee", "Black coffee")]},
    ]
    path = tmp_path / "drinks.json"
    path.write_text(json.dumps({"data": [{"title": "Drinks", "paragraphs": paragraphs}]}), "utf-8")
    collection = read_squad(path)
    assert collection.name == "drinks"
    assert collection.documents == [Document("0", "Drinks", "Green tea."), Document("1", "Drinks", "Black coffee.")]
    assert collection.questions == [
        Question("colour", "colour?", {"0": 1.0}, ("Green",)),
        Question("no", "no?", kind="near_miss"),
        Question("drink", "drink?", {"1": 1.0}, ("coffee", "Black coffee")),
    ]
