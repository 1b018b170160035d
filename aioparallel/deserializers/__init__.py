"""Ready deserialisers for ``key_deserializer`` and ``value_deserializer``.

A deserialiser is a function from the bytes of a key or a value to what the handler shall see. It is never called
with None: a record without key or value keeps None. Whatever it raises makes that record, and no other, fail with
DeserializationError; the raw bytes stay in ``record.raw_key`` and ``record.raw_value``.

For bytes they cannot read, all of these raise ValueError. Its message says what is wrong and where, but holds no part
of the record, as it goes into logs and into the headers of dead letters.
"""

from __future__ import annotations

from aioparallel.deserializers.msgspec_types import msgspec_json, msgspec_msgpack
from aioparallel.deserializers.plain import from_json, text
from aioparallel.deserializers.pydantic_types import pydantic_json

__all__ = ["from_json", "msgspec_json", "msgspec_msgpack", "pydantic_json", "text"]
