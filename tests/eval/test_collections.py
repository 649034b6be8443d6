"""Reading the sets that others have made."""

import json
from pathlib import Path

from eval.beir import read_beir
from eval.collection import Document, Question
from eval.squad import read_squad


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_a_beir_folder_is_read_with_the_questions_of_its_split(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    documents = ({"_id": "d1", "title": "Tea", "text": "Green.\u2028Black."}, {"_id": "d2", "text": "Coffee."})
    (tmp_path / "corpus.jsonl").write_text(lines(*documents), "utf-8")
    (tmp_path / "queries.jsonl").write_text(
        lines({"_id": "1", "text": "Which tea?"}, {"_id": "2", "text": "Of the training set"}), "utf-8"
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td1\t2\n1\td2\t0\n", "utf-8")
    found = read_beir(tmp_path)
    assert found.name == tmp_path.name
    assert found.documents == [Document("d1", "Tea", "Green.\u2028Black."), Document("d2", "", "Coffee.")]
    assert found.questions == [Question("1", "Which tea?", {"d1": 2.0})]


def test_a_squad_file_is_read_paragraph_by_paragraph(tmp_path: Path) -> None:
    def asked(name: str, *answers: str, **more: object) -> dict[str, object]:
        return {"id": name, "question": f"{name}?", "answers": [{"text": text} for text in answers], **more}

    paragraphs = [
        {"context": "Green tea.", "qas": [asked("colour", "Green", "Green"), asked("no", is_impossible=True)]},
        {"context": "Black coffee.", "qas": [asked("drink", "coffee", "Black coffee")]},
    ]
    path = tmp_path / "drinks.json"
    path.write_text(json.dumps({"data": [{"title": "Drinks", "paragraphs": paragraphs}]}), "utf-8")
    found = read_squad(path)
    assert found.name == "drinks"
    assert found.documents == [Document("0", "Drinks", "Green tea."), Document("1", "Drinks", "Black coffee.")]
    assert found.questions == [
        Question("colour", "colour?", {"0": 1.0}, ("Green",)),
        Question("no", "no?", kind="near_miss"),
        Question("drink", "drink?", {"1": 1.0}, ("coffee", "Black coffee")),
    ]
