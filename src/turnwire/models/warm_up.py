"""Work of the `openai` package that would otherwise hold up the first turn.

The package builds the validator of each type when it is first used: about a second of CPU time on the event loop in the
first turn of an SDK. Built at once they take a fifth of that, in a thread.
"""

import sys
from importlib import import_module

from pydantic import BaseModel

_PACKAGES = ("openai.types.chat", "openai.types.responses")


def build_types() -> None:
    """Build the types of replies, if the `openai` package is imported. Safe to call again."""
    if "openai" not in sys.modules:
        return
    for package in _PACKAGES:
        for value in list(vars(import_module(package)).values()):
            if isinstance(value, type) and issubclass(value, BaseModel):
                value.model_rebuild()
