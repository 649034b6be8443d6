"""The ranking of blocks: which is quoted, which are related, and how sure it is."""

from collections.abc import Sequence

import pytest

from tests.retrieval.shelf import assert_exact, collect, evidence, put, synthesise
from turnwire.retrieval.evidence import Similarity
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.relevance import BlockRanker, Ranking, asks_how, select_blocks
from turnwire.retrieval.sentences import Matcher

ANSWER = "It is brewed at eighty degrees, the green tea."
BREW = "How is green tea brewed?"


async def ranking(question: str, *texts: str, similarity: Similarity | None = None) -> Ranking:
    options = [evidence(number, text) for number, text in enumerate(texts, 1)]
    return await BlockRanker(question, Matcher(question, {}), similarity).rank(options)


async def chosen(question: str, *texts: str, count: int = 3, similarity: Similarity | None = None) -> list[str]:
    ranked = await ranking(question, *texts, similarity=similarity)
    return [item.block.text for item in select_blocks(ranked, count)]


@pytest.mark.parametrize(
    "text",
    [
        f"# Green tea\n\n{ANSWER}",
        f"How is green tea brewed?\n\n{ANSWER}",
        f"| `green_tea` | `GREEN_TEA` | brewed green tea |\n\n{ANSWER}",
        "| tea | leaf | colour | brewed |\n|---|---|---|---|\n"
        + "| green tea | whole green tea leaves from the first harvest | green | hot |\n" * 16
        + f"\n{ANSWER}",
        f"```sh\nbrew green tea\n```\n\n{ANSWER}",
        f"- [Green tea](green.md)\n- [Brewed tea](brewed.md)\n\n{ANSWER}",
    ],
    ids=["heading", "question", "settings row", "row of a wide table", "code", "contents"],
)
async def test_only_a_statement_answers(text: str) -> None:
    assert await chosen(BREW, text) == [ANSWER]


async def test_table_with_many_columns_answers_nothing() -> None:
    rows = "| green tea | hot | mild | long | dear | rare |\n| brewed tea | cold | mild | short | cheap | common |"
    table = f"| tea | heat | taste | time | price | found |\n|---|---|---|---|---|---|\n{rows}"
    assert await chosen(BREW, f"{table}\n\n{ANSWER}") == [ANSWER]


async def test_code_that_a_sentence_announces_answers_any_question() -> None:
    code = "```sh\nbrew green tea\n```"
    assert await chosen("Who brewed green tea?", f"A brewer brewed it, the green tea:\n\n{code}") == [
        f"A brewer brewed it, the green tea:\n\n{code}"
    ]
    assert await chosen("Who brewed green tea?", f"A brewer brewed the green tea.\n\n{code}") == [
        "A brewer brewed the green tea."
    ]


async def test_best_block_is_shown_with_its_neighbours_and_related_ones_alone() -> None:
    best, neighbour = "Green tea is brewed at eighty degrees.", "Black leaves need boiling water."
    related = "A brewed cup of tea, green or not, keeps warm for ten minutes."
    texts = await chosen(BREW, f"{best}\n\n{neighbour}", f"{related}\n\nThe pot is made of iron.")
    assert texts == [f"{best}\n\n{neighbour}", related]


async def test_definition_is_shown_alone() -> None:
    assert (await chosen("What is a samovar?", "A samovar is an urn for tea.\n\nTea is hot."))[0] == (
        "A samovar is an urn for tea."
    )


async def test_row_of_settings_answers_a_question_that_names_it() -> None:
    row = "| `keep_logs` | `TURNWIRE_KEEP_LOGS` | 30 days, then logs are deleted |"
    (block,) = await chosen("What does keep_logs do?", row)
    assert "30 days" in block


@pytest.mark.parametrize("name", ["`green_tea`", "`green_tea` `{brewed}`", "`green_tea` · `GREEN_TEA`", "418"])
async def test_row_of_a_reference_answers_no_question_that_does_not_name_it(name: str) -> None:
    assert await chosen(BREW, f"| {name} | tea | green tea is brewed hot |") == []


async def test_row_of_a_status_answers_a_question_that_names_it() -> None:
    (block,) = await chosen("What does the status 418 mean?", "| 418 | `teapot` | the status of a teapot |")
    assert "teapot" in block


@pytest.mark.parametrize("question", ["How do I brew tea?", "How can tea be brewed?", "Which command brews tea?"])
async def test_code_is_quoted_if_the_question_asks_how(question: str) -> None:
    assert asks_how(question)
    assert "brew --tea" in (await chosen(question, "To brew tea, run:\n\n```sh\nbrew --tea\n```"))[0]
    assert not asks_how("What is tea?")


@pytest.mark.parametrize(
    "text",
    ["Oolong that is old is not sold.", "| oolong | harvest | price |\n|---|---|---|\n| spring | May | ten |"],
    ids=["relative clause", "table of three columns"],
)
async def test_text_that_only_begins_like_a_definition_is_not_related_to_one(text: str) -> None:
    definition = "Oolong is a tea that is half oxidised."
    assert await chosen("What is oolong?", text, definition) == [definition]


async def test_definition_comes_first_for_a_what_is_question() -> None:
    uses = "Oolong and more oolong, said the captain of oolong ships, who sold oolong."
    definition = "Oolong is a tea that is half oxidised."
    assert await chosen("What is oolong?", uses, definition) == [definition]


@pytest.mark.parametrize(
    "text", ["While oolong is busy, others wait.", "Oolong is stored in a box of its own.", "If oolong is hot, wait."]
)
async def test_clause_and_passive_define_nothing(text: str) -> None:
    (best, *_) = (await ranking("What is oolong?", text)).blocks
    assert not best.features["definition"]


async def test_block_that_is_much_weaker_is_left_out() -> None:
    assert await chosen(BREW, ANSWER, "The pier is long, and boats come and go.") == [ANSWER]


async def test_repetition_is_left_out() -> None:
    assert len(await chosen(BREW, ANSWER, f"{ANSWER} So they say.")) == 1
    assert len(await chosen(BREW, ANSWER, "With care the green tea is brewed in a pot of clay.")) == 2


async def test_meaning_decides_between_blocks_with_the_same_words() -> None:
    async def similarity(question: str, texts: Sequence[str]) -> list[float]:
        return [0.9 if "warm" in text else 0.1 for text in texts]

    cold, warm = "Green tea is cold when brewed so.", "Green tea is warm when brewed so."
    assert (await chosen(BREW, cold, warm, similarity=similarity))[0] == warm
    assert (await chosen(BREW, cold, warm))[0] == cold


async def test_words_decide_while_there_are_no_vectors() -> None:
    async def similarity(question: str, texts: Sequence[str]) -> None:
        return None

    by_words, meanwhile = await ranking(BREW, ANSWER), await ranking(BREW, ANSWER, similarity=similarity)
    assert meanwhile == by_words


async def test_confidence_is_low_without_the_words_of_the_question() -> None:
    assert (await ranking(BREW, ANSWER)).confidence > 0.5
    assert (await ranking("Who won the chess tournament in Reykjavik?", ANSWER)).confidence < 0.5
    assert (await ranking(BREW)).confidence == 0


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("灯台はどこにありますか", "猫が好きです。\n\n灯台は海の近くにあります。", "灯台は海の近くにあります。"),
        ("绿茶怎么泡", "黑茶很贵。\n\n绿茶用八十度的水泡。", "绿茶用八十度的水泡。"),
    ],
)
async def test_text_without_spaces_is_ranked(question: str, text: str, expected: str) -> None:
    assert (await ranking(question, text)).blocks[0].block.text == expected


async def test_chinese_question_is_answered_without_a_model(library: SqliteLibrary, searcher: Searcher) -> None:
    put(library, "cha.md", "# 茶\n\n黑茶很贵。绿茶用八十度的水泡两分钟。")
    written = await synthesise((await collect("绿茶用多少度的水泡", searcher)).result)
    assert "绿茶用八十度的水泡两分钟。" in written.text
    assert written.mode == "extractive"
    assert_exact(library, written.citations)


async def test_tiny_document_is_quoted(library: SqliteLibrary, searcher: Searcher) -> None:
    put(library, "price.md", "# Price of a lifeboat\n\nNinety crowns.")
    written = await synthesise((await collect("What is the price of a lifeboat?", searcher)).result)
    assert "Ninety crowns." in written.text


async def test_code_and_tables_have_their_marker_on_a_line_of_their_own(
    library: SqliteLibrary, searcher: Searcher
) -> None:
    put(library, "kettle.md", "# Kettle\n\nTo switch the kettle on, run:\n\n```sh\nkettle --on\n```")
    written = await synthesise((await collect("How do I switch the kettle on?", searcher)).result)
    assert "kettle --on\n```\n\n[1]" in written.text
    assert_exact(library, written.citations)
