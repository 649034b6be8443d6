"""A task as a client builds it from the events of an A2A stream, with the rules that the protocol has for them."""

from typing import Any

EVENT = "urn:turnwire:event"
_TERMINAL = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")


class Task:
    """Takes the events of the streams of one task, in the form of A2A 1.0, and checks that they may come."""

    def __init__(self) -> None:
        self.id = self.context_id = self.state = self.text = ""
        self.has_answer = self.is_complete = False
        self.messages: list[str] = []

    def take(self, response: dict[str, Any]) -> list[dict[str, Any]]:
        """Take one event. Return the event of the log that it carries, if there is one."""
        ((kind, value),) = response.items()
        if kind == "task":
            assert not self.id, "a stream has one task, at its start"
            self.id, self.context_id = value["id"], value["contextId"]
            self.text = "".join(part["text"] for item in value.get("artifacts", ()) for part in item["parts"])
            self.has_answer = bool(value.get("artifacts"))
            self._change(value["status"])
            return []
        assert (value["taskId"], value["contextId"]) == (self.id, self.context_id), "an event of another task"
        assert self.state not in _TERMINAL, "nothing follows the end of a task"
        if kind == "artifactUpdate":
            self._add(value)
            return []
        assert kind == "statusUpdate"
        self._change(value["status"])
        event = value.get("metadata", {}).get(EVENT)
        return [] if event is None else [event]

    def _add(self, update: dict[str, Any]) -> None:
        artifact = update["artifact"]
        assert artifact["artifactId"] == "answer"
        assert artifact["parts"], "an artifact has a part"
        assert not self.is_complete, "nothing follows the last chunk"
        assert update["append"] is self.has_answer, "the first chunk begins the artifact, later ones are added to it"
        self.text += "".join(part["text"] for part in artifact["parts"])
        self.has_answer, self.is_complete = True, update["lastChunk"]

    def _change(self, status: dict[str, Any]) -> None:
        assert status["timestamp"].endswith("Z")
        self.state = status["state"]
        if "message" in status:
            assert status["message"]["role"] == "ROLE_AGENT"
            self.messages.append(status["message"]["parts"][0]["text"])
