"""A turn's log as MCP progress: over generated logs, cut into batches anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.log_strategies import logs
from turnwire.core.codec import LoggedEvent
from turnwire.core.events import TokenEvent
from turnwire.core.state import TurnFold
from turnwire.wires.mcp.encoder import progress_lines, turn_content, turn_id_of, turn_text
from turnwire.wires.progress import status_of


@given(logs, st.data())
def test_progress_grows_and_loses_no_text_wherever_the_log_is_cut(log: list[LoggedEvent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole, parts = [*progress_lines(log)], [*progress_lines(log[:cut]), *progress_lines(log[cut:])]
    positions = [line.position for line in parts]
    # The protocol demands that the progress grows with every notification.
    assert positions == sorted(set(positions))
    assert "".join(line.text for line in parts) == "".join(line.text for line in whole)
    tokens = [logged for logged in log if isinstance(logged.event, TokenEvent)]
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    assert "".join(line.text for line in progress_lines(tokens)) == fold.state().text


@given(logs)
def test_first_line_names_the_turn_and_the_result_has_its_text(log: list[LoggedEvent]) -> None:
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    state = fold.state()
    lines = [line.text for line in progress_lines(log)]
    assert turn_id_of(lines[0]) == state.turn_id
    content = turn_content(state)
    assert (content["text"], content["status"]) == (state.text, status_of(state))
    assert turn_text(state, can_decide=True).startswith(state.text)
