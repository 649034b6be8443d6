"""First questions of newcomers: each is answered by the first thing that is shown, without a model."""

import asyncio

import pytest

from eval.bench import answer_blocks, shelf
from eval.measures import holds_answer
from eval.own import NEWCOMERS, read_own
from tests.examples import some

# Making the vectors of the documentation takes half a minute, and much longer beside other work.
PATIENCE = 900


@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 60)
async def test_newcomers_questions_are_answered_by_the_first_block() -> None:
    own = read_own(path=NEWCOMERS)
    wrong: list[str] = []
    named = {name for question in own.questions for name in question.gains}
    answering = [each for each in own.documents if each.name in named]
    others = [each for each in own.documents if each.name not in named]
    async with asyncio.timeout(PATIENCE), shelf([*answering, *some(others, 3)], semantic=True) as filled:
        for question in own.questions:
            blocks = await answer_blocks(filled, question.text)
            if not blocks or not holds_answer(blocks[0], question.answers):
                wrong.append(question.text)
    assert wrong == []
