"""Files of messages: what an agent accepts, and the bytes that it reads while its turn runs.

A log describes the files of a message, and the session keeps their bytes as blobs, once for each digest. An agent gets
the descriptions, of earlier messages too, and reads the bytes when it needs them.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from turnwire.core.errors import AgentError
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.scope import current_turn
from turnwire.core.log.turns import Message, Turn, TurnRecord, title_from

ATTACHED = "attached"
"""The option of a turn with the descriptions of its message's files. Agents get `turn.attachments` instead."""

MODEL_FILE_TYPES = ("image/*", "application/pdf", "text/*", "application/json")
"""The media types that our adapters pass on to a model: images and PDFs as they are, text files as text."""

_GONE = "[The file {name} was sent here, and is no longer kept.]"
_TEXT_TYPES = ("text/*", "application/json")


class Blob(Struct, frozen=True, kw_only=True):
    """A file of a session. The name and media type are those with which it was sent first."""

    digest: str
    media_type: str
    body: bytes
    name: str | None = None

    @property
    def info(self) -> AttachedFile:
        return AttachedFile(media_type=self.media_type, name=self.name, size=len(self.body), digest=self.digest)


def new_blob(body: bytes, media_type: str, name: str | None = None) -> Blob:
    return Blob(digest=hashlib.sha256(body).hexdigest(), media_type=media_type, body=body, name=name)


def accepts(types: Iterable[str], media_type: str) -> bool:
    """Return True if a media type is one of these; `image/*` is all images, `*/*` is everything."""
    kind = media_type.partition(";")[0].strip().lower()
    return any(pattern in ("*/*", kind, f"{kind.partition('/')[0]}/*") for pattern in types)


def attached_files(options: Mapping[str, Any]) -> tuple[AttachedFile, ...]:
    """Return the descriptions of the files of a turn's message, from its options."""
    attached = options.get(ATTACHED)
    return msgspec.convert(attached, tuple[AttachedFile, ...]) if attached else ()


def history_digests(options: Mapping[str, Any]) -> set[str]:
    """Return the digests of the files in the option `history`: the messages from before the session."""
    messages = cast("list[dict[str, Any]]", options.get("history") or [])
    return {file["digest"] for message in messages for file in message.get("attachments", ()) if "digest" in file}


def default_title(record: TurnRecord) -> str:
    """Return the default title of a session: the start of its first message, or the name of its first file."""
    return title_from(record.message) or next((file.name or "" for file in attached_files(record.options)), "")


# Reading


class BlobReader(Protocol):
    async def read_blob(self, session_id: str, digest: str) -> Blob | None: ...


class TurnFiles:
    """The files that a running turn can read: those of its session. Each is read from the store once."""

    __slots__ = ("_read", "_session_id", "_store")

    def __init__(self, store: BlobReader, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._read: dict[str, bytes | None] | None = None

    async def read(self, file: AttachedFile) -> bytes | None:
        """Return the bytes of a file, or None if they are not kept (any more). Raises StoreError."""
        if file.digest is None:
            return None
        if self._read is None:
            self._read = {}
        if file.digest not in self._read:
            blob = await self._store.read_blob(self._session_id, file.digest)
            self._read[file.digest] = blob.body if blob else None
        return self._read[file.digest]


def _current_files() -> TurnFiles | None:
    scope = current_turn()
    return None if scope is None else scope.files


async def read_file(file: AttachedFile) -> bytes:
    """Return the bytes of a file of the running turn's message or history.

    Raises AgentError for a file that is no longer kept, or that the client named by its URL only.
    """
    files = _current_files()
    data = None if files is None else await files.read(file)
    if data is None:
        raise AgentError(f"The file {_name(file)} is not available.", code="file_gone")
    return data


class LoadedFile(Struct, frozen=True):
    """A file for a model. `data` is empty if the client named the file by its URL only."""

    info: AttachedFile
    data: bytes = b""

    @property
    def is_image(self) -> bool:
        return self.info.media_type.startswith("image/")

    @property
    def name(self) -> str:
        return _name(self.info)

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode("ascii")

    @property
    def url(self) -> str:
        """Return the URL of the file: the client's, or one that has the bytes in it."""
        return self.info.url or f"data:{self.info.media_type};base64,{self.base64}"


class LoadedFiles:
    """The files of a conversation, by digest: with them, messages are converted to what a model takes."""

    def __init__(self, contents: Mapping[str, bytes | None] | None = None) -> None:
        self._contents = contents or {}

    def parts(self, message: Message) -> list[str | LoadedFile]:
        """Return the text of a message and its files. Text files, and the note for a lost file, are text."""
        parts: list[str | LoadedFile] = [message.content] if message.content or not message.attachments else []
        for file in message.attachments:
            data = self._contents.get(file.digest or "")
            if file.url is not None:
                parts.append(LoadedFile(file))
            elif data is None:
                parts.append(_GONE.format(name=_name(file)))
            elif accepts(_TEXT_TYPES, file.media_type):
                parts.append(f"[{_name(file)}]\n{data.decode('utf-8', 'replace')}")
            else:
                parts.append(LoadedFile(file, data))
        return parts


async def load_files(messages: Iterable[Message]) -> LoadedFiles:
    """Read the files of some messages. Raises StoreError."""
    files = _current_files()
    if files is None:
        return LoadedFiles()
    attached = [file for message in messages for file in message.attachments]
    return LoadedFiles({file.digest or "": await files.read(file) for file in attached})


async def load_turn_files(turn: Turn) -> LoadedFiles:
    """Read the files of a turn's message and history. Raises StoreError."""
    return await load_files([*turn.history, user_message(turn)])


def user_message(turn: Turn) -> Message:
    """Return the message of a turn, with its files."""
    return Message("user", turn.message, attachments=turn.attachments)


async def encoded_attachments(attached: Sequence[AttachedFile], files: TurnFiles) -> list[dict[str, Any]]:
    """Return files as `turn.options["attachments"]` has them: in base64, or with their URL. Raises StoreError."""
    encoded: list[dict[str, Any]] = []
    for file in attached:
        fields: dict[str, Any] = {"media_type": file.media_type}
        if file.name is not None:
            fields["name"] = file.name
        if file.url is not None:
            fields["url"] = file.url
        else:
            fields["data"] = base64.b64encode(await files.read(file) or b"").decode("ascii")
        encoded.append(fields)
    return encoded


def _name(file: AttachedFile) -> str:
    return file.name or file.media_type
