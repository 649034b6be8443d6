"""One extension and its state, from discovery to stop, with a hint about what to do when it is not running."""

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ValidationError

from turnwire.extensions.calls import call, reason
from turnwire.extensions.contract import PROTOCOLS, Extension, ExtensionContext, Health
from turnwire.extensions.manifest import (
    PRIVATE_PACKAGE,
    FoundExtension,
    Manifest,
    ManifestError,
    load_yaml,
    problems,
)

logger = logging.getLogger("turnwire.extensions")

PREFIX = "TURNWIRE_EXTENSION_"
State = Literal["discovered", "unconfigured", "loaded", "starting", "running", "degraded", "failed", "stopped"]


class ExtensionHost:
    """An extension in the runtime: its object, its configuration and its state. No method raises."""

    def __init__(self, found: FoundExtension, extension: Any = None) -> None:
        self.id = found.id
        self.found = found
        self.state: State = "discovered"
        self.message = ""
        self.hint = ""
        self.notes: list[str] = []
        """Problems that do not keep it from running."""
        self.extension: Extension | None = extension
        self._class: type[Any] | None = None
        self.provides: frozenset[str] = frozenset()
        self.is_up = False
        """True from start to stop, whatever its health."""
        self.config: Mapping[str, Any] = {}
        if found.problem:
            self.fail(found.problem, "correct the manifest, then run `turnwire extensions check`")

    @property
    def manifest(self) -> Manifest:
        assert self.found.manifest is not None
        return self.found.manifest

    def set_state(self, state: State, message: str = "", hint: str = "") -> None:
        if (state, message) != (self.state, self.message):
            level = logging.ERROR if state == "failed" else logging.WARNING if state == "degraded" else logging.INFO
            details = "; ".join(part for part in (message, hint) if part)
            logger.log(level, "extension %r: %s%s", self.id, state, f": {details}" if details else "")
        self.state, self.message, self.hint = state, message, hint

    def fail(self, message: str, hint: str = "") -> None:
        self.set_state("failed", message, hint)

    def configure(self) -> bool:
        """Return True if the extension should be loaded, judging by the manifest and the environment alone."""
        overrides = Overrides(self.manifest, os.environ)
        switch = f"{PREFIX}{self.id.upper()}_ENABLED"
        try:
            enabled = overrides.enabled
        except ManifestError as error:
            self.fail(str(error))
            return False
        if (self.manifest.enabled if enabled is None else enabled) is False:
            self.set_state("discovered", "it is switched off", f"set {switch}=true to use it")
            return False
        missing = [secret for secret in self.manifest.secrets if secret.required and not os.environ.get(secret.env)]
        if missing:
            names = ", ".join(secret.env for secret in missing)
            advice = [f"{secret.description} {secret.url or ''}".strip() for secret in missing]
            self.set_state("unconfigured", f"{names} is not set", " ".join([f"set {names}.", *filter(None, advice)]))
            return False
        return self._meets_requirements()

    def load(self) -> None:
        """Import the extension's class and detect what it provides. Blocks, so it must run in a thread."""
        try:
            cls: type[Any] = type(self.extension) if self.extension is not None else import_class(self.found)
            if not self._check_class(cls):
                return
            model: Any = getattr(cls, "ConfigModel", None)
            if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
                self.fail("its ConfigModel is not a pydantic model", "derive it from pydantic.BaseModel")
                return
            self.config, unknown = Overrides(self.manifest, os.environ).configure(model)
            self.notes += [f"{name} sets nothing: there is no such key in its config" for name in unknown]
            self._class = cls
        except ManifestError as error:
            self.fail(str(error), f"set {PREFIX}{self.id.upper()}_<KEY>, or correct the manifest's config")
        except (Exception, SystemExit) as error:
            logger.debug("extension %r cannot be loaded", self.id, exc_info=True)
            self.fail(f"it cannot be imported: {reason(error)}", _import_hint(error))
        else:
            self.set_state("loaded")
            for note in self.notes:
                logger.warning("extension %r: %s", self.id, note)

    def create(self) -> bool:
        """Create the object. It runs on the event loop, because it may create tasks or locks."""
        assert self._class is not None
        try:
            self.extension = self.extension or self._class()
        except (Exception, SystemExit) as error:
            self.fail(f"{self._class.__name__}() failed: {reason(error)}", "its class is called without arguments")
        return self.extension is not None

    async def initialize(self, context: ExtensionContext, limit: float) -> None:
        assert self.extension is not None
        try:
            await call(limit, self.extension.initialize, context)
        except Exception as error:
            logger.debug("extension %r cannot be initialized", self.id, exc_info=True)
            self.fail(f"initialize failed: {reason(error)}", "check its configuration; the debug log has the traceback")

    async def start(self, limit: float) -> None:
        assert self.extension is not None
        self.set_state("starting")
        try:
            await call(limit, self.extension.start)
        except Exception as error:
            logger.debug("extension %r cannot be started", self.id, exc_info=True)
            self.fail(f"start failed: {reason(error)}", "the debug log has the traceback; other extensions go on")
            await self._attempt("stop", limit)
        else:
            self.is_up = True
            self.set_state("running")

    async def check(self, limit: float) -> None:
        """Run its health check and set its state. It keeps running even if it is `unconfigured`."""
        assert self.extension is not None
        try:
            health: Any = await call(limit, self.extension.health_check)
        except Exception as error:
            health = Health("degraded", f"health_check failed: {reason(error)}")
        if not self.is_up:
            return  # It was stopped meanwhile.
        if isinstance(health, Health):
            self.set_state(health.state, health.message, health.hint)
        else:
            self.set_state("degraded", f"health_check returned {type(health).__name__}", "it must return a Health")

    async def pause(self, limit: float, message: str) -> None:
        """Stop the extension, so that it can be started again. Its errors are only logged."""
        if self.is_up:
            await self._attempt("stop", limit)
            self.is_up = False
        self.set_state("loaded", message)

    async def stop(self, limit: float) -> None:
        """Stop and destroy the extension. Its errors are only logged."""
        if self.extension is None:
            return
        problem = await self._attempt("stop", limit) if self.is_up else None
        problem = await self._attempt("destroy", limit) or problem
        was_failed, self.is_up = self.state == "failed", False
        if not was_failed:
            self.set_state("stopped", problem or "")

    async def _attempt(self, phase: Literal["stop", "destroy"], limit: float) -> str | None:
        assert self.extension is not None
        try:
            await call(limit, self.extension.stop if phase == "stop" else self.extension.destroy)
        except Exception as error:
            problem = f"{phase} failed: {reason(error)}"
            logger.warning("extension %r: %s; it is left behind", self.id, problem)
            return problem
        return None

    def _check_class(self, cls: type) -> bool:
        if missing := missing_methods(cls, Extension):
            hint = "an extension has initialize, start, stop, destroy and health_check, all async"
            self.fail(f"{cls.__name__} is not an extension: it lacks {', '.join(missing)}", hint)
            return False
        self.provides = detect(cls)
        for name in self.manifest.provides:
            if name not in self.provides:
                missing = ", ".join(missing_methods(cls, PROTOCOLS[name]))
                problem = f"the manifest says that it provides {name}, and it does not: it has no {missing}"
                self.fail(problem, "correct the class, or the manifest's provides")
                return False
        for protocol in PROTOCOLS.values():
            missing = missing_methods(cls, protocol)
            if 0 < len(missing) < len(methods_of(protocol)):
                # Silence would look like a channel that merely does not stream.
                self.notes.append(f"it is not used as a {protocol.__name__}: it has no {', '.join(missing)}")
        return True

    def _meets_requirements(self) -> bool:
        missing: list[str] = []
        for text in self.manifest.requires:
            try:
                if not _is_installed(Requirement(text)):
                    missing.append(text)
            except InvalidRequirement:
                self.fail(f"requires: {text!r} is not a requirement", 'write it as for pip, such as "httpx>=0.27"')
                return False
        if missing:
            packages = " ".join(f"'{text}'" for text in missing)
            self.fail(f"it requires {', '.join(missing)}, which is not installed", f"pip install {packages}")
        return not missing


def _is_installed(requirement: Requirement) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _import_hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name!r} where Turnwire is installed, and name it in the manifest's requires"
    return "correct its own code; the debug log has the traceback"


class Overrides:
    """The settings of one extension in the environment."""

    def __init__(self, manifest: Manifest, environment: Mapping[str, str]) -> None:
        self._prefix = f"{PREFIX}{manifest.id.upper()}_"
        self._manifest = manifest
        self._values = {
            name.removeprefix(self._prefix).lower(): value
            for name, value in environment.items()
            if name.startswith(self._prefix)
        }

    @property
    def enabled(self) -> bool | None:
        """The user's switch, or None for auto. Raises ManifestError."""
        text = self._values.get("enabled")
        if text is None or text == "auto":
            return None
        value = self._read("enabled", text)
        if not isinstance(value, bool):
            raise ManifestError(f"{self._prefix}ENABLED: write true, false or auto")
        return value

    def configure(self, model: type[BaseModel] | None) -> tuple[dict[str, Any], list[str]]:
        """Return the configuration, and the variables that match nothing. Raises ManifestError for invalid values."""
        config = dict(self._manifest.config)
        names = {name.lower(): name for name in (*(model.model_fields if model else ()), *config)}
        unknown: list[str] = []
        for name, text in self._values.items():
            if name in names:
                config[names[name]] = self._value(names[name], text, model)
            elif name != "enabled":
                unknown.append(self._prefix + name.upper())
        if model is not None:
            try:
                config = model.model_validate(config).model_dump()
            except ValidationError as error:
                raise ManifestError(f"config of {self._manifest.id!r}: {'; '.join(problems(error))}") from error
        return config, unknown

    def _value(self, name: str, text: str, model: type[BaseModel] | None) -> Any:
        is_text = isinstance(self._manifest.config.get(name), str)
        if model is not None and name in model.model_fields:
            is_text = is_text or model.model_fields[name].annotation is str
        return text if is_text else self._read(name, text)

    def _read(self, name: str, text: str) -> Any:
        try:
            return load_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            raise ManifestError(f"{self._prefix}{name.upper()}: the value is not YAML; put text in quotes") from error


def import_class(found: FoundExtension) -> type[Any]:
    """Import the extension's module and return its class. Raises whatever that raises, and ImportError."""
    assert found.manifest is not None
    module_name, _, class_name = found.manifest.entrypoint.partition(":")
    if found.source == "folder":
        assert found.folder is not None
        _add_private_package(found.package, found.folder)
    try:
        # The entrypoint may name the module in full.
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
    # An earlier server in this process may have imported it, perhaps from another folder.
    _forget(name)
    if PRIVATE_PACKAGE not in sys.modules:
        private = ModuleType(PRIVATE_PACKAGE, "Extensions of folders.")
        private.__path__ = []
        sys.modules[PRIVATE_PACKAGE] = private
    init = folder / "__init__.py"
    if init.is_file():
        spec = spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
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


def detect(cls: type) -> frozenset[str]:
    """Return the names of the protocols that the class fits: those that `isinstance` finds in its objects."""
    return frozenset(name for name, protocol in PROTOCOLS.items() if issubclass(cls, protocol))


def missing_methods(cls: type, protocol: type) -> list[str]:
    """Return the methods of the protocol that the class lacks."""
    return [name for name in methods_of(protocol) if not hasattr(cls, name)]


def methods_of(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]
