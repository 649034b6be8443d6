"""What Telegram tells: messages, pressed buttons, stopped drafts; and whether they are meant for the bot.

In a group the bot answers only who calls it: by its name, by a reply to it, or by a command.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.channels.telegram.addresses import Address

ALLOWED_UPDATES = ("message", "callback_query", "stopped_message_generation")
_COMMANDS = ("start", "help", "new", "stop", "pair")


class Bot(Struct, frozen=True):
    id: int
    username: str = ""


class Asked(Struct, frozen=True, kw_only=True):
    """A message from a person. `text` is without the bot's name; `command` without its slash."""

    update_id: int
    address: Address
    message_id: int
    sender_id: int
    sender: str
    text: str = ""
    command: str = ""
    is_for_bot: bool = True

    @property
    def key(self) -> str:
        """The same message has the same name, however often it comes."""
        return f"{self.address.chat_id}:{self.message_id}"


class Pressed(Struct, frozen=True, kw_only=True):
    update_id: int
    query_id: str
    address: Address
    sender_id: int
    sender: str
    action: str
    target: str


class DraftStopped(Struct, frozen=True, kw_only=True):
    update_id: int
    address: Address
    draft_id: str


class Other(Struct, frozen=True):
    update_id: int


Update = Asked | Pressed | DraftStopped | Other


# Telegram's own shapes, as much as is needed.


class _User(Struct):
    id: int
    first_name: str = ""
    username: str = ""
    is_bot: bool = False


class _Chat(Struct):
    id: int
    type: str = ""


class _Entity(Struct):
    type: str
    offset: int
    length: int
    user: _User | None = None


class _Message(Struct):
    message_id: int
    chat: _Chat
    sender: _User | None = field(default=None, name="from")
    text: str = ""
    caption: str = ""
    entities: list[_Entity] = []
    caption_entities: list[_Entity] = []
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: "_Message | None" = None

    @property
    def address(self) -> Address:
        # In groups without topics, threads of replies have ids too.
        return Address(self.chat.id, self.message_thread_id if self.is_topic_message else None)


class _Query(Struct):
    id: str
    sender: _User = field(name="from")
    message: _Message | None = None
    data: str = ""


class _Stopped(Struct):
    chat: _Chat
    # Telegram writes this number as a text.
    draft_id: str | int
    message_thread_id: int | None = None


class _Update(Struct):
    update_id: int
    message: _Message | None = None
    callback_query: _Query | None = None
    stopped_message_generation: _Stopped | None = None


def read_update(plain: dict[str, Any], bot: Bot) -> Update:
    """Whatever is not understood is `Other`; Telegram adds new kinds all the time."""
    try:
        update = msgspec.convert(plain, _Update)
    except msgspec.ValidationError:
        return Other(plain["update_id"])
    if update.message is not None and update.message.sender is not None and not update.message.sender.is_bot:
        return _asked(update.update_id, update.message, update.message.sender, bot)
    query = update.callback_query
    if query is not None and query.message is not None:
        action, _, target = query.data.partition(":")
        return Pressed(
            update_id=update.update_id,
            query_id=query.id,
            address=query.message.address,
            sender_id=query.sender.id,
            sender=query.sender.first_name,
            action=action,
            target=target,
        )
    stopped = update.stopped_message_generation
    if stopped is not None:
        address = Address(stopped.chat.id, stopped.message_thread_id)
        return DraftStopped(update_id=update.update_id, address=address, draft_id=str(stopped.draft_id))
    return Other(update.update_id)


def _asked(update_id: int, message: _Message, sender: _User, bot: Bot) -> Asked:
    text = message.text or message.caption
    text, called = _without_name(text, message.entities or message.caption_entities, bot)
    command, text, for_other = _command(text, bot)
    return Asked(
        update_id=update_id,
        address=message.address,
        message_id=message.message_id,
        sender_id=sender.id,
        sender=sender.first_name or sender.username,
        text=text,
        command=command,
        is_for_bot=not for_other and (message.chat.id > 0 or called or bool(command) or _is_reply(message, bot)),
    )


def _without_name(text: str, entities: list[_Entity], bot: Bot) -> tuple[str, bool]:
    """The text without mentions of the bot, and whether there was one."""
    called = False
    for entity in sorted(entities, key=lambda entity: -entity.offset):
        before, named, after = _cut_out(text, entity)
        by_name = entity.type == "mention" and named.casefold() == f"@{bot.username}".casefold()
        if by_name or (entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id):
            called = True
            text = f"{before.rstrip()} {after.lstrip()}"
    return text.strip(), called


def _cut_out(text: str, entity: _Entity) -> tuple[str, str, str]:
    """What stands before an entity, in it and after it: it is counted in UTF-16."""
    units = text.encode("utf-16-le", "surrogatepass")
    start, end = entity.offset * 2, (entity.offset + entity.length) * 2
    before, named, after = (
        part.decode("utf-16-le", "replace") for part in (units[:start], units[start:end], units[end:])
    )
    return before, named, after


def _command(text: str, bot: Bot) -> tuple[str, str, bool]:
    """The command, what follows it, and whether it is another bot's. An unknown command is text like any other."""
    if not text.startswith("/"):
        return "", text, False
    word, _, rest = text.partition(" ")
    name, _, addressee = word[1:].partition("@")
    if addressee and addressee.casefold() != bot.username.casefold():
        return "", text, True
    if name.casefold() in _COMMANDS:
        return name.casefold(), rest.strip(), False
    return "", text, False


def _is_reply(message: _Message, bot: Bot) -> bool:
    replied = message.reply_to_message
    if replied is None or replied.sender is None or replied.sender.id != bot.id:
        return False
    # In a topic that the bot has opened, every message seems to reply to the opening.
    return not (message.is_topic_message and replied.message_id == message.message_thread_id)
