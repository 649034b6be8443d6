"""Questions of turns in a chat: a message for each field, with buttons for its choices.

A field is answered by a button, or by the next message of the chat. The records keep what was answered so far, so a
form goes on after a restart. Each step can be repeated: the next field is recorded before the one before it is closed,
and the same reply twice is one reply. So an answer that Telegram sends again after a crash completes the step.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.channels.telegram.answers import AnswerPoster
from turnwire.channels.telegram.markdown import escaped
from turnwire.channels.telegram.records import Records
from turnwire.channels.telegram.updates import ButtonPress, IncomingMessage
from turnwire.core.errors import InvalidReplyError, ShuttingDownError, StoreError, TurnwireError
from turnwire.core.people.schemas import TextForm
from turnwire.extensions.contract import ExtensionContext, QuestionAsk

_PREFIX = "question-"
_MAX_CHOICES = 60
_SHORT_CHARS, _SHORT_IN_ROW = 10, 3
_TOO_LATE = "⌛ It was too late to answer."
_CLOSED = "⌛ This question is closed."


class OpenField(Struct, frozen=True):
    """A field of a question that waits for its value: the field after `done` others, which have these `values`."""

    turn_id: str
    question_id: str
    prompt: str
    schema: dict[str, Any] | None = None
    values: dict[str, Any] = {}
    done: int = 0

    @property
    def answer_id(self) -> str:
        """Return the id of its message, which is the same after a crash."""
        return f"{_answer_prefix(self.turn_id, self.question_id)}{self.done}"

    def form(self) -> TextForm:
        return TextForm(self.prompt, self.schema, self.values, self.done)


QuestionUpdate = IncomingMessage | ButtonPress


class QuestionForms:
    """The open questions of all chats. The dispatcher calls it for one update after the other."""

    def __init__(self, context: ExtensionContext, records: Records, answers: AnswerPoster) -> None:
        self._context = context
        self._records = records
        self._answers = answers

    async def show(self, user_id: str, ask: QuestionAsk) -> None:
        schema = None if ask.schema is None else dict(ask.schema)
        await self._show(user_id, OpenField(ask.turn_id, ask.question_id, ask.prompt, schema))

    async def close(self, user_id: str, ask: QuestionAsk) -> None:
        """Close the question if it is still open here, because nobody needs the answer any more."""
        for answer in await self._records.open_asks(user_id, _answer_prefix(ask.turn_id, ask.question_id)):
            await self._answers.close_ask(answer.answer_id, _CLOSED)

    async def take(self, message: IncomingMessage) -> bool:
        """Take a message as the value of the oldest open field. Return False if no question can be answered."""
        user_id = message.address.user_id
        for answer in await self._records.open_asks(user_id, _PREFIX):
            field = msgspec.json.decode(answer.ask or "", type=OpenField)
            form = field.form()
            if problem := form.take(message.text):
                await self._refuse(message, f"{problem}: {form.label}")
                return True
            if await self._advance(field, form, message.text, message) != _TOO_LATE:
                return True
        return False

    async def press(self, press: ButtonPress) -> str:
        """Take the button of a field, and return the reply to it."""
        answer_id, _, choice = press.target.partition(":")
        answer = await self._records.answer(answer_id)
        if answer is None or answer.ask is None:
            return "It is answered already."
        field = msgspec.json.decode(answer.ask, type=OpenField)
        if press.action == "decline":
            return await self._reply(field, None, "🚫 Declined", press, declined=True)
        form = field.form()
        name, problem = ("", form.take("")) if not choice else _choose(form, int(choice))
        return problem or await self._advance(field, form, name, press)

    async def _show(self, user_id: str, field: OpenField) -> None:
        form = field.form()
        buttons = _keyboard(form, field.answer_id)
        await self._answers.notify(user_id, _text(field, form), answer_id=field.answer_id, buttons=buttons, ask=field)

    async def _advance(self, field: OpenField, form: TextForm, entered: str, update: QuestionUpdate) -> str:
        """Go on with the next field, or reply to the question. Return the outcome."""
        outcome = f"✅ {escaped(entered)}" if entered else "⏭ Skipped"
        if form.is_complete:
            return await self._reply(field, form.value, outcome, update)
        await self._show(update.address.user_id, replace(field, values=form.value, done=field.done + 1))
        await self._answers.close_ask(field.answer_id, outcome, update.update_id)
        return outcome

    async def _reply(
        self,
        field: OpenField,
        value: Any,
        outcome: str,
        update: QuestionUpdate,
        *,
        declined: bool = False,
    ) -> str:
        by = f"telegram:{update.sender_id}"
        try:
            await self._context.reply(field.turn_id, field.question_id, value, by=by, declined=declined)
        except (StoreError, ShuttingDownError):
            raise
        except InvalidReplyError as error:
            await self._refuse(update, str(error))
            return str(error)
        except TurnwireError:
            await self._answers.close_ask(field.answer_id, _TOO_LATE)
            return _TOO_LATE
        await self._answers.close_ask(field.answer_id, f"{outcome} by {escaped(update.sender)}", update.update_id)
        return outcome

    async def _refuse(self, update: QuestionUpdate, problem: str) -> None:
        text = escaped(problem[:1].upper() + problem[1:])
        await self._answers.notify(update.address.user_id, text, answer_id=f"refused-{update.update_id}")


def _answer_prefix(turn_id: str, question_id: str) -> str:
    digest = hashlib.sha256(f"{turn_id} {question_id}".encode()).hexdigest()[:16]
    return f"{_PREFIX}{digest}-"


def _choose(form: TextForm, index: int) -> tuple[str, str | None]:
    """Return the name of the choice, and what is wrong with it."""
    name, value = form.choices[index]
    return name, form.put(value)


def _text(field: OpenField, form: TextForm) -> str:
    title = f"\n\n**{escaped(form.title)}**" if form.title else ""
    if form.takes_one_choice and len(form.choices) <= _MAX_CHOICES:
        hint = ""
    elif form.choices:
        names = ", ".join(escaped(name) for name, _ in form.choices)
        hint = f"\n\nWrite {'one' if form.takes_one_choice else 'some, separated by commas,'} of: {names}"
    else:
        hint = "\n\nWrite the answer."
    return f"❓ {escaped(field.prompt)}{title}{hint}"


def _keyboard(form: TextForm, answer_id: str) -> list[list[dict[str, str]]]:
    """Return the rows of buttons: the choices, then Default or Skip, and Decline."""
    choices = form.choices if form.takes_one_choice and len(form.choices) <= _MAX_CHOICES else []
    buttons = [
        {"text": name, "callback_data": f"choose:{answer_id}:{index}"} for index, (name, _) in enumerate(choices)
    ]
    width = _SHORT_IN_ROW if all(len(name) <= _SHORT_CHARS for name, _ in choices) else 1
    rows = [buttons[start : start + width] for start in range(0, len(buttons), width)]
    last = [{"text": "🚫 Decline", "callback_data": f"decline:{answer_id}"}]
    if form.has_default or form.is_optional:
        name = "Default" if form.has_default else "Skip"
        last.insert(0, {"text": f"⏭ {name}", "callback_data": f"choose:{answer_id}:"})
    return [*rows, last]
