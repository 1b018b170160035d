"""Parses and checks the options of the sink, which are all text."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from aioparallel.config.handling import Resource, check_time
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.keys import missing_column

__all__ = ["TextOptions"]

_OPTIONS: Final = (
    "handler",
    "key",
    "id",
    "max_concurrency",
    "job_concurrency",
    "tasks",
    "max_buffered",
    "max_buffered_bytes",
    "timeout",
    "attempts",
    "on_error",
    "resources",
)
_SPARKS_OWN: Final = ("checkpointlocation", "path", "queryname")


class TextOptions:
    """The options by name. Methods raise ConfigurationError for a wrong value."""

    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._columns = columns
        for name in self._options:
            if name not in _OPTIONS and name not in _SPARKS_OWN:
                raise ConfigurationError(
                    name, options[name], f"is no option of this sink; it has {', '.join(_OPTIONS)}"
                )

    def text(self, name: str, default: str) -> str:
        """The text itself."""
        return self._options.get(name, default)

    def count(self, name: str) -> int | None:
        """A whole number from 1; None if not given."""
        text = self._options.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise ConfigurationError(name, text, "must be a whole number of at least 1")
        return int(text)

    def seconds(self, name: str) -> float | None:
        """A positive number of seconds; None if not given."""
        text = self._options.get(name)
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            raise ConfigurationError(name, text, "must be seconds") from None
        check_time(name, seconds)
        return seconds

    def columns(self, name: str) -> tuple[str, ...]:
        """Names of columns, separated by commas."""
        names = tuple(one.strip() for one in self._options.get(name, "").split(",") if one.strip())
        for one in names:
            if one not in self._columns:
                raise ConfigurationError(name, one, missing_column(one, self._columns))
        return names

    def imported(self, name: str) -> Any:
        """The object that ``module:name`` names."""
        text = self._options.get(name)
        if text is None:
            raise ConfigurationError(name, None, 'is needed: "module:function"')
        module, _, attribute = text.partition(":")
        if not module or not attribute:
            raise ConfigurationError(name, text, 'must be "module:name"')
        try:
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                name,
                text,
                f"cannot be imported: {error}. Spark plans in a Python process of its own, in which a script's folder "
                "is not on the path: install the module, or add it by spark.addArtifacts(..., pyfile=True), or by "
                "PYTHONPATH",
            ) from error
        return found

    def resources(self) -> Mapping[str, Resource]:
        """A dict of functions that return async context managers."""
        return self.imported("resources") if "resources" in self._options else {}
