"""How tests ask a model: every wait has a bound."""

from contextlib import aclosing
from typing import Any

import pytest

from tests.serving import within
from turnwire.core.errors import ModelError
from turnwire.core.turns import Message
from turnwire.models.contract import Piece
from turnwire.models.openai_client import OpenAIModel

QUESTION = (Message("user", "Why?"),)


async def ask(model: OpenAIModel, pieces: list[Piece] | None = None, **options: Any) -> list[Piece]:
    """All pieces of one answer; `pieces` also has those that came before an error."""
    got: list[Piece] = [] if pieces is None else pieces

    async def read() -> None:
        async with aclosing(model.stream("Be kind.", QUESTION, **options)) as answer:
            async for piece in answer:
                got.append(piece)

    await within(read())
    return got


async def failure(model: OpenAIModel, **options: Any) -> tuple[ModelError, list[Piece]]:
    """The error that an answer ends with, and what came before it."""
    pieces: list[Piece] = []
    with pytest.raises(ModelError) as caught:
        await ask(model, pieces, **options)
    return caught.value, pieces


def text(pieces: list[Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
