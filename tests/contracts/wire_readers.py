"""What a client makes of each wire's bytes, by the protocol alone, and what each wire cannot say."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.contracts.openai_readers import read_openai_chat, read_openai_responses
from tests.contracts.told import Call, Told, fold, give_up, whole_frames
from tests.wires.ag_ui_rules import Rules, frames_of
from tests.wires.sse import parse
from tests.wires.ui_message import UIMessage

# The log itself


def read_sse_chat(bodies: Sequence[bytes]) -> Told:
    return fold(json.loads(frame.data) for frame in parse(whole_frames(bodies[0])))


def read_websocket(bodies: Sequence[bytes]) -> Told:
    return fold(json.loads(line)["event"] for line in bodies[0].split(b"\n")[:-1])


# Text


def read_three_phase_text(bodies: Sequence[bytes]) -> Told:
    lines, _, rest = bodies[0].partition(b"\x1d")
    answer, _, trailer = rest.partition(b"\x1e")
    events = [json.loads(line) for line in lines.split(b"\n")[:-1] if line]
    text = answer.decode(errors="ignore")  # A cut may go through a character.
    try:
        end = json.loads(trailer)
    except json.JSONDecodeError:
        return replace(fold(events), text=text, outcome="running")
    if "error" in end:
        text = text.removesuffix(end["error"]["message"])[:-2]
    told = fold([*events, *end["events"]])
    give_up(told)
    cited = [(span["index"], span["document_id"], None) for span in end["spans"]]
    return replace(told, text=text, citations=cited, outcome=end["outcome"])


# AI SDK


def read_ai_sdk(bodies: Sequence[bytes]) -> Told:
    message = UIMessage(6).read(whole_frames(bodies[0]))
    waits = message.is_done and message.finish_reason == "tool-calls"
    outcome = "waiting" if waits else message.metadata["outcome"] if message.is_done else "running"
    if message.is_done:
        # What every client sees must agree with what only ours look at.
        assert message.aborted is (outcome == "cancelled")
        assert (message.error is not None) is (outcome in ("failed", "interrupted"))
        assert (message.finish_reason == "stop") is (outcome == "completed")
    told = Told(message.text, "".join(part["text"] for part in message.of("reasoning")), outcome=outcome)
    for part in message.of("tool"):
        call = Call(part["tool"], part.get("input"))
        match part["state"]:
            case "output-available" if not part.get("preliminary"):
                call.end(True, part["output"])
            case "output-error" if part["error"] != "The turn ended before this tool did.":
                call.end(False, "")
            case "output-denied":
                call.end(False, "")
            case "approval-requested" if waits:
                call.state = "waiting"
            case _:
                pass
        told.calls.append(call)
    cited = [part["data"] for part in message.of("data-citation")]
    told.citations = [(one["index"], one["document_id"], one.get("url")) for one in cited]
    return told


# AG-UI


def read_ag_ui(bodies: Sequence[bytes]) -> Told:
    told, calls, rules = Told(), dict[str, Call](), Rules()
    for _, event in frames_of(whole_frames(bodies[0])):
        rules.take(event)
        own = "subagentRunId" not in event
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT" if own:
                told.text += event["delta"]
            case "REASONING_MESSAGE_CONTENT" if own:
                told.reasoning += event["delta"]
            case "TOOL_CALL_START":
                calls[event["toolCallId"]] = Call(event["toolCallName"], "")
                told.calls.append(calls[event["toolCallId"]])
            case "TOOL_CALL_ARGS":
                calls[event["toolCallId"]].args += event["delta"]
            case "TOOL_CALL_END":
                calls[event["toolCallId"]].args = json.loads(calls[event["toolCallId"]].args)
            case "TOOL_CALL_RESULT" if not event["messageId"].endswith(":unanswered"):
                failed = event["content"].startswith('{"error":')
                calls[event["toolCallId"]].end(not failed, event["content"])
            case "CUSTOM" if event["name"] == "turnwire.citation":
                cited = event["value"]
                told.citations.append((cited["index"], cited["document_id"], cited.get("url")))
            case "RUN_STARTED":
                told.outcome = "running"
                give_up(told)
            case "RUN_ERROR":
                told.outcome = "failed"
            case "RUN_FINISHED":
                ended = event["outcome"]["type"]
                told.outcome = {"success": "completed", "interrupt": "waiting"}.get(ended) or ended
                for one in event["outcome"].get("interrupts", ()):
                    calls[one["toolCallId"]].state = "waiting"
            case _:
                pass
    return told


# What each wire cannot say


def _all(told: Told) -> Told:
    return told


def _in_text(told: Told) -> Told:
    """The trailer has the sources without addresses; of a failed turn it has all that were found, cited or not.

    What happens once the answer has begun is told in the trailer too, so not before the turn has ended.
    """
    has_ended = told.outcome not in ("running", "waiting")
    has_sources = has_ended and told.outcome not in ("failed", "interrupted")
    return replace(
        told,
        outcome=told.outcome if has_ended else "running",
        citations=[(*cited[:2], None) for cited in told.citations] if has_sources else [],
        calls=told.calls if has_ended else [],
        reasoning=told.reasoning if has_ended else "",
    )


def _without_interrupted(told: Told) -> Told:
    """There is one word for all that went wrong."""
    return replace(told, outcome="failed" if told.outcome == "interrupted" else told.outcome)


def _in_chat(told: Told) -> Told:
    """There is no place for tools, but for those that a person must decide about, nor for what has no address.

    One page that was cited twice may be told once.
    """
    pages = dict.fromkeys((None, None, url) for _, _, url in told.citations if url)
    return replace(
        _without_interrupted(told),
        citations=list(pages),
        calls=[call for call in told.calls if call.state == "waiting"],
    )


def _in_responses(told: Told) -> Told:
    """A source is an address or a document, told with the text of its response; where there is no text, it is not."""
    return replace(_without_interrupted(told), citations=[])


@dataclass(frozen=True)
class Reader:
    """`sayable` leaves of a log what the wire can say, and says what it cannot; `cursor` is what a client goes on by.

    Without a cursor it must be plain that a stream is not whole.
    """

    read: Callable[[Sequence[bytes]], Told]
    sayable: Callable[[Told], Told] = _all
    cursor: str | None = None
    is_sse: bool = True


READERS: Mapping[str, Reader] = {
    "ag_ui": Reader(read_ag_ui, _without_interrupted, "frame"),
    "ai_sdk": Reader(read_ai_sdk),
    "openai_chat": Reader(read_openai_chat, _in_chat),
    "openai_responses": Reader(read_openai_responses, _in_responses, "frame"),
    "sse_chat": Reader(read_sse_chat, cursor="position"),
    "three_phase_text": Reader(read_three_phase_text, _in_text, "byte", is_sse=False),
    "websocket": Reader(read_websocket, cursor="position", is_sse=False),
}
