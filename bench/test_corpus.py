"""The generated documents: the same on every machine, and as uneven as real text."""

from pathlib import Path

from bench.corpus import COMMON, VOCABULARY, Writer, questions, vocabulary, write_files


def test_the_same_seed_writes_the_same(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_files(tmp_path / name, files=3, sections=4)
    one, other = ([path.read_bytes() for path in sorted((tmp_path / name).rglob("*.md"))] for name in ("one", "other"))
    assert one == other
    assert len(set(one)) == 3
    assert questions(5) == questions(5)


def test_no_word_is_there_twice() -> None:
    assert len(set(vocabulary())) == VOCABULARY


def test_a_few_words_make_up_much_of_the_text() -> None:
    drawn = Writer(1).words(20_000)
    common = sum(word in COMMON.split() for word in drawn) / len(drawn)
    assert 0.3 < common < 0.6
    assert len(set(drawn)) > 4_000


def test_a_file_has_what_documentation_has() -> None:
    text = Writer(1).file(40)
    assert all(mark in text for mark in ("# ", "\n## ", "\n### ", "\n- ", "\n```python\n", "\n| --- |"))
