"""Codecs of messages, made from dataclasses: the annotations of the fields, in order, are the wire format.

========================  ======================================================================
annotation                on the wire
========================  ======================================================================
``Int8`` ... ``Int64``    a signed number of this size
``bool``                  a byte
``str``                   a compact string of at most 32,767 bytes in UTF-8
``Uuid``                  16 bytes
``Records``               compact bytes: record batches, undecoded
``tuple[T, ...]``         a compact array
a dataclass               a structure, which ends with tagged fields
``T | None``              the same, nullable
========================  ======================================================================

``Annotated[T, Since(2)]`` is a field that older versions lack. It must have a default. A message in which it has
another value cannot be encoded in an older version, unless the field is ignorable.

All structures end with tagged fields. Those of a received message are skipped, and none are written: no message here
has any of its own. Numbers and names of Kafka's message definitions
(https://github.com/apache/kafka/tree/4.4/clients/src/main/resources/common/message).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from aioparallel.clients.messages.codecs import (
    Array,
    Bytes,
    Codec,
    Fixed,
    FixedArray,
    NullableStructure,
    String,
    UuidCodec,
)
from aioparallel.clients.messages.wire import MalformedMessage, Reader, UnencodableMessage

__all__ = ["Int8", "Int16", "Int32", "Int64", "Records", "Since", "Uuid", "decode", "encode"]

M = TypeVar("M")


class Since(NamedTuple):
    """Marks a field that versions before ``version`` lack. ``ignorable``: whether they leave out a value that is not
    the default, instead of refusing it."""

    version: int
    ignorable: bool = False


def encode(message: object, version: int) -> bytes:
    """The message in this version. Raises UnencodableMessage."""
    out = bytearray()
    _structure(type(message), version).encode(message, out)
    return bytes(out)


def decode(cls: type[M], version: int, data: bytes, at: int = 0) -> M:
    """The message of this class and version in ``data``, from ``at`` to its end. Raises MalformedMessage."""
    reader = Reader(data, at)
    try:
        message = _structure(cls, version).decode(reader)
        reader.check_end()
    except MalformedMessage as error:
        raise MalformedMessage(f"a {cls.__name__} in version {version} cannot be read: {error}") from None
    return cast("M", message)


class _Run:
    """Successive fields of fixed sizes: one call for all."""

    def __init__(self, names: Sequence[str], layout: str) -> None:
        self.names = tuple(names)
        self._layout = struct.Struct(">" + layout)
        get = attrgetter(*names)
        self._get: Callable[[object], tuple[Any, ...]] = get if len(names) > 1 else lambda value: (get(value),)

    def encode_from(self, message: object, out: bytearray) -> None:
        out += self._layout.pack(*self._get(message))

    def decode_to(self, values: list[Any], reader: Reader) -> None:
        values += reader.unpack(self._layout)


class _One:
    """A field of another kind."""

    def __init__(self, name: str, codec: Codec) -> None:
        self.names = (name,)
        self._get = attrgetter(name)
        self._codec = codec

    def encode_from(self, message: object, out: bytearray) -> None:
        self._codec.encode(self._get(message), out)

    def decode_to(self, values: list[Any], reader: Reader) -> None:
        values.append(self._codec.decode(reader))


class _Structure:
    """A dataclass in one version."""

    def __init__(self, cls: type[object], version: int) -> None:
        self._cls = cls
        self._steps: list[_Run | _One] = []
        self._absent: list[tuple[str, object]] = []
        hints = get_type_hints(cls, include_extras=True)
        codecs: list[tuple[str, Codec | Fixed]] = []
        fields = dataclasses.fields(cast("Any", cls))
        for field in fields:
            hint, since = _since(hints[field.name])
            if since is None or since.version <= version:
                codecs.append((field.name, _codec(hint, version)))
            elif not since.ignorable:
                self._absent.append((field.name, field.default))
        for is_fixed, some in groupby(codecs, key=lambda pair: isinstance(pair[1], Fixed)):
            if is_fixed:
                names, layouts = zip(*((name, cast("Fixed", codec).layout) for name, codec in some), strict=True)
                self._steps.append(_Run(names, "".join(layouts)))
            else:
                self._steps.extend(_One(name, cast("Codec", codec)) for name, codec in some)
        self._names = [name for step in self._steps for name in step.names]
        self._is_positional = self._names == [field.name for field in fields if not field.kw_only]
        self._version = version

    def encode(self, message: object, out: bytearray) -> None:
        for name, default in self._absent:
            if getattr(message, name) != default:
                raise UnencodableMessage(f"{self._cls.__name__}.{name} does not exist in version {self._version}")
        for step in self._steps:
            try:
                step.encode_from(message, out)
            except UnencodableMessage:
                raise
            except (ValueError, TypeError, AttributeError, struct.error) as error:
                names = ", ".join(step.names)
                raise UnencodableMessage(f"{self._cls.__name__}.{names}: {error}") from error
        out.append(0)

    def decode(self, reader: Reader) -> object:
        values: list[Any] = []
        for step in self._steps:
            step.decode_to(values, reader)
        reader.skip_tagged_fields()
        return self._cls(*values) if self._is_positional else self._cls(**dict(zip(self._names, values, strict=True)))


_structures: Final[dict[tuple[type[object], int], _Structure]] = {}


def _structure(cls: type[object], version: int) -> _Structure:
    found = _structures.get((cls, version))
    if found is None:
        found = _structures[cls, version] = _Structure(cls, version)
    return found


def _since(hint: object) -> tuple[object, Since | None]:
    """The annotation without its mark, and the mark."""
    if get_origin(hint) is Annotated:
        plain, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, Since):
                rest = tuple(one for one in marks if one is not mark)
                return (Annotated[(plain, *rest)] if rest else plain), mark
    return hint, None


def _codec(hint: object, version: int) -> Codec | Fixed:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return cast("Codec | Fixed", arguments[1])
    if origin in (Union, UnionType):
        (inner,) = (one for one in arguments if one is not NoneType)
        return _variable(inner, version, is_nullable=True)
    return Fixed("?") if hint is bool else _variable(hint, version, is_nullable=False)


def _variable(hint: object, version: int, *, is_nullable: bool) -> Codec:
    if hint is str:
        return String(is_nullable=is_nullable)
    if get_origin(hint) is tuple:
        item = _codec(get_args(hint)[0], version)
        if isinstance(item, Fixed):
            return FixedArray(item.layout, is_nullable=is_nullable)
        return Array(item, is_nullable=is_nullable)
    if not isinstance(hint, type) or not dataclasses.is_dataclass(hint):
        raise TypeError(f"{hint!r} has no form on the wire")
    structure = _structure(hint, version)
    return NullableStructure(structure) if is_nullable else structure


Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Uuid = Annotated[bytes, UuidCodec()]
Records = Annotated[bytes, Bytes(is_nullable=False)]
