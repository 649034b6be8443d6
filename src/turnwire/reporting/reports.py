"""All that tells the outside of turns that have ended, with one life from `open` to `close`."""

from typing import TYPE_CHECKING

from turnwire.core.runner import TurnRunner
from turnwire.reporting.endings import Endings, Tell

if TYPE_CHECKING:
    from turnwire.reporting.tracing import Tracing
    from turnwire.reporting.webhooks import Webhooks


class Reports:
    def __init__(
        self, runner: TurnRunner, tells: list[Tell], webhooks: "Webhooks | None", tracing: "Tracing | None"
    ) -> None:
        self._runner = runner
        self._tells = tells if tracing is None else [*tells, tracing.tell]
        self._webhooks = webhooks
        self.tracing = tracing
        self._endings: Endings | None = None

    def open(self) -> None:
        """Before the runner, which may find turns to end as soon as it is opened."""
        self._endings = Endings(self._tells)
        self._endings.open()
        self._runner.on_ended = [self._endings.note]
        if self._webhooks is not None:
            self._webhooks.open()
            self._runner.on_ended.append(self._webhooks.wake)

    async def close(self) -> None:
        for reporter in (self._endings, self._webhooks, self.tracing):
            if reporter is not None:
                await reporter.close()
