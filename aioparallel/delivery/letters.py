"""The headers of dead letters and of records in retry topics. Pure.

Every header name begins with ``aioparallel.``; values are UTF-8 text, numbers are decimal. These headers come after the
record's own headers. The own headers, key and value are unchanged.

======================================  ==============================================================
``aioparallel.origin.topic``            where the record was first
``aioparallel.origin.partition``
``aioparallel.origin.offset``
``aioparallel.origin.timestamp``        its timestamp there, milliseconds since the epoch; -1: it had none
``aioparallel.group``                   the consumer group that gave up on it
``aioparallel.attempts``                how often its handler was called; of a share group: in its last delivery
``aioparallel.deliveries``              of a share group only, if it is more than 1: how often it was delivered
``aioparallel.failed.first``            first failed attempt, milliseconds since the epoch
``aioparallel.failed.last``             last one
``aioparallel.error.type``              the last exception's class, with its module
``aioparallel.error.message``           its text, cut after 1,000 characters
``aioparallel.error.traceback``         its traceback, of a long one the last 4,000 characters
``aioparallel.retry.due``               in retry topics only: not before, milliseconds since the epoch
``aioparallel.left.out``                in dead letters only: which parts of the record are missing, see below
``aioparallel.raw_names``               names of own headers that are no UTF-8, as hex bytes, by position
======================================  ==============================================================

If the record with all these headers is too large, parts of it are left out. ``aioparallel.left.out`` has the size of
each missing part in bytes: ``value=1048500 kept=0 key=12 headers=300 checksum=3735928559``. ``kept``: how many bytes of
the value, from its beginning, are in the dead letter. ``headers``: bytes of the missing own headers. ``checksum``:
CRC-32 of the record's key and value, as in :mod:`~aioparallel.delivery.first_places`. A missing value is empty, a
missing key is null.

The brokers of a share group write dead letters as well, if the group is configured so (KIP-1191, Kafka 4.4). They have
other headers, and are read like ours:

======================================  ==============================================================
``__dlq.errors.topic``                  where the record is
``__dlq.errors.partition``
``__dlq.errors.offset``
``__dlq.errors.group``                  the share group
``__dlq.errors.delivery.count``         how often the record was delivered
``__dlq.errors.message``                why it is delivered no more
======================================  ==============================================================

The record's own headers are never in them; key and value are, if ``errors.deadletterqueue.copy.record.enable`` of the
group is true. The dead letter of such a record, once it is completed from its source, also has
``aioparallel.origin.timestamp``.

A header name that is no UTF-8 is written as readable text, for example ``\\xffa``. A replay restores its bytes.

A record that is replayed has none of these headers. It gets ``aioparallel.replayed.origin``
(:mod:`~aioparallel.delivery.first_places`). If it has coordinates of a source
(:mod:`aioparallel.records.source_headers`), it gets two more, so that deduplication does not take it for a copy of a
handled record:

======================================  ==============================================================
``aioparallel.replayed``                where the dead letter was: topic, partition and offset
``aioparallel.replayed.group``          the group that gave up on it: for other groups it is a copy
======================================  ==============================================================

The record keeps these headers in retry topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from aioparallel.records.record import Failure, Headers, Origin, Record, raw_name, readable_name

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
    "with_origin_timestamp",
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
_DELIVERIES = "aioparallel.deliveries"
_FAILED_FIRST = "aioparallel.failed.first"
_FAILED_LAST = "aioparallel.failed.last"
_ERROR_TYPE = "aioparallel.error.type"
_ERROR_MESSAGE = "aioparallel.error.message"
_ERROR_TRACEBACK = "aioparallel.error.traceback"
_RETRY_DUE = "aioparallel.retry.due"
_RAW_NAMES = "aioparallel.raw_names"
_OF_BROKERS = "__dlq.errors."
_BROKER = "broker"
"""The error's type in their letters: they do not know what a handler has raised."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Which parts of the record are missing in its dead letter. None: the part is complete. ``UNKNOWN``: it is missing,
    and a broker has written the letter, which does not say its size."""

    HEADER: ClassVar[str] = "aioparallel.left.out"
    UNKNOWN: ClassVar[int] = -1

    value: int | None
    """Size of the record's value in bytes."""
    kept: int
    """How many bytes of the value, from its beginning, are there."""
    key: int | None
    """Size of its key in bytes."""
    headers: int | None
    """Size of its missing own headers in bytes."""
    checksum: int | None
    """CRC-32 of its key and value; None if a broker has written the letter."""

    @property
    def is_something(self) -> bool:
        """Whether any part is missing."""
        return (self.value, self.key, self.headers) != (None, None, None)

    def __str__(self) -> str:
        parts = []
        if self.checksum is None:
            missing = {"key": self.key, "value": self.value, "headers": self.headers}
            names = [name for name, size in missing.items() if size is not None]
            return f"its {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]}"
        if self.value is not None:
            of = f"all but the first {self.kept:,} bytes" if self.kept else "all"
            parts.append(f"{of} of the value's {self.value:,} bytes")
        if self.key is not None:
            parts.append(f"the key ({self.key:,} bytes)")
        if self.headers is not None:
            parts.append(f"headers ({self.headers:,} bytes)")
        return ", ".join(parts)


class Letter(NamedTuple):
    """What the headers of a dead letter, or of a record in a retry topic, say."""

    origin: Origin
    group: str
    attempts: int
    first: Failure
    """The first failure. Only its time is stored; type and message are those of the last one."""
    last: Failure
    traceback: str
    due: float | None = None
    """In a retry topic: when the record is due, seconds since the epoch."""
    left_out: LeftOut | None = None
    """The missing parts of the record; None: it is complete. Written by :func:`with_left_out`."""
    deliveries: int | None = None
    """How often a share group had delivered the record; None: once, or it was no share group. Attempts and first
    failure are of the last delivery: the earlier ones may have been at other members."""

    @property
    def is_of_broker(self) -> bool:
        """Whether a broker has written it, and not this package."""
        return self.last.type == _BROKER and not self.traceback


def write_letter(headers: Headers, letter: Letter) -> Headers:
    """Return the record's own ``headers`` with those of the dead letter after them. Headers of an earlier dead letter
    are replaced."""
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
    if letter.deliveries is not None:
        texts.append((_DELIVERIES, str(letter.deliveries)))
    if letter.due is not None:
        texts.append((_RETRY_DUE, str(round(letter.due * 1000))))
    own = original_headers(headers)
    if raw := [(place, found) for place, (name, _) in enumerate(own) if (found := raw_name(name)) is not None]:
        texts.append((_RAW_NAMES, " ".join(f"{place}={name.hex()}" for place, name in raw)))
        own = tuple((readable_name(name), value) for name, value in own)
    # A text from the user may contain lone surrogates, which UTF-8 cannot encode.
    return (*own, *((name, text.encode("utf-8", "replace")) for name, text in texts))


def without_texts(headers: Headers) -> Headers:
    """Return the headers with an empty error message and traceback, because the dead letter is too large."""
    return tuple((name, b"" if name in (_ERROR_MESSAGE, _ERROR_TRACEBACK) else value) for name, value in headers)


def without_headers(headers: Headers, numbers: Collection[int]) -> Headers:
    """Return the headers without some of the record's own, given their positions."""
    places = {before: now for now, before in enumerate(n for n in range(len(headers)) if n not in numbers)}
    return tuple(
        (name, _with_places(value, places) if name == _RAW_NAMES and value is not None else value)
        for number, (name, value) in enumerate(headers)
        if number in places
    )


def _with_places(names: bytes, places: Mapping[int, int]) -> bytes:
    parts = [part.partition("=") for part in names.decode().split()]
    return " ".join(f"{places[int(place)]}={name}" for place, _, name in parts if int(place) in places).encode()


def with_left_out(headers: Headers, left_out: LeftOut) -> Headers:
    """Return the headers with one more, which names the missing parts."""
    parts = {"value": left_out.value, "kept": left_out.kept, "key": left_out.key, "headers": left_out.headers}
    sizes = [f"{name}={size}" for name, size in parts.items() if size is not None]
    return (*headers, (LeftOut.HEADER, " ".join([*sizes, f"checksum={left_out.checksum}"]).encode()))


def is_of_letter(name: str) -> bool:
    """Return whether a header belongs to a dead letter, not to the record itself. Headers of a replay belong to the
    record."""
    return name.startswith((PREFIX, _OF_BROKERS)) and name not in _OWN


def original_headers(headers: Headers) -> Headers:
    """Return the record's own headers, with their original names."""
    own = tuple(header for header in headers if not is_of_letter(header[0]))
    for name, value in headers:
        if name == _RAW_NAMES and value is not None:
            return _with_raw_names(own, value)
    return own


def _with_raw_names(headers: Headers, raw_names: bytes) -> Headers:
    """Restore original header names. Damaged ``raw_names`` change nothing."""
    names: dict[int, str] = {}
    for one in raw_names.decode("utf-8", "replace").split():
        place, _, name = one.partition("=")
        try:
            names[int(place)] = bytes.fromhex(name).decode("utf-8", "surrogateescape")
        except ValueError:
            return headers
    return tuple((names.get(place, name), value) for place, (name, value) in enumerate(headers))


def read_letter(record: Record[Any, Any]) -> Letter | None:
    """Read the dead-letter headers of a record; None if it has none, or damaged ones."""
    found = {
        name: value.decode("utf-8", "replace")
        for name, value in record.headers
        if value and name.startswith((PREFIX, _OF_BROKERS))
    }
    if ORIGIN_TOPIC not in found and _OF_BROKERS + "topic" in found:
        return _of_broker(record, found)
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
            int(found[_DELIVERIES]) if _DELIVERIES in found else None,
        )
    except (KeyError, ValueError):
        return None


def _of_broker(record: Record[Any, Any], found: Mapping[str, str]) -> Letter | None:
    """A letter that a broker has written. Its headers do not say whether it has copied key and value: if both are
    missing, it is taken as not."""
    is_completed = _ORIGIN_TIMESTAMP in found
    is_copied = record.raw_key is not None or record.raw_value is not None
    unknown = None if is_copied else LeftOut.UNKNOWN
    try:
        failure = Failure(record.timestamp / 1000, _BROKER, found.get(_OF_BROKERS + "message", ""))
        return Letter(
            Origin(
                found[_OF_BROKERS + "topic"],
                int(found[_OF_BROKERS + "partition"]),
                int(found[_OF_BROKERS + "offset"]),
                int(found.get(_ORIGIN_TIMESTAMP, "-1")),
            ),
            found.get(_OF_BROKERS + "group", ""),
            int(found.get(_OF_BROKERS + "delivery.count", "1")),
            failure,
            failure,
            "",
            left_out=None if is_completed else LeftOut(unknown, 0, unknown, LeftOut.UNKNOWN, None),
        )
    except (KeyError, ValueError):
        return None


def with_origin_timestamp(headers: Headers, timestamp: int) -> Headers:
    """Return the headers of a broker's letter that was completed from its source, with the record's timestamp there."""
    return (*headers, (_ORIGIN_TIMESTAMP, str(timestamp).encode()))


def _left_out(text: str) -> LeftOut:
    found = {name: int(number) for name, _, number in (part.partition("=") for part in text.split())}
    value, key, headers = (found.get(name) for name in ("value", "key", "headers"))
    return LeftOut(value=value, kept=found.get("kept", 0), key=key, headers=headers, checksum=found["checksum"])


def _timestamp(text: str) -> int:
    # Old dead letters of records without a timestamp (message format 0) have this word.
    return -1 if text == "None" else int(text)
