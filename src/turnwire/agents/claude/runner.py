"""The process of Claude Code that runs a turn, in a folder of its own."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, Message, project_key_for_directory, query
from msgspec import Struct

from turnwire.agents.claude.events import ClaudeRun
from turnwire.agents.claude.messages import Block, transcript
from turnwire.agents.sdk_internals import wrap
from turnwire.models.errors import unreachable

logger = logging.getLogger("turnwire.agents")

# The server's own network and disk are left alone; an answer is streamed or fails, so that no text comes twice.
_ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_RETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_BUG_COMMAND": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
_TIMEOUT = "API_TIMEOUT_MS"
_SDK = "claude-agent-sdk"
_TRANSPORT = "claude_agent_sdk._internal.transport.subprocess_cli"
MAX_UNREAD = 64


class RunStart(Struct, frozen=True, kw_only=True):
    """The input of a new process: the conversation, then a new message, a deferred call, or neither to go on."""

    messages: list[dict[str, Any]]
    prompt: list[Block] | None = None
    deferred: Block | None = None


async def read_messages(options: ClaudeAgentOptions, start: RunStart, run: ClaudeRun) -> None:
    """Run a process to its end, and let `run` read its messages. The process does not outlive this call."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="turnwire-claude-"))
    ended = asyncio.Event()
    transcript_file: Path | None = None
    try:
        prepared = _options(options, run, folder)
        if start.messages:
            session = uuid4()
            transcript_file = _transcript_file(prepared, session)
            await asyncio.to_thread(_write_transcript, transcript_file, prepared, session, start)
            prepared = replace(prepared, resume=str(session))
        await _read(ClaudeProcess(prepared, _prompt(start, ended)), run, prepared.env.get(_TIMEOUT))
    finally:
        ended.set()
        await asyncio.to_thread(_remove, folder, transcript_file)


def check_transport() -> None:
    """Raise RuntimeError if the SDK's transport has no process that can be killed."""
    wrap(_SDK, _transport("", ClaudeAgentOptions()), "_process")


def _transport(prompt: Any, options: ClaudeAgentOptions) -> Any:
    return wrap(_SDK, _TRANSPORT, "SubprocessCLITransport", "prompt, options")(prompt=prompt, options=options)


class ClaudeProcess:
    """A process of Claude Code, and its messages as the SDK reads them."""

    def __init__(self, options: ClaudeAgentOptions, prompt: AsyncIterator[dict[str, Any]]) -> None:
        # The SDK sets this option itself, but not for a transport that is passed to it.
        transported = replace(options, permission_prompt_tool_name="stdio")
        self._transport = _transport(prompt, transported)
        self._messages = query(prompt=prompt, options=options, transport=self._transport)
        self._unread: asyncio.Queue[Message | None] = asyncio.Queue(MAX_UNREAD)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                await self._unread.put(message)
        except Exception:
            await self._unread.put(None)
            raise
        await self._unread.put(None)

    async def next_message(self) -> Message | None:
        """Return the next message, or None at the end. Raises what the SDK raises."""
        message = await self._unread.get()
        if message is None:
            await self._reading
        return message

    async def close(self) -> None:
        """Kill the process: the SDK would wait for seconds until it ends by itself."""
        process = self._transport._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if not self._reading.cancelled() and (error := self._reading.exception()) is not None:
            logger.debug("Claude Code was stopped: %r", error)


async def _read(process: ClaudeProcess, run: ClaudeRun, timeout: str | None) -> None:
    """Read messages to the result. Raise ModelError if a model call is silent for `timeout` milliseconds."""
    seconds = int(timeout) / 1000 if timeout else None
    try:
        while not run.is_done:
            async with asyncio.timeout(seconds if run.is_replying else None):
                message = await process.next_message()
            if message is None:
                break
            await run.read(message)
            await run.queue.wait_for_room()
        run.finish()
    except TimeoutError:
        raise unreachable() from None
    finally:
        await process.close()


def _options(options: ClaudeAgentOptions, run: ClaudeRun, folder: Path) -> ClaudeAgentOptions:
    work, temporary = folder / "work", folder / "tmp"
    for each in (work, temporary, folder / "config"):
        each.mkdir()
    defaults = {"CLAUDE_CONFIG_DIR": str(folder / "config"), "CLAUDE_CODE_TMPDIR": str(temporary)}
    resumption = {"CLAUDE_CODE_RESUME_INTERRUPTED_TURN": "1"}
    hooks = {**(options.hooks or {})}
    hooks["PreToolUse"] = [*(hooks.get("PreToolUse") or ()), HookMatcher(hooks=[run.before_tool])]
    return replace(
        options,
        cwd=options.cwd or work,
        env={**_ENVIRONMENT, **defaults, **resumption, **options.env},
        hooks=hooks,
        can_use_tool=options.can_use_tool or run.permit_tool,
        include_partial_messages=True,
        forward_subagent_text=True,
        # Otherwise a user's text could be a command of Claude Code, or name a file of the server.
        verbatim_prompts=True,
        setting_sources=options.setting_sources if options.setting_sources is not None else [],
        strict_mcp_config=options.strict_mcp_config or options.setting_sources is None,
        stderr=options.stderr or _log_line,
    )


def _log_line(line: str) -> None:
    logger.debug("Claude Code: %s", line)


def _transcript_file(options: ClaudeAgentOptions, session: UUID) -> Path:
    project = project_key_for_directory(str(options.cwd))
    return Path(options.env["CLAUDE_CONFIG_DIR"], "projects", project, f"{session}.jsonl")


def _write_transcript(file: Path, options: ClaudeAgentOptions, session: UUID, start: RunStart) -> None:
    lines = transcript(session, str(options.cwd), start.messages, start.deferred)
    # The options may name a folder for all turns.
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def _remove(folder: Path, transcript_file: Path | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if transcript_file is not None:
        transcript_file.unlink(missing_ok=True)


async def _prompt(start: RunStart, ended: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
    """Send the new message, and keep the input open while the process runs."""
    if start.prompt is not None:
        yield {"type": "user", "message": {"role": "user", "content": start.prompt}, "parent_tool_use_id": None}
    await ended.wait()
