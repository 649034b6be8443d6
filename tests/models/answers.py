"""Reading a model's answer in tests, with a bound on every wait."""

from contextlib import aclosing
from typing import Any

import pytest

from tests.serving import within
from turnwire.core.errors import ModelError
from turnwire.core.log.turns import Message
from turnwire.models.contract import Piece
from turnwire.models.openai_client import OpenAIModel

QUESTION = (Message("user", "Why?"),)


async def read_answer(model: OpenAIModel, pieces: list[Piece] | None = None, **options: Any) -> list[Piece]:
    """Return all pieces of one answer; `pieces` also has those before an error."""
    received: list[Piece] = [] if pieces is None else pieces

    async def read() -> None:
        async with aclosing(model.stream("Be kind.", QUESTION, **options)) as answer:
            async for piece in answer:
                received.append(piece)

    await within(read())
    return received


async def failure(model: OpenAIModel, **options: Any) -> tuple[ModelError, list[Piece]]:
    """Return the error that an answer ends with, and the pieces before it."""
    pieces: list[Piece] = []
    with pytest.raises(ModelError) as caught:
        await read_answer(model, pieces, **options)
    return caught.value, pieces


def text(pieces: list[Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
