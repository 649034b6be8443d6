"""Nothing escapes its contract: every store, wire and agent adapter in the package is in its table."""

from pkgutil import iter_modules

import turnwire.agents
import turnwire.stores
import turnwire.wires
from tests.contracts.agents import MODULES
from tests.contracts.stores import STORES
from tests.contracts.wires import WIRES


def test_every_store_is_under_contract() -> None:
    modules = {module.name for module in iter_modules(turnwire.stores.__path__)}
    assert modules - {"lines", "rules", "transfer"} == set(STORES)


def test_every_wire_is_under_contract() -> None:
    modules = {module.name for module in iter_modules(turnwire.wires.__path__)}
    assert modules - {"framing"} == {name if name in modules else name.partition("_")[0] for name in WIRES}


def test_every_agent_adapter_is_under_contract() -> None:
    # Functions and generators ask no model; the others are parts of adapters.
    others = {"demo", "from_settings", "function", "generator", "sdk_detection", "text_tool_calls"}
    modules = {module.name for module in iter_modules(turnwire.agents.__path__)}
    assert modules - others == {module.NAME for module in MODULES}
