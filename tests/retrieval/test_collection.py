"""Collecting evidence: events while it happens, stable numbers, at most three rounds."""

import asyncio
import sqlite3

import pytest

from tests.core.desk import Gate, settle
from tests.retrieval.shelf import GREEN, NOWHERE, Found, HeldSearcher, collect, of, put
from tests.serving import within
from turnwire.core.errors import AgentError
from turnwire.core.log.codec import encode_event
from turnwire.core.log.events import Event, ReviewEvent, SearchEvent, StatusEvent
from turnwire.core.log.turns import Message
from turnwire.retrieval.collection import ROUNDS, collect_evidence
from turnwire.retrieval.evidence import EvidenceBook
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary

# Events


async def test_search_event_is_emitted_before_the_results(library: SqliteLibrary) -> None:
    searcher, reported = HeldSearcher(library), asyncio.Queue[Event]()
    asking = asyncio.create_task(collect_evidence(GREEN, searcher, event_sink=reported.put))
    await within(searcher.begun.wait())
    assert reported.get_nowait() == SearchEvent("search-1", "started", "search_documents", GREEN)
    assert reported.empty()
    searcher.go_on.set()
    finished = await within(reported.get())
    assert isinstance(finished, SearchEvent)
    assert (finished.phase, finished.step_id) == ("finished", "search-1")
    await within(asking)


async def test_search_waits_for_the_event_sink(library: SqliteLibrary) -> None:
    searcher, gates, seen = HeldSearcher(library), [Gate(), Gate(), Gate()], list[Event]()
    searcher.go_on.set()

    async def sink(event: Event) -> None:
        seen.append(event)
        await gates[len(seen) - 1].wait()

    asking = asyncio.create_task(collect_evidence(GREEN, searcher, event_sink=sink))
    await gates[0].reached()
    await settle()
    assert searcher.queries == []
    gates[0].open()
    await gates[1].reached()
    assert searcher.queries == [GREEN]
    await settle()
    assert not gates[2].was_reached
    gates[1].open()
    await gates[2].reached()
    assert isinstance(seen[2], ReviewEvent)
    assert not asking.done()
    gates[2].open()
    await within(asking)


@pytest.mark.parametrize("question", [GREEN, NOWHERE, "Who drinks oolong in the harbour of Reykjavik?"])
async def test_collector_and_sink_get_the_same_events(searcher: Searcher, question: str) -> None:
    reported: list[Event] = []

    async def sink(event: Event) -> None:
        await asyncio.sleep(0)
        reported.append(event)

    found = await collect(question, searcher, event_sink=sink)
    assert found.events == reported
    assert found.events


async def test_evidence_is_collected_without_a_sink(searcher: Searcher) -> None:
    assert (await within(collect_evidence(GREEN, searcher))).sufficient


async def test_failed_search_is_emitted_and_raises_chat_failed(library: SqliteLibrary) -> None:
    class Broken(Searcher):
        async def search(self, query: str, *, owner: str | None, limit: int) -> list[object]:
            raise sqlite3.OperationalError("disk I/O error at /home/ann/secret")

    reported: list[Event] = []
    with pytest.raises(AgentError) as caught:
        await within(collect_evidence(GREEN, Broken(library), event_collector=reported))
    assert (caught.value.code, caught.value.retryable) == ("chat_failed", True)
    assert "secret" not in str(caught.value)
    assert [event.phase for event in of(SearchEvent, reported)] == ["started", "failed"]


async def test_unreadable_library_raises_chat_failed(library: SqliteLibrary, searcher: Searcher) -> None:
    with library.file.writing() as database:
        database.execute("DROP TABLE words")
    with pytest.raises(AgentError) as caught:
        await within(collect_evidence(GREEN, searcher))
    assert (caught.value.code, caught.value.retryable) == ("chat_failed", True)


# Numbers


def assert_numbers_are_stable(found: Found) -> None:
    """Each passage has one number for the whole turn, in the order of first appearance."""
    numbers: dict[str | None, int] = {}
    for hit in (hit for hits in found.hits for hit in hits):
        assert numbers.setdefault(hit.chunk_id, hit.index) == hit.index
    assert list(numbers.values()) == list(range(1, len(numbers) + 1))
    for item in found.result.evidence:
        assert numbers[item.passage.chunk_id] == item.index


async def test_evidence_numbers_are_stable_over_rounds(searcher: Searcher) -> None:
    found = await collect("Who drinks oolong in the harbour of Reykjavik?", searcher)
    assert len(found.hits) > 1
    assert_numbers_are_stable(found)


async def test_evidence_and_citations_correspond(searcher: Searcher) -> None:
    result = (await collect(GREEN, searcher)).result
    assert [item.index for item in result.citations] == [item.index for item in result.evidence]
    best = result.citations[0]
    assert (best.title, best.heading, best.source_tool) == ("Tea", "Tea › Green tea", "search_documents")
    assert "eighty degrees" in (best.supporting_quote or "")


def test_passage_found_by_several_searches_comes_first(library: SqliteLibrary) -> None:
    book = EvidenceBook()
    tea, ferry = library.search("green tea", limit=3), library.search("ferry harbour", limit=3)
    numbers = [item.index for item in book.add([*tea, *ferry], "one")]
    assert numbers == list(range(1, len(numbers) + 1))
    last = ferry[-1]
    again = book.add([last], "two")
    assert [item.index for item in again] == [numbers[-1]]
    assert book.ranked()[0].passage.chunk_id == last.chunk_id
    assert again[0].tool == "one"
    assert book.get(len(book)) is not None
    assert book.get(len(book) + 1) is None


# Ownership


@pytest.mark.parametrize("owner", ["ann", None])
async def test_documents_of_others_are_not_found(library: SqliteLibrary, searcher: Searcher, owner: str | None) -> None:
    put(library, "diary.md", "# Diary\n\nGreen tea is brewed with melted snow, which is my secret.", owner="bob")
    found = await collect(GREEN, searcher, owner=owner)
    assert "Diary" not in {hit.title for hits in found.hits for hit in hits}
    assert "Diary" not in {item.passage.title for item in found.result.evidence}


async def test_owner_finds_own_and_shared_documents(library: SqliteLibrary, searcher: Searcher) -> None:
    put(library, "diary.md", "# Diary\n\nGreen tea is brewed with melted snow, which is my secret.", owner="bob")
    found = await collect(GREEN, searcher, owner="bob")
    assert {"Diary", "Tea"} <= {item.passage.title for item in found.result.evidence}


# Rounds


async def test_answered_question_takes_one_round(searcher: Searcher) -> None:
    found = await collect(GREEN, searcher)
    assert found.queries == [GREEN]
    (review,) = found.of(ReviewEvent)
    assert (review.verdict, review.rounds_left, review.next_queries) == ("approved", 0, ())
    assert (review.step_id, review.iteration, review.method) == ("review-1", 1, "coverage")
    assert set(review.matched) == {"green", "tea", "brewed"}
    assert review.missing == ()
    assert found.result.sufficient


async def test_kept_and_dropped_cover_all_evidence(searcher: Searcher) -> None:
    found = await collect("When does the ferry to Norderney leave in winter?", searcher)
    (review,) = found.of(ReviewEvent)
    assert set(review.kept).isdisjoint(review.dropped)
    assert {hit.index for hit in found.hits[0]} == {*review.kept, *review.dropped}
    assert review.dropped
    assert [item.index for item in found.result.evidence if item.index not in review.kept] == []


async def test_further_rounds_search_missing_terms_up_to_three(searcher: Searcher) -> None:
    question = "Which oolong tournament crowned Reykjavik chess grandmasters twice?"
    found = await collect(question, searcher)
    reviews = found.of(ReviewEvent)
    assert len(found.queries) == ROUNDS
    assert [review.rounds_left for review in reviews] == [2, 1, 0]
    assert [review.verdict for review in reviews] == ["rejected"] * 3
    assert [review.iteration for review in reviews] == [1, 2, 3]
    assert found.queries == [question, *reviews[0].next_queries, *reviews[1].next_queries]
    assert reviews[2].next_queries == ()
    assert reviews[0].matched == ("oolong",)
    assert reviews[0].next_queries == (" ".join(reviews[0].missing),)
    assert not found.result.sufficient
    steps = [event.step_id for event in found.events if isinstance(event, SearchEvent | ReviewEvent)]
    expected = [step for n in (1, 2, 3) for step in (f"search-{n}", f"search-{n}", f"review-{n}")]
    assert steps == expected


async def test_second_round_finds_further_evidence(library: SqliteLibrary, searcher: Searcher) -> None:
    """Eight passages about one word of the question hide the one about its rarer words."""
    for number in range(12):
        put(library, f"song{number}.md", f"# Song {number}\n\nThe whale sings and the whale swims and sings.")
    put(library, "report.md", "# Report\n\nOf barnacles on hulls, much is known: barnacles and hulls, hulls.")
    found = await collect("whale sings barnacles hulls", searcher)
    assert "Report" in {item.passage.title for item in found.result.evidence}
    assert_numbers_are_stable(found)


async def test_empty_result_is_reviewed_as_insufficient(searcher: Searcher) -> None:
    found = await collect("Zzyzx?", searcher)
    review = found.of(ReviewEvent)[0]
    assert (review.verdict, review.feedback, review.missing) == ("rejected", "nothing was found", ("zzyzx",))
    assert (review.kept, review.dropped, review.rounds_left) == ((), (), 0)
    assert found.result.evidence == ()
    assert not found.result.sufficient


@pytest.mark.parametrize("question", ["?", "the of and", "🍵", '") OR (', "\u0007", "a" * 50_000, "x " * 20_000])
async def test_any_question_is_collected(searcher: Searcher, question: str) -> None:
    found = await collect(question, searcher)
    assert len(found.queries) <= ROUNDS


@pytest.mark.parametrize("question", ["w" * 300_000, "zzyzx why " * 30_000, "灯台" * 100_000, "green tea " * 30_000])
async def test_very_long_question_keeps_events_small(searcher: Searcher, question: str) -> None:
    found = await collect(
        question, searcher, history=[Message("user", question), Message("user", "Zzyzx! " + question)]
    )
    assert max(len(encode_event(event)[1]) for event in found.events) < 64_000
    assert found.queries[0] == question[:2_000]


async def test_short_question_after_a_long_one_is_searched(searcher: Searcher) -> None:
    found = await collect("Zzyzx oolong Norway?", searcher, history=[Message("user", "green tea " * 30_000)])
    assert found.queries[1].endswith("Zzyzx oolong Norway?")


@pytest.mark.parametrize("question", [GREEN, NOWHERE])
async def test_disabled_review_makes_one_search(searcher: Searcher, question: str) -> None:
    found = await collect(question, searcher, review=False)
    assert found.queries == [question]
    assert found.of(ReviewEvent) == []
    assert found.result.sufficient == (question == GREEN)
    assert len(found.result.evidence) == len(found.hits[0])


# History


async def test_follow_up_is_searched_with_the_earlier_question(searcher: Searcher) -> None:
    history = [Message("user", "How is black tea brewed?"), Message("assistant", "With boiling water. [1]")]
    found = await collect(
        "And its leaves, shipped how, roasted when, sold where, taxed why?", searcher, history=history
    )
    assert (
        found.queries[1] == "How is black tea brewed? And its leaves, shipped how, roasted when, sold where, taxed why?"
    )
    first, *_ = found.of(ReviewEvent)
    assert first.next_queries == (found.queries[1],)


async def test_follow_up_uses_the_last_earlier_question(searcher: Searcher) -> None:
    history = [
        Message("user", "When does the ferry leave?"),
        Message("assistant", "At nine."),
        Message("user", "How is green tea brewed?"),
        Message("assistant", "At eighty degrees."),
    ]
    found = await collect("Zzyzx?", searcher, history=history)
    assert found.queries == ["Zzyzx?", "How is green tea brewed? Zzyzx?"]
    assert_numbers_are_stable(found)
    assert found.result.evidence[0].passage.heading == "Tea › Green tea"


async def test_follow_up_of_stop_words_uses_the_earlier_question(searcher: Searcher) -> None:
    history = [Message("user", "How is green tea brewed?"), Message("assistant", "At eighty degrees. [1]")]
    found = await collect("And why is that?", searcher, history=history)
    assert any("green tea" in query for query in found.queries)
    assert found.result.evidence[0].passage.heading == "Tea › Green tea"


async def test_successful_search_emits_no_status(searcher: Searcher) -> None:
    assert (await collect(GREEN, searcher)).of(StatusEvent) == []
