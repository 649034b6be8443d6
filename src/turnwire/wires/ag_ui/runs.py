"""The runs of a turn: one, and another for each time that it was gone on with after it had waited for a person."""

from turnwire.wires.ag_ui.frames import Told, told

_VERSION = "1.0"


class Runs:
    """`run_ids` are the client's names of them, in order; where there is none, a run is named after the first."""

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._thread_id = thread_id
        self._run_ids = run_ids
        self._version = version
        self._turn_id = ""
        self._number = 1

    @property
    def names(self) -> dict[str, str]:
        return {"threadId": self._thread_id, "runId": self._run_id(self._number)}

    def begin(self, session_id: str, turn_id: str, agent: str) -> Told:
        self._thread_id = self._thread_id or session_id
        self._turn_id = turn_id
        return self._started(agent)

    def next(self, agent: str) -> Told:
        self._number += 1
        return self._started(agent)

    def _started(self, agent: str) -> Told:
        """The start of a run, and of its first step: the agent whose turn it is."""
        begun = told(
            "RUN_STARTED",
            **self.names,
            parentRunId=self._run_id(self._number - 1) if self._number > 1 else None,
            protocolVersion=_VERSION if self._version else None,
        )
        return [begun, told("STEP_STARTED", stepName=agent)]

    def _run_id(self, number: int) -> str:
        given = self._run_ids[number - 1] if number <= len(self._run_ids) else ""
        if given or number == 1:
            return given or self._turn_id
        return later_run_id(self._run_id(1), number)


def later_run_id(first: str, number: int) -> str:
    """What a run is called that the client has no name for."""
    return f"{first}:{number}"
