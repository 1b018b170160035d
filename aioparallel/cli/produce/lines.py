"""Makes a record from a line."""

from __future__ import annotations

import json
import os

from aioparallel.cli.produce.command import Producing
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Outgoing

__all__ = ["LineParser"]


class LineParser:
    """Makes a record from each line, as the options say."""

    def __init__(self, topic: str, how: Producing) -> None:
        self._topic = topic
        self._how = how
        self._headers = how.headers()
        self._separator = None if how.key_separator is None else os.fsencode(how.key_separator)
        self._path = [] if how.key_field is None else how.key_field.split(".")

    def record(self, line: bytes, place: str) -> Outgoing:
        """The record. ``line``: without its end. ``place``: names the line in errors. Raises ConfigurationError."""
        key, value = self._how.key, line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                raise ConfigurationError("key_separator", self._how.key_separator, f"not found in {place}")
        elif self._path:
            key = self._field(line, place)
        nothing = self._how.empty_is_null and not value
        return Outgoing(self._topic, None if nothing else value, key, self._headers, self._how.partition)

    def _field(self, line: bytes, place: str) -> bytes | None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError("key_field", self._how.key_field, f"{place} is no JSON: {error}") from None
        for name in self._path:
            if not isinstance(value, dict) or name not in value:
                raise ConfigurationError("key_field", self._how.key_field, f"not found in {place}")
            value = value[name]
        if value is None:
            return None
        try:
            return (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                "key_field", self._how.key_field, f"half a surrogate pair in {place}, which has no UTF-8"
            ) from None
