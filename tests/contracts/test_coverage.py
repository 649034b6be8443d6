"""Every store, wire and agent adapter of the package is in its contract table."""

from importlib import import_module
from pkgutil import iter_modules, walk_packages

import turnwire.agents
import turnwire.stores
import turnwire.wires
from tests.contracts.agents import MODULES, ONLY_IN_ALL
from tests.contracts.stores import STORES
from tests.contracts.wires import WIRES


def test_every_store_is_in_the_contract_table() -> None:
    packages = {module.name for module in iter_modules(turnwire.stores.__path__) if module.ispkg}
    assert packages | {"memory"} == set(STORES)


def test_every_wire_is_in_the_contract_table() -> None:
    modules = [
        import_module(module.name)
        for module in walk_packages(turnwire.wires.__path__, "turnwire.wires.")
        if module.name.endswith("encoder")
    ]
    wires = {value.name for module in modules for value in vars(module).values() if hasattr(value, "media_type")}
    # The bare text of an answer has no events to read back.
    assert wires - {"answer_text"} == set(WIRES)


def test_every_agent_adapter_is_in_the_contract_table() -> None:
    packages = {module.name for module in iter_modules(turnwire.agents.__path__) if module.ispkg}
    assert packages | {"adapter_template", "chat_completions"} == {module.NAME for module in MODULES} | ONLY_IN_ALL
