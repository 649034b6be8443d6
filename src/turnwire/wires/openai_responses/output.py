"""The output of one response while it is told: its items, and the numbered frames about them."""

from typing import Any

from turnwire.core.encoding import ascii_json
from turnwire.core.events import CitationEvent
from turnwire.wires.openai_responses.items import Item, Speech

_DELTA = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,%b,"delta":%b,"logprobs":[]}\n\n'
)


class Output:
    """At most one item grows at a time; any other is whole when it is told."""

    def __init__(self) -> None:
        self._items: list[Item | Speech] = []
        self._open: Speech | None = None
        self._cited: list[CitationEvent] = []
        self._unplaced: list[CitationEvent] = []
        self._frames: list[bytes] = []
        self._delta_place = b""
        self.number = 0
        """Of the next frame."""

    @property
    def items(self) -> list[Item]:
        return [one.item if isinstance(one, Speech) else one for one in self._items]

    def take_frames(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def tell(self, kind: str, **fields: Any) -> None:
        self.tell_raw(numbered_frame(kind, self.number, fields))
        self.number += 1

    def tell_raw(self, frame: bytes) -> None:
        self._frames.append(frame)

    # Items that are whole

    def add(self, item: Item) -> None:
        index = self._append(item)
        self.tell("response.output_item.added", output_index=index, item=item)
        self.tell("response.output_item.done", output_index=index, item=item)

    def add_call(self, item: Item) -> None:
        index, arguments = self._append(item), item["arguments"]
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        self.tell("response.output_item.added", output_index=index, item=begun)
        self.tell("response.function_call_arguments.delta", **place, delta=arguments)
        self.tell("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        self.tell("response.output_item.done", output_index=index, item=item)

    def _append(self, item: Item) -> int:
        self.close()
        self._items.append(item)
        return len(self._items) - 1

    # Items that grow

    def say(self, text: str, encoded: bytes, item_id: str, start: int) -> None:
        """More of the answer, of which so much stood before this; the id is for a message that begins here.

        Nearly every event comes through here, so its frame is put together from the text as the log has it `encoded`.
        """
        speech = self._open
        if speech is None or speech.is_thought:
            speech = self._begin(Speech(id=item_id, index=len(self._items), start=start))
            self._delta_place = ascii_json({"item_id": item_id, "output_index": speech.index, "content_index": 0})[1:-1]
        speech.pieces.append(text)
        self._frames.append(_DELTA % (self.number, self._delta_place, encoded))
        self.number += 1

    def think(self, text: str, item_id: str) -> None:
        speech = self._open
        if speech is None or not speech.is_thought:
            speech = self._begin(Speech(id=item_id, index=len(self._items), is_thought=True))
        speech.pieces.append(text)
        self._tell_of(speech, "response.reasoning_summary_text.delta", delta=text)

    def _begin(self, speech: Speech) -> Speech:
        self.close()
        speech.index = self._append(speech.item)
        self._items[speech.index] = self._open = speech
        self.tell("response.output_item.added", output_index=speech.index, item=speech.item)
        kind = "reasoning_summary_part" if speech.is_thought else "content_part"
        self._tell_of(speech, f"response.{kind}.added", part=speech.part)
        if not speech.is_thought:
            self.place_rest()
        return speech

    def close(self, status: str = "completed") -> None:
        """What grew is whole now."""
        speech, self._open = self._open, None
        if speech is None:
            return
        speech.status = status
        if speech.is_thought:
            self._tell_of(speech, "response.reasoning_summary_text.done", text=speech.text)
            self._tell_of(speech, "response.reasoning_summary_part.done", part=speech.part)
        else:
            self._tell_of(speech, "response.output_text.done", text=speech.text, logprobs=[])
            self._tell_of(speech, "response.content_part.done", part=speech.part)
        self.tell("response.output_item.done", output_index=speech.index, item=speech.item)

    def _tell_of(self, speech: Speech, kind: str, **fields: Any) -> None:
        place = "summary_index" if speech.is_thought else "content_index"
        self.tell(kind, item_id=speech.id, output_index=speech.index, **{place: 0}, **fields)

    # Citations

    def cite(self, citation: CitationEvent, answer_length: int) -> None:
        """Annotates the message that it is about; where that has not begun yet, the next one. Once is enough."""
        if citation in self._cited:
            return
        self._cited.append(citation)
        start, messages = citation.answer_start, self._messages
        if start is not None and start < answer_length:
            messages = [message for message in messages if message.start <= start]
        elif self._open is None or self._open.is_thought:
            messages = []
        if messages:
            self._annotate(messages[-1], citation)
        else:
            self._unplaced.append(citation)

    def pass_over(self, citation: CitationEvent) -> None:
        """It is of another response; the whole answer's citations will have it again."""
        self._cited.append(citation)

    def place_rest(self) -> None:
        """What was cited outside of all messages is of the last one. If that is told already, only its item knows."""
        messages = self._messages
        unplaced, self._unplaced = self._unplaced, []
        for citation in unplaced if messages else ():
            self._annotate(messages[-1], citation)

    @property
    def _messages(self) -> list[Speech]:
        return [one for one in self._items if isinstance(one, Speech) and not one.is_thought]

    def _annotate(self, message: Speech, citation: CitationEvent) -> None:
        annotation = message.annotation(citation)
        message.annotations.append(annotation)
        if message is self._open:
            number = len(message.annotations) - 1
            kind = "response.output_text.annotation.added"
            self._tell_of(message, kind, annotation_index=number, annotation=annotation)


def numbered_frame(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = ascii_json({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), data)
