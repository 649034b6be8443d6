"""The client for every server with OpenAI's Chat Completions or Responses API.

The `openai` package makes the requests, and retries them until the first byte of the answer. It is an optional extra,
imported when a model is built. This client is stricter than the package: an answer without a finish reason, or a line
that is not JSON, is a `ModelError`.
"""

import copy
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel

from turnwire.core.errors import ModelUnusableError
from turnwire.core.log.files import LoadedFiles, load_files
from turnwire.core.log.model_options import ModelOptions
from turnwire.core.log.turns import Message
from turnwire.models.address import locate_model
from turnwire.models.chat_completions import ChatReader, chat_options, chat_request
from turnwire.models.contract import Piece, ToolSpec
from turnwire.models.errors import explain
from turnwire.models.openai_shared import AnswerReader
from turnwire.models.responses import ResponsesReader, responses_options, responses_request

# Without these limits, an answer that never ends a line would fill the memory.
MAX_LINE_BYTES = 8 * 1024 * 1024
"""The last event of some servers repeats the whole answer."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# As OpenAI's client does. More would hide a server that is down behind a turn that seems to think.
_RETRIES = 2
_TYPE_PACKAGES = ("openai.types.chat", "openai.types.responses")


class OpenAIModel:
    """A model behind an OpenAI-compatible API. Its name may choose a well-known server, as `ollama/qwen3` does.

    `timeout` bounds the silence of the server, before and during an answer; `retries` happen before its first byte.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        timeout: float = 60.0,
        retries: int = _RETRIES,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ModelUnusableError("it needs the openai package; pip install 'turnwire[openai]'") from error
        address = locate_model(name, base_url, api_key)
        self.name = address.name
        self.url = address.url
        self._timeout = timeout
        http_client, limit = openai.DefaultAsyncHttpxClient, answer_limiter(openai.DefaultAsyncHttpxClient)
        self._make_http_client = lambda: http_client(event_hooks={"response": [limit]})
        # Local servers need no key, but the client does.
        self._client = openai.AsyncOpenAI(
            base_url=address.url,
            api_key=address.key or "none",
            timeout=timeout,
            max_retries=retries,
            # Not compressed: a few bytes may unpack to a great many.
            default_headers={"Accept-Encoding": "identity"},
            http_client=self._make_http_client(),
        )
        self._connection_error = openai.APIConnectionError
        # A malformed chunk raises some ValueError.
        self._errors = (openai.OpenAIError, ValueError)
        self._path = "/chat/completions" if api == "chat" else "/responses"
        self.api: Literal["chat", "responses"] = api
        self._is_openai = urlsplit(address.url).hostname == "api.openai.com"
        self._request = chat_request if api == "chat" else responses_request
        self._options: dict[str, Any] = {}
        self._reader: type[AnswerReader] = ChatReader if api == "chat" else ResponsesReader
        self._chunks = openai.AsyncStream[object]

    def renamed(self, name: str) -> "OpenAIModel":
        """Return another model of the same server. It shares the connections, so only one of the two is closed."""
        other = copy.copy(self)
        other.name = name
        return other

    def with_options(self, options: ModelOptions) -> "OpenAIModel":
        """Return the same model with a client's options, but not its instructions. It shares the connections too."""
        other = copy.copy(self)
        if self.api == "chat":
            other._options = chat_options(options, is_openai=self._is_openai)
        else:
            other._options = responses_options(options)
        return other

    def with_own_connections(self) -> "OpenAIModel":
        """Return the same model with connections of its own, for another event loop. Close both."""
        other = copy.copy(self)
        other._client = self._client.copy(http_client=self._make_http_client())
        return other

    async def stream(
        self,
        instructions: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: dict[str, Any] | None = None,
        files: LoadedFiles | None = None,
    ) -> AsyncGenerator[Piece]:
        """Stream one answer. `files` are those of the messages, by default read from the running turn's session."""
        files = await load_files(messages) if files is None else files
        request = self._request(self.name, instructions, messages, tools, schema, files)
        request |= self._options
        reader = self._reader(self.name)
        try:
            # As plain objects: the package's own chunk classes take half a second to import and validate nothing.
            response = await self._client.post(
                self._path, body=request, stream=True, cast_to=object, stream_cls=self._chunks
            )
            async with response:
                async for chunk in response:
                    for piece in reader.read(chunk):
                        yield piece
        except self._errors as error:
            # A connection that breaks after the finish reason loses nothing.
            if not (reader.finished and isinstance(error, self._connection_error)):
                raise explain(error, self.name, self._timeout) from error
        for piece in reader.end():
            yield piece

    async def close(self) -> None:
        await self._client.close()


class AnswerTooLongError(ValueError):
    """Raised while an answer is read."""


def answer_limiter(client: type) -> Callable[[Any], Awaitable[None]]:
    """Return a response hook for HTTP clients of this class, which limits the bodies of all responses.

    The class tells which HTTP library it is of: that of the `openai` package has changed its name.
    """
    library = next(base.__module__.partition(".")[0] for base in client.__mro__ if base.__name__ == "AsyncClient")
    stream_class: Any = sys.modules[library].AsyncByteStream

    class LimitedStream(stream_class):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _limited(self._stream)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Any) -> None:
        response.stream = LimitedStream(response.stream)

    return limit


async def _limited(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    total = line = 0
    async for chunk in chunks:
        total += len(chunk)
        end = chunk.rfind(b"\n")
        line = line + len(chunk) if end < 0 else len(chunk) - end - 1
        if line > MAX_LINE_BYTES:
            raise AnswerTooLongError(f"a line of the answer is over {MAX_LINE_BYTES:,} bytes")
        if total > MAX_ANSWER_BYTES:
            raise AnswerTooLongError(f"the answer is over {MAX_ANSWER_BYTES:,} bytes")
        yield chunk


def build_types() -> None:
    """Build the types of replies, if the `openai` package is imported. Safe to call again.

    The package builds the validator of each type when it is first used: about a second of CPU time on the event loop in
    the first turn of an SDK. Built at once they take a fifth of that, in a thread.
    """
    if "openai" not in sys.modules:
        return
    for package in _TYPE_PACKAGES:
        for value in list(vars(import_module(package)).values()):
            if isinstance(value, type) and issubclass(value, BaseModel):
                value.model_rebuild()
