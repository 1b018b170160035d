"""The headers of dead letters and of records in retry topics. Pure.

Every header name begins with ``aioparallel.``; values are UTF-8 text, numbers in decimal. They stand behind the
record's own headers, which are unchanged, as are key and value.

======================================  ==============================================================
``aioparallel.origin.topic``            where the record stood first
``aioparallel.origin.partition``
``aioparallel.origin.offset``
``aioparallel.origin.timestamp``        its timestamp there, milliseconds since the epoch; -1: it had none
``aioparallel.group``                   the consumer group that gave up on it
``aioparallel.attempts``                how often its handler was called
``aioparallel.failed.first``            first failed attempt, milliseconds since the epoch
``aioparallel.failed.last``             last one
``aioparallel.error.type``              the last exception's class, with its module
``aioparallel.error.message``           its text, cut after 1,000 characters
``aioparallel.error.traceback``         its traceback, of a long one the last 4,000 characters
``aioparallel.retry.due``               in retry topics only: not before, milliseconds since the epoch
``aioparallel.left.out``                in dead letters only: what of the record is not in it, see below

A record that is too large with all of these is without some of its parts: ``aioparallel.left.out`` names each with its
bytes in the record, ``value=1048500 kept=0 key=12 headers=300 checksum=3735928559``. ``kept``: so many bytes of the
value, the first ones, are in the letter. ``headers``: bytes of the record's own headers that are not. ``checksum``:
CRC-32 of the record's key and value, as in :mod:`~aioparallel.delivery.first_places`. A value that is left out is
empty, and a key is missing.
======================================  =======================================================
Such a name is written as a text, ``\\xffa``, for a letter that nobody can read would help nobody; who sends the letter
back gives the record its bytes again.

A letter that is sent back carries none of these, and two more where it has coordinates of a source
(:mod:`aioparallel.coordinates`), so that it is not taken for a copy of what was handled before:

======================================  ==============================================================
``aioparallel.replayed``                where the letter stood: topic, partition and offset
``aioparallel.replayed.group``          the group that had given up on it: for others it is a copy
======================================  ==============================================================

Those stay with the record through retry topics, which have seen it before as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from aioparallel.records import Failure, Headers, Origin, Record, raw_name, readable_name

__all__ = [
    "ATTEMPTS",
    "GROUP",
    "ORIGIN_TOPIC",
    "REPLAYED",
    "REPLAYED_FOR",
    "REPLAYED_ORIGIN",
    "LeftOut",
    "Letter",
    "is_of_letter",
    "original_headers",
    "read_letter",
    "with_left_out",
    "without_headers",
    "without_texts",
    "write_letter",
]

PREFIX = "aioparallel."
REPLAYED = "aioparallel.replayed"
REPLAYED_FOR = "aioparallel.replayed.group"
REPLAYED_ORIGIN = "aioparallel.replayed.origin"
_OWN = (REPLAYED, REPLAYED_FOR, REPLAYED_ORIGIN)
ORIGIN_TOPIC = "aioparallel.origin.topic"
_ORIGIN_PARTITION = "aioparallel.origin.partition"
_ORIGIN_OFFSET = "aioparallel.origin.offset"
_ORIGIN_TIMESTAMP = "aioparallel.origin.timestamp"
GROUP = "aioparallel.group"
ATTEMPTS = "aioparallel.attempts"
_FAILED_FIRST = "aioparallel.failed.first"
_FAILED_LAST = "aioparallel.failed.last"
_ERROR_TYPE = "aioparallel.error.type"
_ERROR_MESSAGE = "aioparallel.error.message"
_ERROR_TRACEBACK = "aioparallel.error.traceback"
_RETRY_DUE = "aioparallel.retry.due"
_RAW_NAMES = "aioparallel.raw_names"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What of the record is not in its letter. None: all of that part is."""

    HEADER: ClassVar[str] = "aioparallel.left.out"

    value: int | None
    """Bytes of the record's value."""
    kept: int
    """And so many of them, the first ones, are there."""
    key: int | None
    """Bytes of its key."""
    headers: int | None
    """Bytes of those of its own headers that are not there."""
    checksum: int
    """Of its key and value."""

    @property
    def is_something(self) -> bool:
        """Whether anything is left out."""
        return (self.value, self.key, self.headers) != (None, None, None)

    def __str__(self) -> str:
        parts = []
        if self.value is not None:
            of = f"all but the first {self.kept:,} bytes" if self.kept else "all"
            parts.append(f"{of} of the value's {self.value:,} bytes")
        if self.key is not None:
            parts.append(f"the key ({self.key:,} bytes)")
        if self.headers is not None:
            parts.append(f"headers ({self.headers:,} bytes)")
        return ", ".join(parts)


class Letter(NamedTuple):
    """What the headers tell of a record that failed."""

    origin: Origin
    group: str
    attempts: int
    first: Failure
    """First failure: only its time is written, type and message are those of the last."""
    last: Failure
    traceback: str
    due: float | None = None
    """In a retry topic: not before, seconds since the epoch."""
    left_out: LeftOut | None = None
    """What of the record is not in it; None: all of it is. Written by :func:`with_left_out`."""


def write_letter(headers: Headers, letter: Letter) -> Headers:
    """The record's own ``headers`` with the letter's behind; those of an earlier letter are replaced."""
    origin = letter.origin
    texts: list[tuple[str, str]] = [
        (ORIGIN_TOPIC, origin.topic),
        (_ORIGIN_PARTITION, str(origin.partition)),
        (_ORIGIN_OFFSET, str(origin.offset)),
        (_ORIGIN_TIMESTAMP, str(origin.timestamp)),
        (GROUP, letter.group),
        (ATTEMPTS, str(letter.attempts)),
        (_FAILED_FIRST, str(round(letter.first.at * 1000))),
        (_FAILED_LAST, str(round(letter.last.at * 1000))),
        (_ERROR_TYPE, letter.last.type),
        (_ERROR_MESSAGE, letter.last.message),
        (_ERROR_TRACEBACK, letter.traceback),
    ]
    if letter.due is not None:
        texts.append((_RETRY_DUE, str(round(letter.due * 1000))))
    own = original_headers(headers)
    if raw := [(place, found) for place, (name, _) in enumerate(own) if (found := raw_name(name)) is not None]:
        texts.append((_RAW_NAMES, " ".join(f"{place}={name.hex()}" for place, name in raw)))
        own = tuple((readable_name(name), value) for name, value in own)
    # A text of the user's may hold lone surrogates, which UTF-8 cannot.
    return (*own, *((name, text.encode("utf-8", "replace")) for name, text in texts))


def without_texts(headers: Headers) -> Headers:
    """The same letter with empty message and traceback: where the whole one is too large."""
    return tuple((name, b"" if name in (_ERROR_MESSAGE, _ERROR_TRACEBACK) else value) for name, value in headers)


def without_headers(headers: Headers, numbers: Collection[int]) -> Headers:
    """The same letter's without some of the record's own, by number."""
    places = {before: now for now, before in enumerate(n for n in range(len(headers)) if n not in numbers)}
    return tuple(
        (name, _with_places(value, places) if name == _RAW_NAMES and value is not None else value)
        for number, (name, value) in enumerate(headers)
        if number in places
    )


def _with_places(told: bytes, places: Mapping[int, int]) -> bytes:
    parts = [part.partition("=") for part in told.decode().split()]
    return " ".join(f"{places[int(place)]}={name}" for place, _, name in parts if int(place) in places).encode()


def with_left_out(headers: Headers, left_out: LeftOut) -> Headers:
    """The same letter's, which says what is not in it."""
    parts = {"value": left_out.value, "kept": left_out.kept, "key": left_out.key, "headers": left_out.headers}
    told = [f"{name}={size}" for name, size in parts.items() if size is not None]
    return (*headers, (LeftOut.HEADER, " ".join([*told, f"checksum={left_out.checksum}"]).encode()))


def is_of_letter(name: str) -> bool:
    """Whether a header is the letter's, and not the record's own. That it was sent back before is its own."""
    return name not in _OWN and name.startswith(PREFIX)


def original_headers(headers: Headers) -> Headers:
    """The headers without those of a letter."""
    own = tuple(header for header in headers if not is_of_letter(header[0]))
    for name, value in headers:
        if name == _RAW_NAMES and value is not None:
            return _with_raw_names(own, value)
    return own


def _with_raw_names(headers: Headers, told: bytes) -> Headers:
    """With the names that they had, as far as that can be read."""
    names: dict[int, str] = {}
    for one in told.decode("utf-8", "replace").split():
        place, _, name = one.partition("=")
        try:
            names[int(place)] = bytes.fromhex(name).decode("utf-8", "surrogateescape")
        except ValueError:
            return headers
    return tuple((names.get(place, name), value) for place, (name, value) in enumerate(headers))


def read_letter(record: Record[Any, Any]) -> Letter | None:
    """What the record's headers tell; None when it is no letter of ours, or a damaged one."""
    found = {name: value.decode("utf-8", "replace") for name, value in record.headers if value and _is_ours(name)}
    try:
        error = found[_ERROR_TYPE], found.get(_ERROR_MESSAGE, "")
        return Letter(
            Origin(
                found[ORIGIN_TOPIC],
                int(found[_ORIGIN_PARTITION]),
                int(found[_ORIGIN_OFFSET]),
                _timestamp(found[_ORIGIN_TIMESTAMP]),
            ),
            found.get(GROUP, ""),
            int(found[ATTEMPTS]),
            Failure(int(found[_FAILED_FIRST]) / 1000, *error),
            Failure(int(found[_FAILED_LAST]) / 1000, *error),
            found.get(_ERROR_TRACEBACK, ""),
            int(found[_RETRY_DUE]) / 1000 if _RETRY_DUE in found else None,
            _left_out(found[LeftOut.HEADER]) if LeftOut.HEADER in found else None,
        )
    except (KeyError, ValueError):
        return None


def _left_out(text: str) -> LeftOut:
    found = {name: int(number) for name, _, number in (part.partition("=") for part in text.split())}
    value, key, headers = (found.get(name) for name in ("value", "key", "headers"))
    return LeftOut(value=value, kept=found.get("kept", 0), key=key, headers=headers, checksum=found["checksum"])


def _timestamp(text: str) -> int:
    # Letters of records without one, which only message format 0 has, held this word once.
    return -1 if text == "None" else int(text)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX)
