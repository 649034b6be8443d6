"""Where a person types: history, several lines, commands with completion. It is loaded when somebody sits there."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from turnwire.channels.console.screen import Screen


class Prompt:
    def __init__(self, screen: Screen, history: Path | None, commands: Mapping[str, str], *, plain: bool) -> None:
        self._screen = screen
        completer = WordCompleter(list(commands), meta_dict=dict(commands), sentence=True)
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=completer,
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation="… ",
            # The menu of commands must not push the conversation away.
            reserve_space_for_menu=0 if plain else 4,
        )

    async def read(self, default: str = "") -> str:
        """A message. Raises KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""
        return await self._read(self._session, "› ", default)

    async def answer(self, question: str) -> str:
        """A word, which is no part of the history; empty if there is none."""
        try:
            return (await self._read(PromptSession(), question)).strip()
        except (KeyboardInterrupt, EOFError):
            return ""

    async def _read(self, session: PromptSession[str], label: str, default: str = "") -> str:
        self._screen.while_prompting = _beside
        try:
            # Signals are for whoever runs the program: at the prompt Ctrl-C is a key.
            return await session.prompt_async(
                FormattedText([("bold ansicyan", label)]), default=default, handle_sigint=False
            )
        finally:
            self._screen.while_prompting = None


def _beside(write: Callable[[], None]) -> None:
    run_in_terminal(write)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What is asked is as private as what is answered.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
