"""Measure retrieval and answers on Turnwire's own documentation, and on local collections.

python -m eval                                  own documentation
python -m eval --beir scifact --semantic        a BEIR folder: corpus.jsonl, queries.jsonl, qrels/test.tsv
python -m eval --squad xquad.en.json --beside python-docs/
                                                questions with answers, in SQuAD format; the BEIR corpus of
                                                --beside is mixed in, and alone must lead to refusals
python -m eval --handbook share/doc/rust/html/cargo --semantic
                                                The Cargo Book, which comes with Rust, and the questions about it
python -m eval --rust-books share/doc/rust/html --semantic
                                                the rustc and rustdoc books, which come with Rust, in the same way
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from eval.beir import read_beir, read_corpus
from eval.bench import measure_answers, measure_ranking, measure_refusals, sampled, shelf
from eval.own import (
    BLIND,
    FIFTH_BLIND,
    FOURTH_BLIND,
    HELD_OUT,
    NEWCOMERS,
    QUESTIONS,
    SECOND_BLIND,
    THIRD_BLIND,
    read_documents,
    read_handbook,
    read_own,
    read_rust_books,
)
from eval.squad import read_squad


def main() -> None:
    parser = argparse.ArgumentParser(prog="eval", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--beir", type=Path, action="append", default=[], help="a folder in BEIR format; repeatable")
    parser.add_argument("--squad", type=Path, action="append", default=[], help="a file in SQuAD format; repeatable")
    parser.add_argument("--beside", type=Path, help="a BEIR folder whose corpus is mixed in with --squad")
    parser.add_argument("--handbook", type=Path, help="the folder of The Cargo Book, in HTML")
    parser.add_argument("--rust-books", type=Path, help="the folder with the rustc and rustdoc books, in HTML")
    parser.add_argument("--semantic", action="store_true", help="use semantic search too (slow for large collections)")
    parser.add_argument("--most", type=int, help="the most questions of each collection")
    parser.add_argument("--database-url", help="an empty PostgreSQL database for the index, instead of a SQLite file")
    asyncio.run(_measure(parser.parse_args()))


async def _measure(options: argparse.Namespace) -> None:
    handbooks = [read_handbook(options.handbook)] if options.handbook else []
    handbooks += [read_rust_books(options.rust_books)] if options.rust_books else []
    if not options.beir and not options.squad and not handbooks:
        await _own(options)
    for collection in handbooks:
        async with shelf(collection.documents, semantic=options.semantic) as filled:
            _show(f"{collection.name}: answers", await measure_answers(filled, collection.questions))
    for folder in options.beir:
        collection = read_beir(folder)
        async with shelf(collection.documents, semantic=options.semantic, database_url=options.database_url) as filled:
            _show(f"{collection.name}: ranking", await measure_ranking(filled, sampled(collection, options.most)))
    for path in options.squad:
        await _squad(path, options)


async def _own(options: argparse.Namespace) -> None:
    async with shelf(read_documents(), semantic=options.semantic, database_url=options.database_url) as filled:
        for path in (QUESTIONS, NEWCOMERS, HELD_OUT, BLIND, SECOND_BLIND, THIRD_BLIND, FOURTH_BLIND, FIFTH_BLIND):
            name, questions = path.stem.replace("_", " "), read_own(path=path).questions
            answerable = [question for question in questions if question.gains]
            _show(f"{name}: ranking", await measure_ranking(filled, answerable))
            _show(f"{name}: answers", await measure_answers(filled, answerable))
            for kind in ("near_miss", "off_topic"):
                if unanswerable := [question for question in questions if question.kind == kind]:
                    _show(f"{name}: {kind}", await measure_refusals(filled, unanswerable))


async def _squad(path: Path, options: argparse.Namespace) -> None:
    collection = read_squad(path)
    corpus = read_corpus(options.beside) if options.beside else []
    # Two collections may use the same names.
    beside = [replace(document, name=f"beside/{document.name}") for document in corpus]
    questions = sampled(collection, options.most)
    async with shelf(
        [*collection.documents, *beside], semantic=options.semantic, database_url=options.database_url
    ) as filled:
        _show(f"{collection.name}: ranking", await measure_ranking(filled, questions))
        _show(f"{collection.name}: answers", await measure_answers(filled, questions))
    if beside:
        async with shelf(beside, semantic=options.semantic, database_url=options.database_url) as filled:
            _show(f"{collection.name}: off topic", await measure_refusals(filled, questions))


def _show(title: str, figures: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {_figure(value)}" for name, value in figures.items()))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.3f}"


if __name__ == "__main__":
    main()
