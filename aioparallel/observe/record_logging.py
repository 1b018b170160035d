"""Fields of the record on log lines: on those that a handler logs and on the library's own. ``docs/health.md`` has a
program.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final, Literal

from aioparallel.config.handling import CallNext, check_choice
from aioparallel.handlers.batches import Batch, Call
from aioparallel.records.record import Record
from aioparallel.records.user_errors import text_of

__all__ = ["RecordFilter", "about", "coordinates", "name_records"]

Keys = Literal["omit", "hash", "clear"]

_ABOUT: Final[ContextVar[Record[Any, Any] | None]] = ContextVar("aioparallel_about", default=None)
_HASHED: Final = 16  # hexadecimal digits


async def name_records(record: Any, call_next: CallNext) -> object:
    """Middleware: log lines of the handler, of what it calls and of tasks that it creates get the fields of its record
    from :class:`RecordFilter`; of a batch those of the first record. Put it first, so that it covers other middleware.
    """
    first = record[0] if isinstance(record, Batch) else record
    if not isinstance(first, Record):
        return await call_next(record)
    with about(first):
        return await call_next(record)


@contextlib.contextmanager
def about(record: Record[Any, Any]) -> Iterator[None]:
    """Log lines within the block belong to this record."""
    token = _ABOUT.set(record)
    try:
        yield
    finally:
        _ABOUT.reset(token)


def coordinates(record: Record[Any, Any] | Call) -> dict[str, object]:
    """Topic, partition and offset for ``extra``; of a batch those of its first record."""
    topic, partition = record.topic_partition
    return {"topic": topic, "partition": partition, "offset": record.offset}


class RecordFilter(logging.Filter):
    """Adds ``topic``, ``partition``, ``offset``, ``attempt`` and optionally ``key`` to log lines about a record, unless
    a line has its own. Add it to a handler of logging (``handler.addFilter(...)``), so that it sees the lines of all
    loggers. Lines of record handlers need :func:`name_records`. Drops no line.

    ``keys``: ``"omit"``: no key; ``"hash"``: 16 hexadecimal digits of the BLAKE2b hash of the key's bytes; ``"clear"``:
    the key as text. Keys may be personal data.

    Raises ConfigurationError for another ``keys``.
    """

    def __init__(self, *, keys: Keys = "omit") -> None:
        super().__init__()
        check_choice("RecordFilter keys", keys, ("omit", "hash", "clear"))
        self._keys = keys

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields. Returns True."""
        named = _ABOUT.get()
        if named is None:
            return True
        fields = coordinates(named) | {"attempt": named.attempt}
        if self._keys != "omit":
            fields["key"] = self._shown(named)
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True

    def _shown(self, record: Record[Any, Any]) -> str | None:
        key = record._raw[0] if hasattr(record, "_raw") else record.key
        if key is None:
            return None
        raw = key if isinstance(key, bytes) else text_of(key).encode(errors="backslashreplace")
        if self._keys == "hash":
            return hashlib.blake2b(raw).hexdigest()[:_HASHED]
        return raw.decode(errors="backslashreplace")
