"""The wire itself: whose names a run goes by, and which version of the client it is written for.

A turn is a run of the protocol; one that waits for a person is several, one for each time that it was gone on with.
Clients name their threads and runs, so these names are options. Those before 1.0 do not say a version: they get what a
sub-agent says as CUSTOM events, because they would take it for the answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Self

from turnwire.core.contracts import Control, Encoder
from turnwire.wires.ag_ui.encoder import RunEncoder

VERSIONS = (0, 1)
_NAME = re.compile(r"[A-Za-z0-9._:@-]{0,160}")


class AgUi:
    name = "ag_ui"
    media_type = "text/event-stream"
    keeps_state = True
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, thread_id: str = "", run_ids: Sequence[str] = (), version: int = 1) -> None:
        """`run_ids` are the client's names of a turn's runs, in order; an empty one is left to us.

        Raises ValueError.
        """
        if not all(_NAME.fullmatch(name) for name in (thread_id, *run_ids)):
            raise ValueError("thread_id, run_id: at most 160 letters, digits and . _ : @ -")
        if version not in VERSIONS:
            raise ValueError("version: 0 or 1")
        self.thread_id = thread_id
        self.run_ids = tuple(run_ids)
        self.version = version
        self.key = f"ag_ui?version={version}&thread_id={thread_id}&run_ids={','.join(self.run_ids)}"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Raises ValueError."""
        version = {"0": 0, "1": 1}.get(query.get("version", "1"), -1)
        run_id = query.get("run_id")
        return cls(query.get("thread_id", ""), (run_id,) if run_id else (), version)

    def encoder(self) -> Encoder:
        return RunEncoder(self.thread_id, self.run_ids, self.version)

    def control(self, control: Control) -> None:
        """The protocol has no words for it: the connection is broken, and the client comes back for the rest."""
