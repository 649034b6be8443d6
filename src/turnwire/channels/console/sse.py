"""Reads server-sent events: what a stream says, frame by frame, wherever its chunks are cut."""

from collections.abc import AsyncGenerator, AsyncIterable

from msgspec import Struct


class Frame(Struct, frozen=True):
    data: bytes
    id: str | None = None


async def frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[Frame]:
    """Comments and unknown fields are left out. What is cut off in the middle of a frame is not one."""
    rest = b""
    event_id, data = None, list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                event_id = value.decode("latin-1")
            elif name == b"data":
                data.append(value)
            elif not name and not line.strip():
                if data:
                    yield Frame(b"\n".join(data), event_id)
                event_id, data = None, []
