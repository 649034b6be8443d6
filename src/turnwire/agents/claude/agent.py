"""The agent: one turn is one process of Claude Code, and another one after each wait or crash."""

from collections.abc import Collection, Sequence

from claude_agent_sdk import ClaudeAgentOptions

from turnwire.agents.claude.continuation import start_turn
from turnwire.agents.claude.errors import explain_failure
from turnwire.agents.claude.events import ClaudeRun, report_calls
from turnwire.agents.claude.runner import check_transport, read_messages
from turnwire.agents.claude.tools import InProcessTools
from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.sdk_agent import SdkAgent
from turnwire.core.log.files import MODEL_FILE_TYPES
from turnwire.core.log.turns import Turn


class ClaudeAgent(SdkAgent):
    """A Turnwire agent that runs Claude Code in each turn, with the SDK's options.

    Settings, memory and servers of the user who runs the server are not read unless the options say so with
    `setting_sources`, and the process has an empty folder as its working directory unless they have a `cwd`. Telemetry
    and updates are off. `SdkAgent` explains the other options.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions,
        *,
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
    ) -> None:
        super().__init__(
            idempotent=idempotent, editable=editable, takes_attachments=takes_attachments, takes_model_options=False
        )
        check_transport()
        self._options = options
        self._tools = InProcessTools(options)
        for server in self._tools.servers:
            report_calls(server)

    @property
    def takes_client_tools(self) -> bool:
        """Whether a turn may bring tools that the client runs: Claude Code is not offered any."""
        return False

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of `claude_tools`; the others are known when the agent runs."""
        return self._tools.names

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        run = ClaudeRun(queue, self._tools)
        self._prepare(run, turn)
        try:
            with explaining(explain_failure), run.entered():
                start = await start_turn(turn, run)
                if start is not None:
                    await read_messages(self._options, start, run)
        finally:
            run.close()
