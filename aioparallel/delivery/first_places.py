"""Where a record was first, even after a replay from a dead-letter topic. A replay writes this into a header.

``aioparallel.replayed.origin`` is ``topic partition offset timestamp checksum``. The checksum is a CRC-32 of key and
value. A handler may copy the headers of one record to another, so the header counts only if the checksum matches.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from aioparallel.delivery.letters import REPLAYED_ORIGIN, Letter
from aioparallel.records.record import Origin, Record

__all__ = ["checksum_of", "first_place", "replayed_origin"]

_PARTS: Final = 5


def first_place(record: Record[Any, Any]) -> Origin:
    """Return where a record was before retry topics and all replays."""
    for name, value in record.headers:
        if name == REPLAYED_ORIGIN and value is not None:
            found = _read(value, checksum_of(record.raw_key, record.raw_value))
            if found is not None:
                return found
    return record.origin


def replayed_origin(record: Record[Any, Any], letter: Letter) -> tuple[str, bytes | None]:
    """Return the header for a record that is replayed: the one that it has, or a new one."""
    checksum = checksum_of(record.raw_key, record.raw_value)
    for header in record.headers:
        if header[0] == REPLAYED_ORIGIN and header[1] is not None and _read(header[1], checksum) is not None:
            return header
    topic, partition, offset, timestamp = letter.origin
    return REPLAYED_ORIGIN, f"{topic} {partition} {offset} {timestamp} {checksum}".encode()


def _read(value: bytes, checksum: int) -> Origin | None:
    parts = value.decode("utf-8", "replace").split(" ")
    if len(parts) != _PARTS or parts[4] != str(checksum):
        return None
    try:
        return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))
    except ValueError:
        return None


def checksum_of(key: object, value: object) -> int:
    """Return a CRC-32 of the bytes of key and value."""
    checksum = 0
    for part in (key, value):
        held = part if isinstance(part, bytes) else b""
        checksum = zlib.crc32(held, zlib.crc32(b"-" if part is None else b"+%d " % len(held), checksum))
    return checksum
