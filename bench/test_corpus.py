"""Tests of the generated documents: reproducible, with word frequencies like real text."""

from pathlib import Path

from bench.corpus import COMMON, VOCABULARY, Writer, questions, vocabulary, write_files


def test_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_files(tmp_path / name, files=3, sections=4)
    first, second = (
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.md"))] for name in ("first", "second")
    )
    assert first == second
    assert len(set(first)) == 3
    assert questions(5) == questions(5)


def test_vocabulary_has_no_duplicates() -> None:
    assert len(set(vocabulary())) == VOCABULARY


def test_common_words_are_a_large_share_of_the_text() -> None:
    drawn = Writer(1).words(20_000)
    common = sum(word in COMMON.split() for word in drawn) / len(drawn)
    assert 0.3 < common < 0.6
    assert len(set(drawn)) > 4_000


def test_file_has_headings_lists_code_and_tables() -> None:
    text = Writer(1).file(40)
    assert all(mark in text for mark in ("# ", "\n## ", "\n### ", "\n- ", "\n```python\n", "\n| --- |"))
