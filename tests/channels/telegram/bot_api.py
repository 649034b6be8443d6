"""Telegram's Bot API as a server on this machine, with the rules that hurt.

Over real HTTP: rates per chat and overall with penalties that grow, 4096 UTF-16 units, entities that must fit, "message
is not modified", one poller, a webhook with its secret, drafts that expire, answers that are lost on their way back. It
records every call, and can say what each person sees now. It shares its clock with the channel, so that time can be
simulated for both.
"""

import asyncio
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from tests.channels.telegram.rates import Rates
from turnwire.channels.telegram.client import Clock

TOKEN = "4242:simulated-token_XYZ"
BOT = {"id": 4242, "is_bot": True, "first_name": "Turn", "username": "TurnBot"}
# Of simulated time, which passes at once; a whole flood wait and more.
PATIENCE = 3600.0
DRAFT_SECONDS = 30.0

Fault = Literal["cut", "lost", "hang", "bad gateway", "unavailable"]
"""`cut`: done, but the answer is lost. `lost`: not done. `hang`: done, and never answered. The others: HTTP errors."""


class Refused(Exception):
    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters


@dataclass
class Call:
    method: str
    params: dict[str, Any]
    at: float
    code: int = 0

    @property
    def text(self) -> str:
        return self.params.get("text", "")


@dataclass
class Message:
    message_id: int
    text: str
    by_bot: bool
    thread_id: int | None = None
    entities: list[dict[str, Any]] = field(default_factory=list)
    markup: list[list[dict[str, str]]] = field(default_factory=list)
    reply_to: int | None = None

    @property
    def buttons(self) -> list[str]:
        return [button["text"] for row in self.markup for button in row]

    def styled(self, kind: str) -> list[str]:
        """The stretches of the text that look like this."""
        return [
            utf16(self.text, entity["offset"], entity["length"]) for entity in self.entities if entity["type"] == kind
        ]


@dataclass
class Draft:
    draft_id: int
    text: str
    at: float
    thread_id: int | None
    can_stop: bool


def utf16(text: str, offset: int, length: int) -> str:
    return text.encode("utf-16-le")[offset * 2 : (offset + length) * 2].decode("utf-16-le")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class BotApi:
    def __init__(self, clock: Clock, patience: float = PATIENCE) -> None:
        self.files: dict[str, bytes] = {}
        """The files that people have sent, by their ids."""
        self.clock = clock
        self.patience = patience
        self.rates = Rates(clock)
        self.calls: list[Call] = []
        self.toasts: list[str | None] = []
        self.flashes: list[str] = []
        """Messages that came while a draft was shown which does not begin like them: people see both."""
        self.url = ""
        self.blocked: set[int] = set()
        self.refuse_entities = False
        self.refuse_drafts = False
        self.webhook: tuple[str, str | None] | None = None
        self._messages: dict[int, dict[int, Message]] = defaultdict(dict)
        self._drafts: dict[int, Draft] = {}
        self._faults: dict[str, list[tuple[int, Fault]]] = defaultdict(list)
        self.threads: dict[int, set[int]] = defaultdict(set)
        self._counters: dict[int, itertools.count[int]] = defaultdict(lambda: itertools.count(101))
        self._update_ids = itertools.count(9001)
        self.updates: list[dict[str, Any]] = []
        self.polls = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._posting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "BotApi":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        ending = [*self._connections, *([self._posting] if self._posting else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # What tests see

    def shown(self, chat_id: int, thread_id: int | None = None) -> list[Message]:
        """The bot's messages that are in this chat now."""
        found = self._messages[chat_id].values()
        return [message for message in found if message.by_bot and thread_id in (None, message.thread_id)]

    def texts(self, chat_id: int, thread_id: int | None = None) -> list[str]:
        return [message.text for message in self.shown(chat_id, thread_id)]

    def draft(self, chat_id: int) -> Draft | None:
        draft = self._drafts.get(chat_id)
        return draft if draft is not None and self.clock.now() - draft.at < DRAFT_SECONDS else None

    def made(self, method: str, chat_id: int | None = None) -> list[Call]:
        return [call for call in self.calls if call.method == method and chat_id in (None, call.params.get("chat_id"))]

    @property
    def too_many(self) -> list[Call]:
        return [call for call in self.calls if call.code == 429]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(self.patience):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # What tests do

    def plan(self, method: str, *faults: Fault, after: int = 0) -> None:
        """The next calls of the method, but for so many, go wrong."""
        for fault in faults:
            self._faults[method].append((after, fault))

    def flood(self, chat_id: int, seconds: float) -> None:
        self.rates.close(chat_id, seconds)

    def open_topic(self, chat_id: int, thread_id: int) -> None:
        self.threads[chat_id].add(thread_id)

    def delete(self, chat_id: int, message_id: int) -> None:
        del self._messages[chat_id][message_id]

    def says(
        self,
        sender_id: int,
        text: str,
        *,
        chat_id: int | None = None,
        thread_id: int | None = None,
        reply_to: int | None = None,
        name: str = "Ada",
        photo: bytes | None = None,
        document: tuple[str, str, bytes] | None = None,
    ) -> int:
        """Somebody writes something; returns the id of the message. A document is a name, a type and its bytes."""
        chat_id = chat_id if chat_id is not None else sender_id
        message_id = self._next_id(chat_id)
        self._messages[chat_id][message_id] = Message(message_id, text, by_bot=False, thread_id=thread_id)
        message: dict[str, Any] = {
            "message_id": message_id,
            "date": 1,
            "chat": {"id": chat_id, "type": "private" if chat_id > 0 else "supergroup"},
            "from": {"id": sender_id, "is_bot": False, "first_name": name},
            "text": text,
            "entities": _found_entities(text),
        }
        if photo is not None or document is not None:
            message |= {"caption": message.pop("text"), "caption_entities": message.pop("entities")}
        if photo is not None:
            self.files |= {"small": b"small", "large": photo}
            message["photo"] = [{"file_id": "small", "width": 90}, {"file_id": "large", "width": 1280}]
        if document is not None:
            self.files["document"] = document[2]
            message["document"] = {"file_id": "document", "file_name": document[0], "mime_type": document[1]}
        if thread_id is not None:
            self.open_topic(chat_id, thread_id)
            message |= {"message_thread_id": thread_id, "is_topic_message": True}
        if reply_to is not None:
            replied = self._messages[chat_id][reply_to]
            author = BOT if replied.by_bot else {"id": 1, "is_bot": False, "first_name": "Somebody"}
            message["reply_to_message"] = {"message_id": reply_to, "date": 1, "chat": message["chat"], "from": author}
        self.tell({"message": message})
        return message_id

    def presses(self, sender_id: int, chat_id: int, button: str, name: str = "Ada") -> None:
        """Somebody presses the newest button of this name."""
        for message in reversed(self.shown(chat_id)):
            for pressed in (key for row in message.markup for key in row if key["text"] == button):
                where: dict[str, Any] = {"message_id": message.message_id, "date": 1, "chat": {"id": chat_id}}
                if message.thread_id is not None:
                    where |= {"message_thread_id": message.thread_id, "is_topic_message": True}
                query = {
                    "id": f"query-{next(self._update_ids)}",
                    "from": {"id": sender_id, "is_bot": False, "first_name": name},
                    "message": where,
                    "data": pressed["callback_data"],
                }
                return self.tell({"callback_query": query})
        raise AssertionError(f"there is no button {button!r}")

    def stops_draft(self, chat_id: int) -> None:
        draft = self.draft(chat_id)
        assert draft is not None
        assert draft.can_stop
        # Telegram writes this number as a text.
        self.tell({"stopped_message_generation": {"chat": {"id": chat_id}, "draft_id": str(draft.draft_id)}})

    def tell(self, update: dict[str, Any]) -> None:
        self.updates.append({"update_id": next(self._update_ids), **update})
        self._changed.set()

    def again(self, update: dict[str, Any]) -> None:
        """Telegram tells something a second time."""
        self.updates.append(update)
        self._changed.set()

    def _next_id(self, chat_id: int) -> int:
        # Supergroups count for themselves, all other chats of a bot together.
        return next(self._counters[chat_id if chat_id < -1_000_000_000_000 else 0])

    # HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if path.startswith(f"/file/bot{TOKEN}/"):
            return await self._write(writer, 200, self.files[path.rpartition("/")[2]])
        token, _, method = path.removeprefix("/bot").partition("/")
        call = Call(method, json.loads(body) if body else {}, self.clock.now())
        fault = self._fault(method)
        if fault == "lost":
            writer.transport.abort()
            return False
        if fault in ("bad gateway", "unavailable"):
            call.code = 502 if fault == "bad gateway" else 503
            self._record(call)
            return await self._write(writer, call.code, b"<html>the server is not well</html>")
        code, answer = await self._answer(token, call)
        call.code = code
        self._record(call)
        if fault == "cut":
            writer.transport.abort()
            return False
        if fault == "hang":
            await reader.read()
            return False
        return await self._write(writer, code, json.dumps(answer).encode())

    def _fault(self, method: str) -> Fault | None:
        planned = self._faults[method]
        if not planned:
            return None
        after, fault = planned[0]
        if after:
            planned[0] = (after - 1, fault)
            return None
        planned.pop(0)
        return fault

    def _record(self, call: Call) -> None:
        self.calls.append(call)
        self._changed.set()

    async def _write(self, writer: asyncio.StreamWriter, code: int, body: bytes) -> bool:
        head = f"HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return True

    async def _answer(self, token: str, call: Call) -> tuple[int, dict[str, Any]]:
        try:
            if token != TOKEN:
                raise Refused(401, "Unauthorized")
            if self.refuse_entities and call.params.get("entities"):
                raise Refused(400, "Bad Request: can't parse entities: today nothing is right")
            seconds = self.rates.refuse(call.method, call.params.get("chat_id", 0))
            if seconds is not None:
                waited = max(1, math.ceil(seconds))
                raise Refused(429, f"Too Many Requests: retry after {waited}", retry_after=waited)
            method = getattr(self, f"_do_{call.method}", None)
            if method is None:
                raise Refused(404, "Not Found")
            result = method(call.params)
            return 200, {"ok": True, "result": await result if asyncio.iscoroutine(result) else result}
        except Refused as refusal:
            body = {"ok": False, "error_code": refusal.code, "description": refusal.description}
            return refusal.code, {**body, **({"parameters": refusal.parameters} if refusal.parameters else {})}

    # Methods

    def _do_getFile(self, params: dict[str, Any]) -> Any:
        if params["file_id"] not in self.files:
            raise Refused(400, "Bad Request: file is too big")
        return {"file_id": params["file_id"], "file_path": f"files/{params['file_id']}"}

    def _do_getMe(self, params: dict[str, Any]) -> Any:
        return BOT

    def _do_setMyCommands(self, params: dict[str, Any]) -> Any:
        return True

    def _do_answerCallbackQuery(self, params: dict[str, Any]) -> Any:
        self.toasts.append(params.get("text"))
        return True

    def _do_sendChatAction(self, params: dict[str, Any]) -> Any:
        self._check_chat(params)
        return True

    def _do_sendMessage(self, params: dict[str, Any]) -> Any:
        chat_id = self._check_chat(params)
        text = _check_text(params)
        draft = self.draft(chat_id)
        if draft is not None and draft.thread_id == params.get("message_thread_id"):
            if not draft.text or draft.text[0] != text[0]:
                self.flashes.append(text)
            del self._drafts[chat_id]
        message_id = self._next_id(chat_id)
        reply = params.get("reply_parameters", {}).get("message_id")
        self._messages[chat_id][message_id] = Message(
            message_id,
            text,
            True,
            params.get("message_thread_id"),
            params.get("entities", []),
            params.get("reply_markup", {}).get("inline_keyboard", []),
            reply,
        )
        return {"message_id": message_id, "date": 1, "chat": {"id": chat_id}, "text": text}

    def _do_editMessageText(self, params: dict[str, Any]) -> Any:
        message = self._own(params)
        text = _check_text(params)
        entities = params.get("entities", [])
        markup = params.get("reply_markup", {}).get("inline_keyboard", [])
        if (text, entities, markup) == (message.text, message.entities, message.markup):
            raise Refused(400, NOT_MODIFIED)
        message.text, message.entities, message.markup = text, entities, markup
        return True

    def _do_editMessageReplyMarkup(self, params: dict[str, Any]) -> Any:
        message = self._own(params)
        markup = params.get("reply_markup", {}).get("inline_keyboard", [])
        if markup == message.markup:
            raise Refused(400, NOT_MODIFIED)
        message.markup = markup
        return True

    def _do_deleteMessage(self, params: dict[str, Any]) -> Any:
        chat_id = self._check_chat(params)
        if self._messages[chat_id].pop(params["message_id"], None) is None:
            raise Refused(400, "Bad Request: message to delete not found")
        return True

    def _do_sendMessageDraft(self, params: dict[str, Any]) -> Any:
        chat_id = self._check_chat(params)
        if chat_id < 0 or self.refuse_drafts:
            raise Refused(400, "Bad Request: TEXTDRAFT_PEER_INVALID")
        if not params.get("draft_id"):
            raise Refused(400, "Bad Request: draft_id must be non-zero")
        text = _check_text(params) if params.get("text") else ""
        thread_id = params.get("message_thread_id")
        can_stop = params.get("can_stop", False)
        self._drafts[chat_id] = Draft(params["draft_id"], text, self.clock.now(), thread_id, can_stop)
        return True

    async def _do_getUpdates(self, params: dict[str, Any]) -> Any:
        if self.webhook is not None:
            raise Refused(409, "Conflict: can't use getUpdates method while webhook is active")
        self.polls += 1
        poll = self.polls
        self._changed.set()
        if (offset := params.get("offset")) is not None:
            self.updates = [update for update in self.updates if update["update_id"] >= offset]
        deadline = self.clock.now() + params.get("timeout", 0)
        while not self._wanted(params) and self.clock.now() < deadline and poll == self.polls:
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - self.clock.now()):
                    await self._changed.wait()
            except TimeoutError:
                break
        if poll != self.polls:
            raise Refused(409, "Conflict: terminated by other getUpdates request")
        return self._wanted(params)

    def _wanted(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        allowed = params.get("allowed_updates") or []
        return [update for update in self.updates if any(kind in update for kind in allowed)]

    def _do_deleteWebhook(self, params: dict[str, Any]) -> Any:
        self.webhook = None
        return True

    def _do_setWebhook(self, params: dict[str, Any]) -> Any:
        self.webhook = (params["url"], params.get("secret_token"))
        self._posting = asyncio.create_task(self._post_updates())
        return True

    async def _post_updates(self) -> None:
        """As Telegram does: one after the other, again until it is taken."""
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            while self.webhook is not None:
                while not self.updates:
                    self._changed.clear()
                    await self._changed.wait()
                url, secret = self.webhook
                headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
                try:
                    answer = await http.post(url, json=self.updates[0], headers=headers)
                except httpx.HTTPError:
                    answer = None
                if answer is not None and answer.status_code == 200:
                    self.updates.pop(0)
                else:
                    await self.clock.sleep(1)

    # Checks

    def _check_chat(self, params: dict[str, Any]) -> int:
        chat_id = params["chat_id"]
        if chat_id in self.blocked:
            raise Refused(403, "Forbidden: bot was blocked by the user")
        if chat_id not in self._messages:
            raise Refused(400, "Bad Request: chat not found")
        thread_id = params.get("message_thread_id")
        if thread_id is not None and thread_id not in self.threads[chat_id]:
            raise Refused(400, "Bad Request: message thread not found")
        return chat_id

    def _own(self, params: dict[str, Any]) -> Message:
        message = self._messages[self._check_chat(params)].get(params["message_id"])
        if message is None:
            raise Refused(400, "Bad Request: message to edit not found")
        if not message.by_bot:
            raise Refused(400, "Bad Request: message can't be edited")
        return message


NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)


def _check_text(params: dict[str, Any]) -> str:
    text: str = params.get("text", "")
    if not text.strip():
        raise Refused(400, "Bad Request: message text is empty")
    if units(text) > 4096:
        raise Refused(400, "Bad Request: message is too long")
    assert "parse_mode" not in params
    check_entities(text, params.get("entities", []))
    return text.rstrip()


def check_entities(text: str, entities: list[dict[str, Any]]) -> None:
    """Within the text, not through a surrogate pair, and only nested as Telegram allows."""
    length = units(text)
    encoded = text.encode("utf-16-le")
    for entity in entities:
        start, end = entity["offset"], entity["offset"] + entity["length"]
        if not 0 <= start < end <= length:
            raise Refused(400, "Bad Request: ENTITY_BOUNDS_INVALID")
        for edge in (start, end):
            unit = int.from_bytes(encoded[edge * 2 : edge * 2 + 2], "little") if edge < length else 0
            if 0xDC00 <= unit < 0xE000:
                raise Refused(400, "Bad Request: can't parse entities: an entity ends in the middle of a UTF-16 symbol")
        if entity["type"] == "text_link" and not entity.get("url", "").startswith(("http://", "https://", "tg://")):
            raise Refused(400, "Bad Request: can't parse entities: wrong URL")
    for entity, other in itertools.combinations(entities, 2):
        first, last = sorted((entity, other), key=_outermost_first)
        if last["offset"] >= first["offset"] + first["length"]:
            continue
        kinds = (first["type"], last["type"])
        nested = last["offset"] + last["length"] <= first["offset"] + first["length"]
        bare = {"code", "pre"} & set(kinds)
        if not nested or kinds[0] == kinds[1] or (bare and kinds[0] != "blockquote"):
            raise Refused(400, f"Bad Request: can't parse entities: {kinds[1]} inside {kinds[0]}")


def _outermost_first(entity: dict[str, Any]) -> tuple[int, int, bool]:
    # Of two that cover the same stretch, Telegram takes the quotation for the outer one, whichever came first.
    return entity["offset"], -entity["length"], entity["type"] != "blockquote"


def _found_entities(text: str) -> list[dict[str, Any]]:
    """Return the entities that a client marks when somebody types: names and commands."""
    found: list[dict[str, Any]] = []
    place = 0
    for word in text.split(" "):
        if word.startswith(("@", "/")) and len(word) > 1:
            kind = "mention" if word.startswith("@") else "bot_command"
            name = word.rstrip(",.:;!?")
            found.append({"type": kind, "offset": units(text[:place]), "length": units(name)})
        place += len(word) + 1
    return found
