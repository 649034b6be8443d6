"""Review of evidence by a model, with checks, and by coverage."""

import json
from typing import Any

import pytest

from tests.retrieval.shelf import GREEN, KEY, READY, Found, collect, judges, prompt, searches
from tests.scripted_model import ScriptedModel, breaks, fails, says, too_long, truncates
from turnwire.core.log.events import ReviewEvent, UsageEvent
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval.evidence import Evidence, EvidenceBook
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.prompts import REVIEW_SCHEMA
from turnwire.retrieval.relevance import BlockRanker
from turnwire.retrieval.review import Judgement, judge_by_ranking, other_queries
from turnwire.retrieval.sentences import Matcher
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

FORM = "The model's review does not have the required form. Searching goes on without it."


async def judged(searcher: Searcher, model: OpenAIModel, server: ScriptedModel, *reviews: Any) -> Found:
    server.plan(searches("tea", "ferry"), READY, *reviews)
    return await collect(GREEN, searcher, model=model)


def reply(**changes: Any) -> str:
    reported = {"keep": [1], "sufficient": True, "missing": [], "next_query": None, "reason": "It says so."}
    return json.dumps({**reported, **changes})


# By a model


async def test_review_request_has_a_schema_and_no_tools(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    found = await judged(searcher, model, model_server, judges(keep=[2, 1], reason="Both help."))
    body = model_server.bodies[2]
    assert body["response_format"]["json_schema"]["schema"] == REVIEW_SCHEMA
    assert "tools" not in body
    assert prompt(body).startswith(f"Question: {GREEN}\n\nPassages:\n[{{")
    (review,) = found.of(ReviewEvent)
    assert (review.verdict, review.method, review.feedback) == ("approved", "model", "Both help.")
    assert set(review.kept) == {1, 2}
    assert {item.index for item in found.result.evidence} == {1, 2}
    everything = {hit.index for hits in found.hits for hit in hits}
    assert {*review.kept, *review.dropped} == everything


@pytest.mark.parametrize("keep", [[-1, 1, 99], [1, 1, 0], [1, 10**12]], ids=str)
async def test_invented_numbers_are_ignored(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, keep: list[int]
) -> None:
    found = await judged(searcher, model, model_server, judges(keep=keep))
    assert found.of(ReviewEvent)[0].kept == (1,)
    assert [item.index for item in found.result.evidence] == [1]


async def test_sufficient_review_without_evidence_is_insufficient(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    never = judges(sufficient=True, keep=[77])
    found = await judged(searcher, model, model_server, *[never] * 3)
    assert not found.result.sufficient
    assert {review.verdict for review in found.of(ReviewEvent)} == {"rejected"}


@pytest.mark.parametrize(
    "text",
    [
        f"Let me see.\n```json\n{reply()}\n```\nI hope this helps!",
        f"<think>Hm.</think>{reply()}",
        f"  {reply(sufficient=True, extra=[1, {}])}\n",
        '{"sufficient": true, "keep": [1]}',
    ],
)
async def test_prose_around_the_review_json_is_ignored(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, text: str
) -> None:
    found = await judged(searcher, model, model_server, says(text, ""))
    (review,) = found.of(ReviewEvent)
    assert (review.method, review.verdict, review.kept) == ("model", "approved", (1,))
    assert found.statuses == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yes, they do.",
        "{",
        "}{",
        reply()[:-10],
        "{'keep': [1]}",
        "[1]",
        "{}",
        reply(keep="1"),
        reply(keep=["1"]),
        reply(keep=[True]),
        reply(keep=None),
        reply(sufficient="yes"),
        reply(sufficient=None),
        reply(missing="all"),
        reply(next_query=5),
        reply(reason=["So."]),
        '{"sufficient": true, "keep": [1], "x": ' + "[" * 9_000 + "]" * 9_000 + "}",
    ],
    ids=lambda text: text[:40],
)
async def test_malformed_review_is_replaced_by_coverage(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, text: str
) -> None:
    found = await judged(searcher, model, model_server, says(text, ""))
    (review,) = found.of(ReviewEvent)
    assert (review.method, review.verdict) == ("coverage", "approved")
    assert found.statuses == [FORM]
    assert found.result.model_failed is None
    assert len(found.of(UsageEvent)) == 3, "what a useless review cost counts as well"


@pytest.mark.parametrize(
    ("answer", "is_hopeless", "usage"),
    [
        (truncates(reply()[:20]), False, 2),
        (too_long(reply()[:20]), False, 3),
        (breaks(reply()[:20], message=KEY), True, 2),
        (fails(500, message=KEY), True, 2),
        (fails(400, message=KEY), True, 2),
    ],
    ids=["truncated", "too long", "broken", "500", "400"],
)
async def test_failed_review_is_replaced_by_coverage(
    searcher: Searcher,
    model: OpenAIModel,
    model_server: ScriptedModel,
    answer: Answer,
    is_hopeless: bool,
    usage: int,
) -> None:
    found = await judged(searcher, model, model_server, answer)
    (review,) = found.of(ReviewEvent)
    assert (review.method, review.verdict) == ("coverage", "approved")
    assert len(found.statuses) == 1
    assert (found.result.model_failed is not None) == is_hopeless
    assert len(found.of(UsageEvent)) == usage
    assert KEY not in repr(found)


async def test_endless_review_is_stopped(searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel) -> None:
    found = await judged(searcher, model, model_server, says(*["Well, " * 500] * 20))
    assert found.of(ReviewEvent)[0].method == "coverage"
    assert "does not end" in found.statuses[0]


async def test_next_query_of_the_review_is_searched(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    more = judges(sufficient=False, keep=[1], missing=["how hot"], next_query="temperature of the water")
    found = await judged(searcher, model, model_server, more, judges(keep=[1, 2]))
    first, second = found.of(ReviewEvent)
    assert (first.verdict, first.missing, first.rounds_left) == ("rejected", ("how hot",), 2)
    assert first.next_queries == ("temperature of the water",)
    assert found.queries[-1] == "temperature of the water"
    assert (second.verdict, second.next_queries, second.rounds_left) == ("approved", (), 0)
    assert found.result.sufficient


async def test_number_of_review_rounds_is_limited(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    never = [judges(sufficient=False, keep=[1], next_query=f"tea number {n}") for n in range(3)]
    found = await judged(searcher, model, model_server, *never)
    reviews = found.of(ReviewEvent)
    assert [review.rounds_left for review in reviews] == [2, 1, 0]
    # Every announced query is searched; the last round announces none.
    assert [review.next_queries for review in reviews] == [("tea number 0",), ("tea number 1",), ()]
    assert found.queries[2:] == ["tea number 0", "tea number 1"]
    assert not found.result.sufficient
    assert [item.index for item in found.result.evidence] == [1]


async def test_repeated_query_is_not_searched_again(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    again = judges(sufficient=False, keep=[], next_query=GREEN)
    model_server.plan(says("I know."), again, again, again)
    found = await collect(GREEN, searcher, model=model)
    assert len(set(found.queries)) == len(found.queries)
    assert found.queries[0] == GREEN


async def test_control_characters_in_a_review_are_removed(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    odd = judges(
        sufficient=False, keep=[1], next_query="tea\u0000\u001e water " + "x" * 900, missing=["\u0007" * 5] * 90
    )
    found = await judged(searcher, model, model_server, odd, judges())
    review = found.of(ReviewEvent)[0]
    assert found.queries[-1].startswith("tea water xxx")
    assert len(found.queries[-1]) == 500
    assert review.missing == ("",) * 20


async def test_disabled_review_makes_no_model_call(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("zzyzx", "ferry"), READY)
    found = await collect("Zzyzx?", searcher, model=model, review=False)
    assert found.of(ReviewEvent) == []
    assert found.result.sufficient, "the model sees for itself whether the passages answer"


# By ranking


async def judged_without_model(question: str, evidence: list[Evidence], **weights: float) -> Judgement:
    matcher = Matcher(question, weights)
    return judge_by_ranking(matcher, evidence, await BlockRanker(question, matcher).rank(evidence))


async def test_passage_with_low_coverage_is_dropped(library: SqliteLibrary) -> None:
    book = EvidenceBook()
    book.add(library.search("ferry harbour tea green brewed", limit=8), "t")
    evidence = book.ranked()
    judgement = await judged_without_model("How is green tea brewed?", evidence)
    kept = [item.passage.heading for item in evidence if item.index in judgement.kept]
    dropped = [item.passage.heading for item in evidence if item.index in judgement.dropped]
    assert "Tea › Green tea" in kept
    assert "The ferry › Timetable" in dropped
    assert judgement.sufficient
    assert judgement.reason == "the best passage covers 100% of what is asked"


@pytest.mark.parametrize(("norway", "is_enough"), [(0.1, True), (5.0, False)])
async def test_what_the_passages_lack_decides(library: SqliteLibrary, norway: float, is_enough: bool) -> None:
    book = EvidenceBook()
    book.add(library.search("oolong", limit=1), "t")
    judgement = await judged_without_model("oolong Norway", book.ranked(), oolong=1.0, norway=norway)
    assert judgement.sufficient == is_enough
    assert (judgement.matched, judgement.missing) == (("oolong",), ("norway",))


@pytest.mark.parametrize(
    ("question", "judgement", "earlier", "queries"),
    [
        ("Does the ferry sail?", Judgement(sufficient=False), None, ["ferry sail"]),
        (
            "Does the ferry sail?",
            Judgement(sufficient=False, matched=("ferry",), missing=("sail",)),
            "What is there?",
            ["What is there? Does the ferry sail?", "sail", "ferry sail"],
        ),
        ("ferry", Judgement(sufficient=False, missing=("ferry",)), None, []),
        ("Who is it?", Judgement(sufficient=False, missing=("who",)), None, []),
    ],
)
def test_other_queries_of_a_question(
    question: str, judgement: Judgement, earlier: str | None, queries: list[str]
) -> None:
    assert other_queries(question, judgement, earlier) == queries
