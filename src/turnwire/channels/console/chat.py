"""The loop of `turnwire chat`: a prompt for messages and commands, and the answers. Imported only at a terminal."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.text import Text

from turnwire.channels.console.conversation import Conversation
from turnwire.channels.console.host import Host
from turnwire.channels.console.keyboard import Keyboard
from turnwire.channels.console.screen import Screen
from turnwire.channels.console.view import View, clean_line, one_line, render_answer
from turnwire.cli.server_errors import HostError
from turnwire.client import ReceivedEvent, TurnUpdate
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import DoneEvent, MessageEvent, SessionEvent

COMMANDS = {
    "/new": "start a new conversation",
    "/sessions": "list the conversations, and continue one",
    "/agents": "list the agents; `/agents NAME` selects one",
    "/stop": "stop the running answer (as Ctrl-C does)",
    "/queue": "while an answer is written: `/queue MESSAGE` asks after it, instead of adding to it",
    "/help": "show this list",
    "/quit": "leave (as Ctrl-D does)",
}
_KEYS = "Alt-Enter or a \\ at the end: new line · Ctrl-C: stop the answer, or clear the line · Ctrl-D: leave"
_MAX_SESSIONS = 15


class Chat:
    """A conversation at the prompt."""

    def __init__(
        self,
        host: Host,
        screen: Screen,
        view: Callable[[], View],
        *,
        session_id: str | None = None,
        agent: str | None = None,
        history: Path | None = None,
        plain: bool = False,
    ) -> None:
        self._host = host
        self._screen = screen
        self._view = view
        self._session_id = session_id
        self._agent = agent
        self._keyboard = Keyboard()
        self._queued: list[str] = []
        self._sent: list[SentMessage] = []
        self._prompt = Prompt(screen, history, COMMANDS, plain=plain)

    async def run(self) -> None:
        """Run until the person leaves. Raise UserLeft if they leave during an answer."""
        with self._keyboard.unedited():
            await self._run()

    async def _run(self) -> None:
        while True:
            try:
                text = await self._next()
            except KeyboardInterrupt:
                self._say("Ctrl-D or /quit leaves; /help lists the commands.")
                continue
            except EOFError:
                return
            if text.strip() == "/quit":
                return
            try:
                await self._act(text)
            except HostError as error:
                self._screen.print(Text(f"✗ {error}", "red"))

    async def _next(self) -> str:
        if not self._queued:
            if self._keyboard.end_pressed:
                raise EOFError
            return await self._prompt.read(self._keyboard.take())
        text = self._queued.pop(0)
        self._screen.print(Text.assemble(("› ", "bold cyan"), text))
        return text

    async def _act(self, text: str) -> None:
        command, _, rest = text.rstrip().partition(" ")
        match command:
            case "/help":
                for name, description in COMMANDS.items():
                    self._screen.print(Text.assemble((f"{name:<10}", "bold"), f" {description}"))
                self._say(_KEYS)
            case "/new":
                self._session_id = None
                self._say("This is a new conversation.")
            case "/stop":
                self._say("No answer is running.")
            case "/queue":
                await self._act(rest)
            case "/sessions":
                await self._pick_session()
            case "/agents":
                await self._pick_agent(rest.strip())
            case _ if command.startswith("/") and command[1:].isalpha():
                self._say(f"There is no {command}; /help lists the commands. To send it, begin with a space.")
            case _:
                if text.strip():
                    await self._converse(text.strip())

    async def _converse(self, message: str) -> None:
        await self._show(self._host.converse(message, session_id=self._session_id, agent=self._agent))
        while self._sent:
            sent = self._sent.pop(0)
            # A message that has joined the running turn was answered there.
            if not await sent.has_joined():
                self._screen.print(Text.assemble(("› ", "bold cyan"), sent.message))
                await self._show(sent.updates())

    async def _show(self, turn: AsyncGenerator[TurnUpdate]) -> None:
        view, keyboard = self._view(), self._keyboard
        conversation = Conversation(self._host, view, keyboard)
        keyboard.on_change = view.type
        keyboard.on_line = lambda line: self._on_line(conversation, view, line)
        keyboard.on_end = lambda: view.line("leaves after this answer; Ctrl-C stops it")
        self._screen.print(Text())
        try:
            with keyboard.listening():
                await conversation.show(turn)
        finally:
            keyboard.on_change = keyboard.on_line = keyboard.on_end = keyboard.on_key = None
            self._session_id = conversation.presenter.session_id or self._session_id
        self._screen.print(Text())

    def _on_line(self, conversation: Conversation, view: View, line: str) -> None:
        if line.strip() == "/stop":
            conversation.stop()
        elif not line.startswith("/") and conversation.take_line(line):
            return
        elif line.startswith("/") or conversation.presenter.session_id is None:
            self._queued.append(line)
            view.line(f"next: {one_line(line.removeprefix('/queue '))}")
        else:
            session_id = conversation.presenter.session_id
            turn = self._host.converse(line, session_id=session_id, agent=self._agent, on_busy="steer")
            self._sent.append(SentMessage(line, turn))
            view.line(f"sent: {one_line(line)}")

    async def _pick_session(self) -> None:
        sessions = await self._host.sessions(_MAX_SESSIONS)
        if not sessions:
            self._say("There are no conversations yet.")
            return
        for number, session in enumerate(sessions, 1):
            bullet = "•" if session.id == self._session_id else " "
            turns = f"{session.turn_count} turn{'' if session.turn_count == 1 else 's'}"
            self._screen.print(
                Text.assemble(
                    f"{bullet}{number:>3}  ", clean_line(session.title or "(no title)", 60), (f"  {turns}", "dim")
                )
            )
        picked = await self._prompt.answer("Number (Enter for none)? ")
        if not picked.isdecimal() or not 0 < int(picked) <= len(sessions):
            self._say("The conversation stays the same.")
            return
        session = sessions[int(picked) - 1]
        self._session_id = session.id
        self._say(f"Continuing “{clean_line(session.title or '', 60)}”.")
        if (exchange := await self._host.last_exchange(session.id)) is not None:
            message, answer = map(clean_text, exchange)
            self._screen.print(Text(f"› {one_line(message)}", "dim"), Text(), *render_answer(answer), Text())

    async def _pick_agent(self, name: str) -> None:
        if name:
            # The server reports an unknown name with the next message.
            self._agent = name
            self._say(f"{name} answers from now on.")
            return
        names = await self._host.agents()
        self._say(f"{', '.join(names)}. Selected: {self._agent or names[0]}.")

    def _say(self, text: str) -> None:
        self._screen.print(Text(text, "dim"))


class SentMessage:
    """A message that was sent while another answer streams. A task reads the updates of its turn."""

    def __init__(self, message: str, turn: AsyncGenerator[TurnUpdate]) -> None:
        self.message = message
        self._received: list[TurnUpdate] = []
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._follow(turn))

    async def _follow(self, turn: AsyncGenerator[TurnUpdate]) -> None:
        try:
            async with aclosing(turn):
                async for update in turn:
                    self._received.append(update)
                    self._changed.set()
        finally:
            self._changed.set()

    async def has_joined(self) -> bool:
        """Wait until the message has entered another turn, or has a turn of its own that has begun."""
        async with aclosing(self.updates()) as updates:
            async for update in updates:
                if isinstance(update, ReceivedEvent) and not isinstance(update.event, SessionEvent | MessageEvent):
                    return isinstance(update.event, DoneEvent) and update.event.outcome == "joined"
        return False

    async def updates(self) -> AsyncGenerator[TurnUpdate]:
        """Yield the updates from the first one on. Raises HostError."""
        position = 0
        while True:
            self._changed.clear()
            while position < len(self._received):
                yield self._received[position]
                position += 1
            if self._task.done():
                self._task.result()
                return
            await self._changed.wait()


class Prompt:
    """Multi-line input with history and completion of commands."""

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
            # More lines for the menu would push the conversation up.
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
