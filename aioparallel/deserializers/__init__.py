"""Deserialisers for ``key_deserializer`` and ``value_deserializer``.

A deserialiser is a function from the bytes of a key or value to what the handler gets. It is never called with None: a
record without key or value keeps None. An exception makes only that record fail, with DeserializationError. The raw
bytes stay in ``record.raw_key`` and ``record.raw_value``.

All deserialisers here raise ValueError for bytes that they cannot read. The message says what is wrong and where, but
contains no part of the record, because it goes into logs and into the headers of dead letters.
"""

from __future__ import annotations

from aioparallel.deserializers.json_text import from_json, text
from aioparallel.deserializers.msgspec_types import msgspec_json, msgspec_msgpack
from aioparallel.deserializers.pydantic_types import pydantic_json

__all__ = ["from_json", "msgspec_json", "msgspec_msgpack", "pydantic_json", "text"]
