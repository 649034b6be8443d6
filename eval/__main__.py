"""Measures retrieval and answers: on Turnwire's own documentation, and on sets given by path.

python -m eval                                  own documentation
python -m eval --beir scifact --semantic        a BEIR folder: corpus.jsonl, queries.jsonl, qrels/test.tsv
python -m eval --squad xquad.en.json --beside python-docs/
                                                questions with answers, in SQuAD form; the BEIR corpus given
                                                beside is mixed in, and alone must lead to refusals
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

from eval.beir import read_beir, read_corpus
from eval.bench import measure_answers, measure_ranking, measure_refusals, sampled, shelf
from eval.own import read_own
from eval.squad import read_squad


def main() -> None:
    parser = argparse.ArgumentParser(prog="eval", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--beir", type=Path, action="append", default=[], help="a folder in BEIR form; repeatable")
    parser.add_argument("--squad", type=Path, action="append", default=[], help="a file in SQuAD form; repeatable")
    parser.add_argument("--beside", type=Path, help="a BEIR folder whose corpus is mixed in with --squad")
    parser.add_argument("--semantic", action="store_true", help="also by meaning (takes minutes for large sets)")
    parser.add_argument("--most", type=int, help="at most so many questions of each set")
    asyncio.run(_measure(parser.parse_args()))


async def _measure(wanted: argparse.Namespace) -> None:
    if not wanted.beir and not wanted.squad:
        await _own(wanted)
    for folder in wanted.beir:
        collection = read_beir(folder)
        async with shelf(collection.documents, semantic=wanted.semantic) as on:
            _show(f"{collection.name}: ranking", await measure_ranking(on, sampled(collection, wanted.most)))
    for path in wanted.squad:
        await _squad(path, wanted)


async def _own(wanted: argparse.Namespace) -> None:
    own = read_own()
    answerable = [question for question in own.questions if question.gains]
    async with shelf(own.documents, semantic=wanted.semantic) as on:
        _show("own documentation: ranking", await measure_ranking(on, answerable))
        _show("own documentation: answers", await measure_answers(on, answerable))
        for kind in ("near_miss", "off_topic"):
            unanswerable = [question for question in own.questions if question.kind == kind]
            _show(f"own documentation: {kind}", await measure_refusals(on, unanswerable))


async def _squad(path: Path, wanted: argparse.Namespace) -> None:
    collection = read_squad(path)
    corpus = read_corpus(wanted.beside) if wanted.beside else []
    # Two sets may use the same names.
    beside = [replace(document, name=f"beside/{document.name}") for document in corpus]
    questions = sampled(collection, wanted.most)
    async with shelf([*collection.documents, *beside], semantic=wanted.semantic) as on:
        _show(f"{collection.name}: ranking", await measure_ranking(on, questions))
        _show(f"{collection.name}: answers", await measure_answers(on, questions))
    if beside:
        async with shelf(beside, semantic=wanted.semantic) as on:
            _show(f"{collection.name}: off topic", await measure_refusals(on, questions))


def _show(title: str, figures: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {_figure(value)}" for name, value in figures.items()))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.3f}"


if __name__ == "__main__":
    main()
