"""`turnwire record`, `replay` and `eval`: turns as files, run again against the code or another model."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from turnwire.cli.client import connected
from turnwire.cli.options import Data, Key, Url, fail, load_agents, load_settings, print_table
from turnwire.cli.turns import TurnId, find_turn, known_turn_id, opened_archive

if TYPE_CHECKING:
    from turnwire.core.contracts.agents import Agent
    from turnwire.recordings.recording import TurnRecording
    from turnwire.recordings.replay import ReplayResult
    from turnwire.settings import Settings
    from turnwire.testing.client import AgentClient
    from turnwire.testing.evaluation import TurnComparison

T = TypeVar("T")

AgentName = Annotated[
    str,
    typer.Option("--agent", help="The agent: [bold]module:name[/], or the name of an agent of the settings."),
]
OptionalAgent = Annotated[
    str | None,
    typer.Option("--agent", help="The agent that made the turn, to keep the text of its requests to models as well."),
]
Config = Annotated[Path | None, typer.Option(help="A file of settings.", exists=True, dir_okay=False)]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Another model, such as [bold]ollama/qwen3[/]: it is called live, and tools are not run."
    ),
]
ModelUrl = Annotated[str | None, typer.Option(help="The URL of that model's server; then the name is used as it is.")]
IgnorePrompts = Annotated[
    bool, typer.Option("--ignore-prompts", help="Let requests to models differ, such as those with the time in them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


# Recording


def record(
    data: Data,
    turn: TurnId = None,
    url: Url = None,
    key: Key = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default turn-ID.jsonl.", dir_okay=False)
    ] = None,
    agent: OptionalAgent = None,
    config: Config = None,
) -> None:
    """Write a past turn to a file, with its log and its journal, for replays and evaluations."""
    from turnwire.recordings.recording import decode_recording, encode_recording

    settings = load_settings(config, data=data)
    body = _run(_download(url, key, turn)) if url is not None else _read(settings, data, turn)
    recording = _checked(lambda: decode_recording(body))
    path = output or Path(f"turn-{recording.turn.id}.jsonl")
    if agent is not None:
        recording = _run(_with_requests(recording, agent, settings))
    try:
        path.write_bytes(encode_recording(recording))
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    calls = sum(entry.state == "finished" and entry.kind != "segment" for entry in recording.entries)
    typer.echo(f"Wrote {path}: {len(recording.events)} events, {calls} calls.", err=True)


def _read(settings: "Settings", data: Path, turn_id: str | None) -> bytes:
    from turnwire.recordings.recording import encode_recording, record_turn, recorded_history

    with opened_archive(data) as archive:
        record = find_turn(archive, turn_id)

        async def take() -> bytes:
            history = await recorded_history(archive, record, settings.history_turns, settings.history_tokens)
            return encode_recording(await record_turn(archive, record, history))

        return _run(take())


async def _download(url: str, key: str | None, turn: str | None) -> bytes:
    from turnwire.client import ServerAddress

    async with connected(ServerAddress(url, key)) as client:
        return await client.download(f"/v1/turns/{quote(await known_turn_id(client, turn), safe='')}/recording")


async def _with_requests(recording: "TurnRecording", agent: str, settings: "Settings") -> "TurnRecording":
    """Add the text of the requests by a replay: equal fingerprints prove that they are the recorded ones."""
    from turnwire.recordings.replay import replay_turn, updated_recording

    async with _opened_agents(agent, settings) as (client, name):
        replay = await replay_turn(recording, client.turnwire.agents[name])
    if replay.divergence is not None:
        fail(f"the turn cannot be recorded with {agent}, which does not do the same again: {replay.divergence}")
    return updated_recording(recording, replay)


# Replaying


def replay(
    data: Data,
    files: Annotated[list[Path], typer.Argument(help="Recordings.", exists=True, dir_okay=False, metavar="FILE")],
    agent: AgentName,
    model: Model = None,
    model_url: ModelUrl = None,
    config: Config = None,
    ignore_prompts: IgnorePrompts = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Accept changed requests: write those of the code as it is now to the files."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run recorded turns against the code as it is now, and show the first difference.

    Models and tools are answered from the recordings: nothing is called, and no key is needed. Exits with 0 if nothing
    differs, 1 if something does, 2 if a turn cannot be replayed.
    """
    settings = load_settings(config, data=data)
    recordings = {path: _load(path) for path in files}
    if model is not None:
        if update:
            fail("--update writes the requests of a replay; leave out --model", 2)
        settings.model_url = model_url or settings.model_url
        rows = _run(_evaluate(recordings, agent, settings, model, {}, run_tools=False))
        _show(rows, agent, model, as_json)
        raise typer.Exit(int(any(row.differences for row in rows)))
    _need_no_key()
    replays = _run(_replay_all(recordings, agent, settings, compare_prompts=not (ignore_prompts or update)))
    for path, result in replays.items():
        if update and result.divergence is None:
            _update(path, recordings[path], result)
    _show_replays(replays, as_json)
    raise typer.Exit(int(any(result.divergence for result in replays.values())))


async def _replay_all(
    recordings: "dict[Path, TurnRecording]", agent: str, settings: "Settings", *, compare_prompts: bool
) -> "dict[Path, ReplayResult]":
    from turnwire.recordings.replay import replay_turn

    async with _opened_agents(agent, settings) as (client, name):
        target = client.turnwire.agents[name]
        return {
            path: await replay_turn(recording, target, compare_prompts=compare_prompts)
            for path, recording in recordings.items()
        }


def _update(path: Path, recording: "TurnRecording", replay: "ReplayResult") -> None:
    from turnwire.recordings.recording import encode_recording
    from turnwire.recordings.replay import updated_recording

    path.write_bytes(encode_recording(updated_recording(recording, replay)))


def _show_replays(replays: "dict[Path, ReplayResult]", as_json: bool) -> None:
    import traceback

    from msgspec import to_builtins

    if as_json:
        rows = [
            {"recording": str(path), "answered_calls": result.answered_calls, "divergence": result.divergence}
            for path, result in replays.items()
        ]
        typer.echo(json.dumps(to_builtins(rows), indent=2))
        return
    for path, result in replays.items():
        if result.divergence is None:
            typer.echo(f"{path}: the same, with {result.answered_calls} calls answered from the recording")
            continue
        typer.secho(f"{path}, {result.divergence}", fg="red")
        if result.error is not None:
            typer.echo("".join(traceback.format_exception(result.error)), err=True)


# Evaluating


def evaluate(
    data: Data,
    folder: Annotated[Path, typer.Argument(help="A folder of recordings, or one recording.", exists=True)],
    agent: AgentName,
    model: Model = None,
    model_url: ModelUrl = None,
    config: Config = None,
    replayed: Annotated[
        bool, typer.Option("--replay", help="Call no model: replay the recordings, and report what diverges.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name=value>",
            help="An option for all turns, in place of the recorded one, such as [bold]answer=direct[/].",
        ),
    ] = None,
    run_tools: Annotated[
        bool, typer.Option("--run-tools", help="Run the tools, in place of the recorded results.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any answer or tool call differs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a folder of recordings against a model, and compare answers, tools, cost and time with the recorded ones.

    Exits with 1 if a turn ends otherwise than recorded, or a replay diverges.
    """
    settings = load_settings(config, data=data)
    paths = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder]
    if not paths:
        fail(f"there are no recordings (*.jsonl) in {folder}; make some with `turnwire record`", 2)
    recordings = {path: _load(path) for path in paths}
    if replayed:
        _need_no_key()
        rows = _run(_evaluate_replays(recordings, agent, settings))
    else:
        settings.model_url = model_url or settings.model_url
        rows = _run(_evaluate(recordings, agent, settings, model, _options(option or []), run_tools=run_tools))
    _show(rows, agent, model, as_json)
    fatal = {"outcome", "replay"} | ({"answer", "tools"} if strict else set[str]())
    raise typer.Exit(int(any(fatal & set(row.differences) for row in rows)))


async def _evaluate(
    recordings: "dict[Path, TurnRecording]",
    agent: str,
    settings: "Settings",
    model: str | None,
    options: dict[str, Any],
    *,
    run_tools: bool,
) -> "list[TurnComparison]":
    from turnwire.testing.evaluation import evaluate_turn

    async with _opened_agents(agent, settings, model) as (client, name):
        return [
            await evaluate_turn(client, str(path), recording, agent=name, options=options, run_tools=run_tools)
            for path, recording in recordings.items()
        ]


async def _evaluate_replays(
    recordings: "dict[Path, TurnRecording]", agent: str, settings: "Settings"
) -> "list[TurnComparison]":
    from turnwire.testing.evaluation import compare_replay

    replays = await _replay_all(recordings, agent, settings, compare_prompts=True)
    return [
        compare_replay(str(path), recordings[path], result, settings.model_prices) for path, result in replays.items()
    ]


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the options of `name=value`; a value that is JSON is read as JSON."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            fail(f"--option: {pair!r} is not of the form name=value", 2)
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _show(rows: "list[TurnComparison]", agent: str, model: str | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_report(rows, agent, model), indent=2))
        return
    columns = ("recording", "outcome", "answer", "tools", "tokens", "cost", "first token", "total")
    print_table(columns, [_row(row) for row in rows], "recording")
    for row in rows:
        if row.divergence:
            typer.secho(f"{row.recording}, {row.divergence}", fg="red")
    same = sum(not row.differences for row in rows)
    typer.echo(f"{same} of {len(rows)} turns have the same answer and the same tool calls.")


def _report(rows: "list[TurnComparison]", agent: str, model: str | None) -> dict[str, Any]:
    """Return the result of an evaluation for programs."""
    from msgspec import to_builtins

    from turnwire import __version__

    def count(part: str) -> int:
        return sum(part in row.differences for row in rows)

    def total(side: str, name: str) -> float | None:
        values = [value for row in rows if (value := getattr(getattr(row, side), name)) is not None]
        return sum(values) if values else None

    names = ("input_tokens", "output_tokens", "cost", "first_token_ms", "total_ms")
    return {
        "eval": 1,
        "turnwire": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "agent": agent,
        "model": model,
        "summary": {
            "turns": len(rows),
            "same": sum(not row.differences for row in rows),
            "differing": {part: count(part) for part in ("outcome", "answer", "tools", "replay")},
            "similarity": round(sum(row.similarity for row in rows) / len(rows), 3),
            "recorded": {name: total("recorded", name) for name in names},
            "now": {name: total("now", name) for name in names},
        },
        "turns": to_builtins(rows),
    }


def _row(row: "TurnComparison") -> list[str | tuple[str, str]]:
    recorded, now = row.recorded, row.now
    outcome = (f"{recorded.outcome} → {now.outcome}", "red") if "outcome" in row.differences else now.outcome
    answer = (f"{row.similarity:.0%} alike", "yellow") if "answer" in row.differences else "same"
    tools: str | tuple[str, str] = str(len(now.tools))
    if "tools" in row.differences:
        tools = (f"{_names(recorded.tools)} → {_names(now.tools)}", "yellow")
    if row.divergence is not None:
        outcome = ("diverges", "red")
    tokens = _change(_sum(recorded.input_tokens, recorded.output_tokens), _sum(now.input_tokens, now.output_tokens), "")
    return [
        Path(row.recording).name,
        outcome,
        answer,
        tools,
        tokens,
        "–" if now.cost is None else f"${now.cost:.4f}",
        _change(recorded.first_token_ms, now.first_token_ms, " ms"),
        _change(recorded.total_ms, now.total_ms, " ms"),
    ]


def _names(tools: "list[tuple[str, dict[str, Any]]]") -> str:
    return ", ".join(name for name, _ in tools) or "none"


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _change(recorded: float | None, now: float | None, unit: str) -> str:
    if now is None:
        return "–"
    if not recorded:
        return f"{now:,.0f}{unit}"
    return f"{now:,.0f}{unit} ({(now - recorded) / recorded:+.0%})"


# Agents and files


@asynccontextmanager
async def _opened_agents(
    reference: str, settings: "Settings", model: str | None = None
) -> "AsyncGenerator[tuple[AgentClient, str]]":
    """Open an agent in this process, in memory, and yield a client of it and the agent's name."""
    from turnwire.core.errors import TurnwireError
    from turnwire.testing.client import open_client

    is_imported = ":" in reference
    if model is not None and not is_imported:
        settings.model = model
    try:
        agents = load_agents([reference]) if is_imported else {}
        name = next(iter(agents), reference)
        async with open_client(agents=agents, settings=settings) as client:
            if name not in client.turnwire.agents:
                known = ", ".join(client.turnwire.agents)
                fail(f"--agent: there is no agent {name!r}; write module:name, or one of {known}", 2)
            if model is not None and is_imported:
                client.turnwire.agents[name] = _with_model(client.turnwire.agents[name], model, settings)
            yield client, name
    except (TurnwireError, ValueError) as error:
        fail(str(error), 2)


def _with_model(agent: "Agent", model: str, settings: "Settings") -> "Agent":
    from turnwire.models.address import locate_model

    with_model = getattr(agent, "with_model", None)
    if with_model is None:
        fail("--model: this agent names its model in its own code; change it there", 2)
    key = settings.model_key.get_secret_value() if settings.model_key else None
    return with_model(locate_model(model, settings.model_url, key))


def _need_no_key() -> None:
    """Set a dummy OpenAI key, so that agents can be built: a replay calls no model."""
    os.environ.setdefault("OPENAI_API_KEY", "replay")


def _load(path: Path) -> "TurnRecording":
    from turnwire.recordings.recording import decode_recording

    return _checked(lambda: decode_recording(path.read_bytes()), f"{path}: ")


def _checked(read: Any, prefix: str = "") -> Any:
    from turnwire.core.errors import TurnwireError

    try:
        return read()
    except (TurnwireError, OSError) as error:
        fail(f"{prefix}{error}", 2)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; a HostError or TurnwireError ends the command with its message."""
    from turnwire.cli.server_errors import HostError
    from turnwire.core.errors import TurnwireError

    try:
        return asyncio.run(work)
    except (HostError, TurnwireError) as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
