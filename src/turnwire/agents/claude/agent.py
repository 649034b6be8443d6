"""The agent: one turn is one process of Claude Code, or several with approvals between them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from claude_agent_sdk import ClaudeAgentOptions

from turnwire.agents.claude.approvals import PermissionRules
from turnwire.agents.claude.continuation import continue_turn
from turnwire.agents.claude.errors import explain_failure
from turnwire.agents.claude.events import ClaudeRun
from turnwire.agents.claude.runner import read_messages
from turnwire.agents.claude.tools import InProcessTools
from turnwire.agents.event_queue import EventQueue, explaining, run_events
from turnwire.core.contracts.agents import OnCrash
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES
from turnwire.core.log.turns import Turn


class ClaudeAgent:
    """A Turnwire agent that runs Claude Code in each turn, with the SDK's options.

    Settings, memory and servers of the user who runs the server are not read unless the options say so with
    `setting_sources`, and the process has an empty folder as its working directory unless they have a `cwd`. Telemetry
    and updates are off.

    A turn whose worker was lost continues after its last finished tool. `idempotent` names the tools that may run
    again if they break off; `editable` those whose arguments a person may change when approving a call.
    `takes_attachments` are the media types of files that the model can read.
    """

    on_crash: OnCrash = "resume"
    takes_model_options = False

    def __init__(
        self,
        options: ClaudeAgentOptions,
        *,
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
    ) -> None:
        self.takes_attachments = takes_attachments
        self._options = options
        self._tools = InProcessTools(options)
        self._rules = PermissionRules(self._tools, editable)
        self._idempotent = frozenset(idempotent)

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of `claude_tools`; the others are known when the agent runs."""
        return self._tools.names

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(turn, partial(self._run, turn), needs_journal=False)

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        run = ClaudeRun(queue, self._tools, self._rules)
        try:
            with explaining(explain_failure):
                start = await continue_turn(turn, run)
                reading = asyncio.create_task(read_messages(self._options, start, run))
                try:
                    await asyncio.wait({reading, run.suspended}, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        await reading
                finally:
                    reading.cancel()
                    await asyncio.wait({reading})
                if run.suspended.done():
                    raise run.suspended.result()
        finally:
            run.close()
