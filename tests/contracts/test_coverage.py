"""Nothing escapes its contract: every store and every wire in the package is in its table."""

from pkgutil import iter_modules

import turnwire.stores
import turnwire.wires
from tests.contracts.stores import STORES
from tests.contracts.wires import WIRES


def test_every_store_is_under_contract() -> None:
    modules = {module.name for module in iter_modules(turnwire.stores.__path__)}
    assert modules - {"guards"} == set(STORES)


def test_every_wire_is_under_contract() -> None:
    modules = {module.name for module in iter_modules(turnwire.wires.__path__)}
    assert modules - {"framing"} == set(WIRES)
