"""Small talk: a fixed reply to messages that ask for nothing the documents could answer."""

import asyncio
import re
from collections.abc import Sequence

from turnwire.core.turns import Message
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.terms import words
from turnwire.retrieval.search import map_index_errors

_GREETING = re.compile(
    r"(?:hi|hello|hey|hiya|howdy|yo|greetings|welcome|hallo|bonjour|hola|ciao|good (?:morning|afternoon|evening|day)"
    r"|how are you|how do you do|how is it going|what s up|whats up|test|testing|ping)"
)
_THANKS = re.compile(
    r"(?:(?:ok|okay|great|cool|nice|perfect|awesome|good) ){0,3}(?:many )?"
    r"(?:thanks?|thank you|thx|cheers|danke|merci|gracias|bye|goodbye|good night|see you"
    r"|ok|okay|great|cool|nice|perfect)"
)
_FILLER = re.compile("there|you|everybody|all|so|very|much|a|lot|again|then|for|your|help|bot|assistant|turnwire")
# A question of only these words has its subject in the conversation at most.
_EMPTY = re.compile(
    "what|who|how|why|where|when|is|are|was|do|does|did|can|could|this|that|it|these|those|they|you|i|me|we|us|my|your"
    "|to|a|the|of|about|mean|means|work|works|help|please|tell|show|explain|more|and|so|ok|okay|here"
)
_EXAMPLES = ("What is a turn?", "What happens when the process is killed?", "How do I write my own agent?")
_MAX_WORDS = 8
_COUNT = 3


async def small_talk_reply(message: str, library: Library, owner: str | None, history: Sequence[Message]) -> str | None:
    """Return the reply to a greeting, to thanks, or to a question without a subject; None for any other message."""
    text = list(words(message.replace("'", " ").replace("’", " ")))
    if len(text) > _MAX_WORDS:
        return None
    core = " ".join(word for word in text if not _FILLER.fullmatch(word))
    if _THANKS.fullmatch(core):
        lead = "You are welcome. Ask me anything else about the documents, for example:"
    elif _GREETING.fullmatch(core) or _GREETING.fullmatch(" ".join(text)):
        lead = "Hello! I answer questions from the documents here, for example:"
    elif text and not history and all(_EMPTY.fullmatch(word) for word in text):
        # In a conversation it would mean what was asked before.
        lead = "I answer questions from the documents here. Say what you want to know about, for example:"
    else:
        return None
    return f"{lead}\n\n{await _examples(library, owner)}"


async def _examples(library: Library, owner: str | None) -> str:
    with map_index_errors():
        questions = await asyncio.to_thread(_questions, library, owner)
    return "\n".join(f"- {question}" for question in questions)


def _questions(library: Library, owner: str | None) -> Sequence[str]:
    if any(library.roots().values()):
        return _EXAMPLES
    documents = library.documents(owner=owner, limit=_COUNT)
    return [f"What does “{document.title or document.name}” say?" for document in documents]
