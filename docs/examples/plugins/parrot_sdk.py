"""Parrot: a made-up SDK. Its agent yields what it says word by word, and what it looks up."""

from collections.abc import AsyncIterator
from typing import Any


class Bird:
    def __init__(self, facts: dict[str, str]) -> None:
        self.facts = facts

    async def talk(self, prompt: str) -> AsyncIterator[dict[str, Any]]:
        for topic, fact in self.facts.items():
            if topic in prompt:
                yield {"lookup": topic, "found": fact}
                prompt = fact
        for word in prompt.split():
            yield {"word": word}
