"""An extension's configuration: its manifest's defaults, with what the user has set in the environment.

`TURNWIRE_EXTENSION_<ID>_<KEY>` sets one value and `TURNWIRE_EXTENSION_<ID>_ENABLED` switches the extension on or off.
A value is read as YAML, so that numbers, booleans and lists are what they look like; where the default is a text, it
stays a text.
"""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from turnwire.extensions.manifest import Manifest, ManifestError, problems

PREFIX = "TURNWIRE_EXTENSION_"


class Overrides:
    """What the environment sets for one extension."""

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
        """What the user says, if anything. Raises ManifestError."""
        text = self._values.get("enabled")
        if text is None or text == "auto":
            return None
        value = self._read("enabled", text)
        if not isinstance(value, bool):
            raise ManifestError(f"{self._prefix}ENABLED: write true, false or auto")
        return value

    def configure(self, model: type[BaseModel] | None) -> tuple[dict[str, Any], list[str]]:
        """The configuration, and the variables that set nothing. Raises ManifestError for what the model refuses."""
        config = dict(self._manifest.config)
        known = {name.lower(): name for name in (*(model.model_fields if model else ()), *config)}
        unknown: list[str] = []
        for name, text in self._values.items():
            if name in known:
                config[known[name]] = self._value(known[name], text, model)
            elif name != "enabled":
                unknown.append(self._prefix + name.upper())
        if model is not None:
            try:
                config = model.model_validate(config).model_dump()
            except ValidationError as error:
                told = "; ".join(problems(error))
                raise ManifestError(f"config of {self._manifest.id!r}: {told}") from error
        return config, unknown

    def _value(self, name: str, text: str, model: type[BaseModel] | None) -> Any:
        is_text = isinstance(self._manifest.config.get(name), str)
        if model is not None and name in model.model_fields:
            is_text = is_text or model.model_fields[name].annotation is str
        return text if is_text else self._read(name, text)

    def _read(self, name: str, text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise ManifestError(f"{self._prefix}{name.upper()}: this value cannot be read as YAML") from error
