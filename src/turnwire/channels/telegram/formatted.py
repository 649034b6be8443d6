"""Text with entities: what a Telegram message consists of.

Offsets and lengths count UTF-16 units, as Telegram does: a letter is one, most emoji are two.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, to_builtins

LIMIT = 4096

EntityKind = Literal["bold", "italic", "strikethrough", "code", "pre", "text_link", "blockquote"]


class Entity(Struct, frozen=True, omit_defaults=True):
    type: EntityKind
    offset: int
    length: int
    url: str | None = None
    language: str | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


class Formatted(Struct, frozen=True):
    text: str = ""
    entities: tuple[Entity, ...] = ()

    @property
    def units(self) -> int:
        return utf16_length(self.text)

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()

    def plain_entities(self) -> list[dict[str, Any]]:
        return [to_builtins(entity) for entity in self.entities]

    def followed_by(self, other: "Formatted") -> "Formatted":
        shift = self.units
        moved = (_moved(entity, entity.offset + shift, entity.length) for entity in other.entities)
        return Formatted(self.text + other.text, (*self.entities, *moved))


def utf16_length(text: str) -> int:
    return len(text) + sum(char > "\uffff" for char in text)


def italic(text: str) -> Formatted:
    return Formatted(text, (Entity("italic", 0, utf16_length(text)),) if text else ())


def within(entities: Iterable[Entity], start: int, end: int) -> tuple[Entity, ...]:
    """The entities of a stretch of the text, cut where they leave it, counted from its start."""
    found: list[Entity] = []
    for entity in entities:
        first, last = max(entity.offset, start), min(entity.end, end)
        if first < last:
            found.append(_moved(entity, first - start, last - first))
    return tuple(found)


def _moved(entity: Entity, offset: int, length: int) -> Entity:
    return Entity(entity.type, offset, length, entity.url, entity.language)
