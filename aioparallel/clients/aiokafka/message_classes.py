"""Makes aiokafka's classes for requests in versions that aiokafka lacks, from Kafka's message definitions.

A definition is a text. It has ``name:type`` for each field, with the types of Kafka's definitions, and ``name:[`` ...
``]`` for an array of structures. In flexible versions (KIP-482) strings, bytes and arrays are compact, and tagged
fields end each structure. These are read, but never written, because aiokafka writes them incorrectly. A structure
inside another one is written as its fields, followed by one of type ``tags``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, TypeVar

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

__all__ = ["OneVersion", "grouped", "request_class", "supports"]

K = TypeVar("K")
V = TypeVar("V")


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        found = data.read(16)
        if len(found) != 16:
            raise ValueError("Buffer underrun decoding UUID")
        return found


_FIXED: Final = {"bool": Boolean, "int16": Int16, "int32": Int32, "int64": Int64, "uuid": _Uuid}
_PLAIN: Final = _FIXED | {"string": String("utf-8")}
_COMPACT: Final = _FIXED | {"string": CompactString("utf-8"), "bytes": CompactBytes, "tags": TaggedFields}


def _fields(words: Iterator[str], *, is_flexible: bool) -> list[tuple[str, object]]:
    types, array = (_COMPACT, CompactArray) if is_flexible else (_PLAIN, Array)
    fields: list[tuple[str, object]] = []
    for word in words:
        if word == "]":
            break
        name, _, kind = word.partition(":")
        if kind == "[":
            fields.append((name, array(*_fields(words, is_flexible=is_flexible))))
        else:
            item = types[kind.removeprefix("[]")]
            fields.append((name, array(item) if kind.startswith("[]") else item))
    return [*fields, ("tags", TaggedFields)] if is_flexible else fields


def request_class(
    name: str,
    api_key: int,
    version: int,
    *,
    request: str,
    response: str,
    is_flexible: bool = True,
    response_base: type[object] = object,
) -> Any:
    """A class for the request, whose ``RESPONSE_TYPE`` is one for the response, derived from ``response_base``."""
    common = {"API_KEY": api_key, "API_VERSION": version}
    takes, gives = (Schema(*_fields(iter(text.split()), is_flexible=is_flexible)) for text in (request, response))
    bases = (Response,) if response_base is object else (response_base, Response)
    answer = type(f"{name}Response_v{version}", bases, {**common, "SCHEMA": gives})
    attributes = {**common, "FLEXIBLE_VERSION": is_flexible, "RESPONSE_TYPE": answer, "SCHEMA": takes}
    return type(f"{name}Request_v{version}", (RequestStruct,), attributes)


def supports(versions: Mapping[int, tuple[int, int]], struct: Any) -> bool:
    """Whether a broker with these ``versions`` (least and most by API key) supports the version of this class."""
    least, most = versions.get(struct.API_KEY, (0, -1))
    return bool(least <= struct.API_VERSION <= most)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The second values by the first ones, as requests have partitions by topic."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


class OneVersion:
    """A request in a single version. aiokafka's connections call :meth:`prepare`."""

    def __init__(self, struct: Any, *fields: object) -> None:
        self._struct = struct
        self._fields = fields

    def __str__(self) -> str:
        return f"{self._struct.__name__.partition('Request')[0]} {self._struct.API_VERSION}"

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request. Raises IncompatibleBrokerVersion if the broker does not support its version."""
        if not supports(versions, self._struct):
            least, most = versions.get(self._struct.API_KEY, (0, -1))
            raise IncompatibleBrokerVersion(f"{self}: this broker supports {least} to {most}")
        return self._struct(*self._fields, *([{}] if self._struct.FLEXIBLE_VERSION else []))
