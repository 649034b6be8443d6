"""The rates that Telegram allows, as the simulator enforces them; the channel has its own budget, which they check.

A chat that gets too much is closed for a while, and every call that is made meanwhile makes the while longer.
"""

from collections import deque

from turnwire.channels.telegram.client import Clock

MESSAGES = {"sendMessage", "editMessageText", "editMessageReplyMarkup", "deleteMessage", "sendChatAction"}
TYPING = {"sendChatAction", "sendMessageDraft"}
# About one a second, "short bursts are tolerated": one more at once than the channel allows itself.
PRIVATE_AT_ONCE, PRIVATE_A_SECOND = 4, 1.0
GROUP = ((20, 60.0),)
EVERYWHERE = ((30, 1.0),)
DRAFTS = ((20, 5.0), (40, 30.0))
FIRST_PENALTY = 3.0


class Counter:
    """At most so many in any stretch of so many seconds."""

    def __init__(self, limits: tuple[tuple[int, float], ...]) -> None:
        self._limits = limits
        self._calls: deque[float] = deque()

    def count(self, now: float) -> bool:
        """Whether one more is allowed, which is then counted."""
        longest = max(seconds for _, seconds in self._limits)
        while self._calls and self._calls[0] <= now - longest:
            self._calls.popleft()
        for limit, seconds in self._limits:
            if sum(call > now - seconds for call in self._calls) >= limit:
                return False
        self._calls.append(now)
        return True


class Leak:
    """A cup that drains at a steady rate; what would make it run over is too much."""

    def __init__(self, most: int, rate: float) -> None:
        self._most, self._rate = most, rate
        self._level, self._at = 0.0, 0.0

    def count(self, now: float) -> bool:
        self._level = max(0.0, self._level - (now - self._at) * self._rate)
        self._at = now
        if self._level + 1 > self._most:
            return False
        self._level += 1
        return True


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._everywhere = Counter(EVERYWHERE)
        self._chats: dict[int, Counter | Leak] = {}
        self._drafts: dict[int, Counter] = {}
        self._closed: dict[int, float] = {}
        self._penalty: dict[int, float] = {}

    def close(self, chat_id: int, seconds: float) -> None:
        self._closed[chat_id] = self._clock.now() + seconds
        self._penalty[chat_id] = FIRST_PENALTY / 2

    def refuse(self, method: str, chat_id: int) -> float | None:
        """Seconds to wait, if the call is too many."""
        if method not in MESSAGES | TYPING:
            return None
        now = self._clock.now()
        if now < self._closed.get(chat_id, 0.0):
            self._penalty[chat_id] *= 2
            self._closed[chat_id] += self._penalty[chat_id]
            return self._closed[chat_id] - now
        allowed = self._everywhere.count(now)
        if method in TYPING:
            allowed &= self._drafts.setdefault(chat_id, Counter(DRAFTS)).count(now)
        if method in MESSAGES:
            fresh = Leak(PRIVATE_AT_ONCE, PRIVATE_A_SECOND) if chat_id > 0 else Counter(GROUP)
            allowed &= self._chats.setdefault(chat_id, fresh).count(now)
        if allowed:
            return None
        self.close(chat_id, FIRST_PENALTY)
        return FIRST_PENALTY
