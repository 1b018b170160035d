"""Values of the header ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header).

Records run at least once, so a service may get the request of a record twice. The key lets it recognise the second. It
is a UUID of version 8 (RFC 9562): a hash of the group, the record's first topic, partition, offset and timestamp, and
the index of the request.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final
from uuid import UUID

from aioparallel.delivery.first_places import first_place
from aioparallel.records.record import Record

__all__ = ["HEADER", "key_of"]

HEADER: Final = "Idempotency-Key"


def key_of(record: Record[Any, Any], group_id: str, index: int) -> str:
    """The key of request ``index`` (from 0) of the record. It stays the same in retry topics and after a replay."""
    topic, partition, offset, timestamp = first_place(record)
    text = f"{group_id}\0{topic}\0{partition}\0{offset}\0{timestamp}\0{index}"
    digest = bytearray(hashlib.blake2b(text.encode(), digest_size=16, person=b"aioparallel").digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(digest)))
