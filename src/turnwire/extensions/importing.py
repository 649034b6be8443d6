"""Importing an extension's class.

A folder is imported as a private package, so that its modules can import each other relatively, are never mistaken
for somebody else's, and `sys.path` is left alone.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwire.extensions.discovery import PRIVATE_PACKAGE, Found


def import_class(found: Found) -> type[Any]:
    """Runs the extension's module and returns its class. Raises whatever that raises, and ImportError."""
    assert found.manifest is not None
    module_name, _, class_name = found.manifest.entrypoint.partition(":")
    if found.source == "folder":
        assert found.folder is not None
        _add_private_package(found.package, found.folder)
    try:
        # It may be written out in full, too.
        is_full = module_name.startswith(f"{found.package}.")
        module = importlib.import_module(module_name if is_full else f"{found.package}.{module_name}")
    except BaseException:
        if found.source == "folder":
            _forget(found.package)
        raise
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        raise ImportError(f"{module_name}.py has no class {class_name!r}")
    return cls


def _add_private_package(name: str, folder: Path) -> None:
    importlib.invalidate_caches()
    # Of an earlier server in this process, perhaps from another folder.
    _forget(name)
    if PRIVATE_PACKAGE not in sys.modules:
        private = ModuleType(PRIVATE_PACKAGE, "Extensions that were found in folders.")
        private.__path__ = []
        sys.modules[PRIVATE_PACKAGE] = private
    opening = folder / "__init__.py"
    if opening.is_file():
        spec = spec_from_file_location(name, opening, submodule_search_locations=[str(folder)])
    else:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    assert spec is not None
    package = module_from_spec(spec)
    sys.modules[name] = package
    if spec.loader is not None:
        try:
            spec.loader.exec_module(package)
        except BaseException:
            _forget(name)
            raise


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
