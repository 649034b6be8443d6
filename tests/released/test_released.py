"""Everything that is released, compared with golden files: what clients, programs and data folders rely on.

`UPDATE_GOLDEN=1 pytest tests/released` writes the files again. Wording is not pinned: a message is `<text>` in them.
"""

from pathlib import Path

import pytest

from tests.released.recording import compare, fixed_settings, served
from tests.released.scenes import SCENES, Stage
from tests.released.wires import record_live, record_replay, run_once, asks, sections, texts_of
from turnwire import Turnwire

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("scene", [name for name in SCENES if name != "tail"])
async def test_every_wire_of_a_fixed_log_has_the_released_bytes(scene: str, tmp_path: Path) -> None:
    stage = Stage()
    turnwire = Turnwire(stage, store="memory", settings=fixed_settings(tmp_path))
    async with served(turnwire, stage) as recorder:
        found = await record_live(recorder, scene)
        await run_once(recorder, scene, asks(f"{scene}-again")[0])
        found += await record_replay(recorder, stage.turn_id)
    compare(f"wires/{scene}.txt", sections(found, texts_of(scene)))
