"""Codecs of single fields in flexible versions. :mod:`~aioparallel.clients.messages.schema` makes those of messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from aioparallel.clients.messages.wire import MalformedMessage, Reader, write_varint

__all__ = ["Array", "Bytes", "Codec", "Fixed", "FixedArray", "NullableStructure", "String", "UuidCodec"]

_LONGEST_STRING: Final = 0x7FFF
"""As in Kafka's own classes."""


class Codec(Protocol):
    """Writes and reads values. Writing raises ValueError, TypeError, AttributeError or struct.error for wrong ones."""

    def encode(self, value: Any, out: bytearray) -> None: ...
    def decode(self, reader: Reader) -> Any: ...


class Fixed(NamedTuple):
    """A value of a fixed size, read and written together with the fields next to it, or in a :class:`FixedArray`.
    ``layout``: its character in the module ``struct``."""

    layout: str


class UuidCodec:
    """16 bytes."""

    def encode(self, value: bytes, out: bytearray) -> None:
        if len(value) != 16:
            raise ValueError(f"a UUID has 16 bytes, not {len(value)}")
        out += value

    def decode(self, reader: Reader) -> bytes:
        return reader.take(16)


class _Sized:
    """Something that begins with its size plus one; 0 is null."""

    def __init__(self, *, is_nullable: bool) -> None:
        self._is_nullable = is_nullable

    def encode(self, value: Any, out: bytearray) -> None:
        if value is not None:
            self._encode(value, out)
        elif self._is_nullable:
            out.append(0)
        else:
            raise ValueError("must not be None")

    def decode(self, reader: Reader) -> Any:
        size = reader.varint() - 1
        if size >= 0:
            return self._decode(reader, size)
        if not self._is_nullable:
            raise MalformedMessage(f"null at byte {reader.at - 1}, which is not allowed there")
        return None

    def _encode(self, value: Any, out: bytearray) -> None:
        raise NotImplementedError

    def _decode(self, reader: Reader, size: int) -> Any:
        raise NotImplementedError


class String(_Sized):
    """A compact string."""

    def _encode(self, value: str, out: bytearray) -> None:
        data = value.encode()
        if len(data) > _LONGEST_STRING:
            raise ValueError(f"has {len(data)} bytes in UTF-8; {_LONGEST_STRING} are allowed")
        write_varint(len(data) + 1, out)
        out += data

    def _decode(self, reader: Reader, size: int) -> str:
        if size > _LONGEST_STRING:
            raise MalformedMessage(f"a string of {size} bytes before byte {reader.at}; {_LONGEST_STRING} are allowed")
        try:
            return reader.take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"the string before byte {reader.at} is not UTF-8: {error.reason}") from None


class Bytes(_Sized):
    """Compact bytes."""

    def _encode(self, value: bytes, out: bytearray) -> None:
        write_varint(len(value) + 1, out)
        out += value

    def _decode(self, reader: Reader, size: int) -> bytes:
        return reader.take(size)


class Array(_Sized):
    """A compact array."""

    def __init__(self, item: Codec, *, is_nullable: bool) -> None:
        super().__init__(is_nullable=is_nullable)
        self._item = item

    def _encode(self, value: Sequence[Any], out: bytearray) -> None:
        if isinstance(value, str):
            raise TypeError(f"{value!r} is a string instead of several")
        write_varint(len(value) + 1, out)
        encode_item = self._item.encode
        for item in value:
            encode_item(item, out)

    def _decode(self, reader: Reader, size: int) -> tuple[Any, ...]:
        decode_item = self._item.decode
        return tuple([decode_item(reader) for _ in range(reader.count(size))])


class FixedArray(_Sized):
    """An array of numbers: one call for all."""

    def __init__(self, layout: str, *, is_nullable: bool) -> None:
        super().__init__(is_nullable=is_nullable)
        self._layout = layout

    def _encode(self, value: Sequence[Any], out: bytearray) -> None:
        write_varint(len(value) + 1, out)
        out += struct.pack(f">{len(value)}{self._layout}", *value)

    def _decode(self, reader: Reader, size: int) -> tuple[Any, ...]:
        return reader.unpack(struct.Struct(f">{reader.count(size)}{self._layout}"))


class NullableStructure:
    """A structure after a byte that is negative for null."""

    def __init__(self, structure: Codec) -> None:
        self._structure = structure

    def encode(self, value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            self._structure.encode(value, out)

    def decode(self, reader: Reader) -> Any:
        (mark,) = reader.take(1)
        return None if mark > 0x7F else self._structure.decode(reader)
