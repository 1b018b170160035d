"""Reads and writes the primitives of Kafka's flexible versions (KIP-482), as Kafka's own generated classes do.

aiokafka's types are not used. They write tagged fields incorrectly, accept tagged fields that are cut off, accept null
everywhere, and raise various errors for bytes that end too early. <https://kafka.apache.org/protocol>
"""

from __future__ import annotations

import struct
from typing import Any, Final

from aioparallel.records.errors import ClientError

__all__ = ["MalformedMessage", "Reader", "UnencodableMessage", "write_varint"]

_LONGEST_VARINT: Final = 28
"""Largest shift of the last byte of a number, in bits."""
_LARGEST: Final = 0xFFFFFFFF


class MalformedMessage(ClientError):
    """Bytes are not the message that they should be. A retry cannot help."""


class UnencodableMessage(ClientError, ValueError):
    """A message has a value that does not fit its field, or that the negotiated version cannot contain."""


class Reader:
    """Bytes, and the position of the next one to read. Raises MalformedMessage where they end too early."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        at, end = self.at, self.at + size
        if end > len(self.data):
            raise self._ends(size)
        self.at = end
        return self.data[at:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The values of the next bytes in this layout."""
        at, end = self.at, self.at + layout.size
        if end > len(self.data):
            raise self._ends(layout.size)
        self.at = end
        return layout.unpack_from(self.data, at)

    def varint(self) -> int:
        """An unsigned number of at most 32 bits in one to five bytes."""
        data, at = self.data, self.at
        value = shift = 0
        try:
            while (byte := data[at]) > 0x7F:
                value |= (byte & 0x7F) << shift
                shift += 7
                at += 1
                if shift > _LONGEST_VARINT:
                    raise MalformedMessage(f"the number at byte {self.at} has more than 5 bytes")
        except IndexError:
            raise self._ends(1) from None
        value |= byte << shift
        if value > _LARGEST:
            raise MalformedMessage(f"the number at byte {self.at} has more than 32 bits")
        self.at = at + 1
        return value

    def count(self, size: int) -> int:
        """Check that ``size`` items of a byte or more can follow, before memory is allocated for them."""
        if size > self.left:
            raise self._ends(size)
        return size

    def skip_tagged_fields(self) -> None:
        """Skip the tagged fields that end a structure: newer brokers may add some."""
        at = self.at
        if self.data[at : at + 1] == b"\0":
            self.at = at + 1
            return
        for _ in range(self.varint()):
            self.varint()
            size = self.varint()
            if size > self.left:
                raise self._ends(size)
            self.at += size

    def check_end(self) -> None:
        """Raise MalformedMessage if bytes are left."""
        if self.left:
            raise MalformedMessage(f"{self.left} bytes follow its end")

    def _ends(self, wanted: int) -> MalformedMessage:
        return MalformedMessage(f"{wanted} or more bytes must follow byte {self.at}, and {self.left} do")


def write_varint(value: int, out: bytearray) -> None:
    """Append an unsigned number of at most 32 bits."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
