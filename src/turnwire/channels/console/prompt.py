"""The prompt: multi-line input with history and completion of commands. Imported only at a terminal."""

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
            # A large reserve would push the conversation away.
            reserve_space_for_menu=0 if plain else 4,
        )

    async def read(self, default: str = "") -> str:
        """Read a message. Raise KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""
        return await self._read(self._session, "› ", default)

    async def answer(self, question: str) -> str:
        """Read a short answer that is not added to the history; empty if the person declines."""
        try:
            return (await self._read(PromptSession(), question)).strip()
        except (KeyboardInterrupt, EOFError):
            return ""

    async def _read(self, session: PromptSession[str], label: str, default: str = "") -> str:
        self._screen.while_prompting = _print_above
        try:
            # The program handles signals itself; at the prompt Ctrl-C is a key.
            return await session.prompt_async(
                FormattedText([("bold ansicyan", label)]), default=default, handle_sigint=False
            )
        finally:
            self._screen.while_prompting = None


def _print_above(write: Callable[[], None]) -> None:
    run_in_terminal(write)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Messages are as private as the logs.
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
