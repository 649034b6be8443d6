"""Finding evidence: every step is told while it happens, numbers never change, three rounds are the most."""

import asyncio
import sqlite3

import pytest

from tests.core.desk import Gate, settle
from tests.retrieval.shelf import GREEN, NOWHERE, Found, HeldSearcher, collect, of, put
from tests.serving import within
from turnwire.core.codec import encode_event
from turnwire.core.errors import AgentError
from turnwire.core.events import Event, ReviewEvent, SearchEvent, StatusEvent
from turnwire.core.turns import Message
from turnwire.retrieval.collection import ROUNDS, collect_evidence
from turnwire.retrieval.evidence import EvidenceBook
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.searcher import Searcher

# Told the moment it happens


async def test_a_search_is_told_before_it_has_found_anything(library: Library) -> None:
    searcher, told = HeldSearcher(library), asyncio.Queue[Event]()
    asking = asyncio.create_task(collect_evidence(GREEN, searcher, event_sink=told.put))
    await within(searcher.begun.wait())
    assert told.get_nowait() == SearchEvent("search-1", "started", "search_documents", GREEN)
    assert told.empty()
    searcher.go_on.set()
    finished = await within(told.get())
    assert isinstance(finished, SearchEvent)
    assert (finished.phase, finished.step_id) == ("finished", "search-1")
    await within(asking)


async def test_nothing_goes_on_before_the_sink_has_taken_what_it_is_told(library: Library) -> None:
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
async def test_the_collector_has_what_the_sink_was_told_in_the_same_order(searcher: Searcher, question: str) -> None:
    told: list[Event] = []

    async def sink(event: Event) -> None:
        await asyncio.sleep(0)
        told.append(event)

    found = await collect(question, searcher, event_sink=sink)
    assert found.events == told
    assert found.events


async def test_nobody_needs_to_listen(searcher: Searcher) -> None:
    assert (await within(collect_evidence(GREEN, searcher))).sufficient


async def test_a_search_that_fails_is_told_and_ends_the_turn_as_chat_failed(library: Library) -> None:
    class Broken(Searcher):
        async def search(self, query: str, *, owner: str | None, limit: int) -> list[object]:
            raise sqlite3.OperationalError("disk I/O error at /home/ann/secret")

    told: list[Event] = []
    with pytest.raises(AgentError) as caught:
        await within(collect_evidence(GREEN, Broken(library), event_collector=told))
    assert (caught.value.code, caught.value.retryable) == ("chat_failed", True)
    assert "secret" not in str(caught.value)
    assert [event.phase for event in of(SearchEvent, told)] == ["started", "failed"]


async def test_a_library_that_cannot_be_read_at_all_is_chat_failed(library: Library, searcher: Searcher) -> None:
    with library.file.writing() as database:
        database.execute("DROP TABLE words")
    with pytest.raises(AgentError) as caught:
        await within(collect_evidence(GREEN, searcher))
    assert (caught.value.code, caught.value.retryable) == ("chat_failed", True)


# Numbers


def assert_numbers_are_stable(found: Found) -> None:
    """Each passage has one number for the whole turn, given in the order in which they were first told."""
    numbers: dict[str | None, int] = {}
    for hit in (hit for hits in found.hits for hit in hits):
        assert numbers.setdefault(hit.chunk_id, hit.index) == hit.index
    assert list(numbers.values()) == list(range(1, len(numbers) + 1))
    for one in found.result.evidence:
        assert numbers[one.passage.chunk_id] == one.index


async def test_numbers_are_given_once_and_kept_over_rounds(searcher: Searcher) -> None:
    found = await collect("Who drinks oolong in the harbour of Reykjavik?", searcher)
    assert len(found.hits) > 1
    assert_numbers_are_stable(found)


async def test_evidence_and_its_citations_go_together(searcher: Searcher) -> None:
    result = (await collect(GREEN, searcher)).result
    assert [one.index for one in result.citations] == [one.index for one in result.evidence]
    best = result.citations[0]
    assert (best.title, best.heading, best.source_tool) == ("Tea", "Tea › Green tea", "search_documents")
    assert "eighty degrees" in (best.supporting_quote or "")


def test_passages_that_several_searches_agree_on_come_first(library: Library) -> None:
    book = EvidenceBook()
    tea, ferry = library.search("green tea", limit=3), library.search("ferry harbour", limit=3)
    numbers = [one.index for one in book.add([*tea, *ferry], "one")]
    assert numbers == list(range(1, len(numbers) + 1))
    last = ferry[-1]
    again = book.add([last], "two")
    assert [one.index for one in again] == [numbers[-1]]
    assert book.ranked()[0].passage.chunk_id == last.chunk_id
    assert again[0].tool == "one"
    assert book.get(len(book)) is not None
    assert book.get(len(book) + 1) is None


# Whose documents


@pytest.mark.parametrize("owner", ["ann", None])
async def test_documents_of_others_are_not_seen(library: Library, searcher: Searcher, owner: str | None) -> None:
    put(library, "diary.md", "# Diary\n\nGreen tea is brewed with melted snow, which is my secret.", owner="bob")
    found = await collect(GREEN, searcher, owner=owner)
    assert "Diary" not in {hit.title for hits in found.hits for hit in hits}
    assert "Diary" not in {one.passage.title for one in found.result.evidence}


async def test_who_owns_a_document_finds_it_beside_those_of_everyone(library: Library, searcher: Searcher) -> None:
    put(library, "diary.md", "# Diary\n\nGreen tea is brewed with melted snow, which is my secret.", owner="bob")
    found = await collect(GREEN, searcher, owner="bob")
    assert {"Diary", "Tea"} <= {one.passage.title for one in found.result.evidence}


# Rounds


async def test_a_question_that_is_answered_takes_one_round(searcher: Searcher) -> None:
    found = await collect(GREEN, searcher)
    assert found.queries == [GREEN]
    (review,) = found.of(ReviewEvent)
    assert (review.verdict, review.rounds_left, review.next_queries) == ("approved", 0, ())
    assert (review.step_id, review.iteration, review.method) == ("review-1", 1, "coverage")
    assert set(review.matched) == {"green", "tea", "brewed"}
    assert review.missing == ()
    assert found.result.sufficient


async def test_what_is_kept_and_what_is_dropped_are_all_that_was_found(searcher: Searcher) -> None:
    found = await collect("When does the ferry to Norderney leave in winter?", searcher)
    (review,) = found.of(ReviewEvent)
    assert set(review.kept).isdisjoint(review.dropped)
    assert {hit.index for hit in found.hits[0]} == {*review.kept, *review.dropped}
    assert review.dropped
    assert [one.index for one in found.result.evidence if one.index not in review.kept] == []


async def test_each_further_round_asks_for_what_is_missing_and_three_are_the_most(searcher: Searcher) -> None:
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


async def test_a_second_round_can_find_what_the_first_did_not(library: Library, searcher: Searcher) -> None:
    """Eight passages about one word of the question hide the one about the other, rarer ones."""
    for number in range(12):
        put(library, f"song{number}.md", f"# Song {number}\n\nThe whale sings and the whale swims and sings.")
    put(library, "report.md", "# Report\n\nOf barnacles on hulls, much is known: barnacles and hulls, hulls.")
    found = await collect("whale sings barnacles hulls", searcher)
    assert "Report" in {one.passage.title for one in found.result.evidence}
    assert_numbers_are_stable(found)


async def test_nothing_at_all_is_a_review_that_says_so(searcher: Searcher) -> None:
    found = await collect("Zzyzx?", searcher)
    review = found.of(ReviewEvent)[0]
    assert (review.verdict, review.feedback, review.missing) == ("rejected", "nothing was found", ("zzyzx",))
    assert (review.kept, review.dropped, review.rounds_left) == ((), (), 0)
    assert found.result.evidence == ()
    assert not found.result.sufficient


@pytest.mark.parametrize("question", ["?", "the of and", "🍵", '") OR (', "\u0007", "a" * 50_000, "x " * 20_000])
async def test_any_text_can_be_asked(searcher: Searcher, question: str) -> None:
    found = await collect(question, searcher)
    assert len(found.queries) <= ROUNDS


@pytest.mark.parametrize("question", ["w" * 300_000, "zzyzx why " * 30_000, "灯台" * 100_000, "green tea " * 30_000])
async def test_a_question_as_long_as_a_book_makes_no_event_too_large(searcher: Searcher, question: str) -> None:
    found = await collect(
        question, searcher, history=[Message("user", question), Message("user", "Zzyzx! " + question)]
    )
    assert max(len(encode_event(event)[1]) for event in found.events) < 64_000
    assert found.queries[0] == question[:2_000]


async def test_after_a_long_message_a_short_one_still_counts(searcher: Searcher) -> None:
    found = await collect("Zzyzx oolong Norway?", searcher, history=[Message("user", "green tea " * 30_000)])
    assert found.queries[1].endswith("Zzyzx oolong Norway?")


@pytest.mark.parametrize("question", [GREEN, NOWHERE])
async def test_without_a_review_there_is_one_search_and_no_review(searcher: Searcher, question: str) -> None:
    found = await collect(question, searcher, review=False)
    assert found.queries == [question]
    assert found.of(ReviewEvent) == []
    assert found.result.sufficient == (question == GREEN)
    assert len(found.result.evidence) == len(found.hits[0])


# What was said before


async def test_a_follow_up_is_searched_for_together_with_what_was_asked_before(searcher: Searcher) -> None:
    history = [Message("user", "How is black tea brewed?"), Message("assistant", "With boiling water. [1]")]
    found = await collect("And its leaves, dried how, rolled when, sold where?", searcher, history=history)
    assert found.queries[1] == "How is black tea brewed? And its leaves, dried how, rolled when, sold where?"
    first, *_ = found.of(ReviewEvent)
    assert first.next_queries == (found.queries[1],)


async def test_the_last_question_before_is_the_one_that_counts(searcher: Searcher) -> None:
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


async def test_a_follow_up_of_little_words_is_about_what_was_asked_before(searcher: Searcher) -> None:
    history = [Message("user", "How is green tea brewed?"), Message("assistant", "At eighty degrees. [1]")]
    found = await collect("And why is that?", searcher, history=history)
    assert any("green tea" in query for query in found.queries)
    assert found.result.evidence[0].passage.heading == "Tea › Green tea"


async def test_no_status_is_told_when_nothing_goes_wrong(searcher: Searcher) -> None:
    assert (await collect(GREEN, searcher)).of(StatusEvent) == []
