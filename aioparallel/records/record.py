"""The record that a handler gets, the outputs that it returns, and names of positions in the log."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from aioparallel.records.wording import kind_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from aioparallel.engine.sources import Source
    from aioparallel.records.deferral import Deferral
    from aioparallel.records.history import History

    # Covariant: a Record with a typed key is accepted as Record[Any, Any].
    K_co = TypeVar("K_co", default=bytes | None, covariant=True)
    V_co = TypeVar("V_co", default=bytes | None, covariant=True)
else:
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)

__all__ = [
    "Failure",
    "Headers",
    "Origin",
    "Outgoing",
    "Produced",
    "Record",
    "TopicPartition",
    "raw_name",
    "readable_name",
    "size_of_headers",
]

Headers = tuple[tuple[str, bytes | None], ...]


def size_of_headers(headers: Headers) -> int:
    """Bytes of names and values."""
    return sum([len(name) + (0 if value is None else len(value)) for name, value in headers])


def raw_name(name: str) -> bytes | None:
    """The bytes of a header's name that is not UTF-8; None for a valid one. Decoding has kept invalid bytes as lone
    surrogates (``surrogateescape``, PEP 383)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        pass
    else:
        return None
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other surrogates, which decoding cannot have made
        return name.encode("utf-8", "surrogatepass")


def readable_name(name: str) -> str:
    """A header's name for people, with bytes that are not UTF-8 as ``\\xff``."""
    raw = None if name.isascii() else raw_name(name)
    return name if raw is None else raw.decode("utf-8", "backslashreplace")


class TopicPartition(NamedTuple):
    """One partition of a topic. Compares and hashes like the plain tuple ``(topic, partition)``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Origin(NamedTuple):
    """The first place of a record that went through retry topics."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 if the record has none."""


class Failure(NamedTuple):
    """One failed attempt, without the exception object, which would keep the handler's frames alive."""

    at: float
    """Seconds since the epoch."""
    type: str
    """The exception's class with its module; without it for builtins."""
    message: str
    """The exception's text, at most 1,000 characters."""


@dataclass(slots=True)
class Outgoing:
    """A record to be produced, as a handler returns it.

    ``topic``: its topic. ``key``, ``value``: bytes or None. ``headers``: pairs of name and bytes. A name with
    surrogates from an UndecodableRecord is written as the bytes it was read from.
    ``partition``: None chooses it by the key like Kafka's Java producer (murmur2); a record without key goes to any
    partition. ``timestamp``: milliseconds since the epoch; None: the time of sending.

    Raises TypeError at once for wrong types. Attributes may be changed until the handler returns it; then they are
    checked again.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        value, key = self.value, self.key
        # For speed, only outputs that may be wrong are checked in detail.
        if (
            type(self.topic) is not str
            or not self.topic
            or (value is not None and type(value) is not bytes)
            or (key is not None and type(key) is not bytes)
            or self.headers != ()
            or self.partition is not None
            or self.timestamp is not None
        ):
            _check_outgoing(self)

    check = __post_init__
    """Raises TypeError for attributes that cannot be produced."""


def _check_outgoing(outgoing: Outgoing) -> None:
    topic: object = outgoing.topic
    if not (isinstance(topic, str) and topic):
        raise TypeError(f"Outgoing(topic={topic!r}): must be the topic's name, a text that is not empty")
    parts: tuple[tuple[str, object], ...] = (("value", outgoing.value), ("key", outgoing.key))
    for name, found in parts:
        if not isinstance(found, bytes | None):
            raise TypeError(
                f"Outgoing to {topic!r}: {name} is {kind_of(found)}, it must be bytes or None; "
                "encode it, e.g. json.dumps(...).encode()"
            )
    headers: object = outgoing.headers
    if not isinstance(headers, tuple | list) or not all(_is_header(header) for header in headers):
        raise TypeError(
            f'Outgoing to {topic!r}: headers must be pairs of a text and bytes or None, e.g. (("trace", b"1"),)'
        )
    numbers: tuple[tuple[str, object], ...] = (("partition", outgoing.partition), ("timestamp", outgoing.timestamp))
    for name, found in numbers:
        if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 0):
            raise TypeError(f"Outgoing to {topic!r}: {name}={found!r} must be a whole number, 0 or more, or None")


def _is_header(header: object) -> bool:
    return (
        isinstance(header, tuple | list)
        and len(header) == 2
        and isinstance(header[0], str)
        and isinstance(header[1], bytes | None)
    )


class Produced(NamedTuple):
    """Where the broker has stored an :class:`Outgoing`."""

    topic: str
    partition: int
    offset: int
    """-1 if the broker acknowledged a resent batch and no longer knows its offset."""
    timestamp: int
    """Milliseconds since the epoch."""


class Record(Generic[K_co, V_co]):
    """One Kafka record, as the handler sees it.

    ``topic``, ``partition``, ``offset``: its place in the log.
    ``key``, ``value``: raw bytes, or None if the record has none. With ``key_deserializer`` or ``value_deserializer``
    these are deserialised, and ``raw_key`` and ``raw_value`` are the bytes.
    ``timestamp``: milliseconds since the epoch; -1 without one (message format 0).
    ``headers``: pairs of name and raw bytes, in order. A record with a name that is not UTF-8 is never passed to a
    handler: it fails with UndecodableRecord.

    Generic for type checkers: ``Record[str, Order]`` has the types that deserialisers return; ``Record`` is raw.
    Records compare by identity; ``(topic, partition, offset)`` identifies one permanently.

    The underscored slots belong to the engine: the record's source (one assignment of its partition), the key of its
    lane (None: no order), the next record in the lane, its size in bytes, how often it was parked, and its history.
    """

    __slots__ = (
        "_history",
        "_lane",
        "_next",
        "_parks",
        "_raw",
        "_size",
        "_source",
        "headers",
        "key",
        "offset",
        "partition",
        "timestamp",
        "topic",
        "value",
    )

    topic: str
    partition: int
    offset: int
    key: K_co
    value: V_co
    headers: Headers
    timestamp: int
    _source: Source
    _lane: Hashable
    _next: Record[Any, Any] | None
    _size: int
    _parks: int
    _history: History | None
    _raw: tuple[bytes | None, bytes | None]

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: K_co = None,  # type: ignore[assignment]
        value: V_co = None,  # type: ignore[assignment]
        headers: Headers = (),
        timestamp: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self._parks = 0
        self._history = None
        self._size = sum(len(part) for part in (key, value) if isinstance(part, bytes)) + size_of_headers(headers)

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def place(self) -> str:
        """Topic, partition and offset as text."""
        return f"{self.topic}-{self.partition} offset {self.offset}"

    @property
    def attempt(self) -> int:
        """1 at the first call of the handler, plus 1 for each retry, also through retry topics."""
        history = self._history
        return 1 + self._parks + (history.attempts_before - history.idle_parks if history else 0)

    @property
    def delivery_count(self) -> int:
        """In a share group: how often the record was delivered, to any member, this time included. Else 1."""
        # Only records that were delivered before have a history because of that.
        return self._history.delivery_count if self._history else 1

    @property
    def first_failure(self) -> Failure | None:
        """The first failed attempt; None if none has failed."""
        return self._history.first_failure if self._history else None

    @property
    def last_failure(self) -> Failure | None:
        """The latest failed attempt; None if none has failed."""
        return self._history.last_failure if self._history else None

    @property
    def origin(self) -> Origin:
        """The record's first place: its own, or for a record of a retry topic its place before that."""
        if self._history and self._history.origin:
            return self._history.origin
        return Origin(self.topic, self.partition, self.offset, self.timestamp)

    @property
    def raw_key(self) -> bytes | None:
        """The key's bytes before deserialisation."""
        return self._raw[0] if hasattr(self, "_raw") else self.key  # type: ignore[return-value]

    @property
    def raw_value(self) -> bytes | None:
        """The value's bytes before deserialisation."""
        return self._raw[1] if hasattr(self, "_raw") else self.value  # type: ignore[return-value]

    def defer(self, timeout: float) -> Deferral:
        """Complete the record later than the handler's return, with the handle that this returns.

        Until then the record counts as in flight and its lane waits. If the handle is not used within ``timeout``
        seconds after the handler returned, the record fails with ``DeferralTimeout``. Call it once an attempt, in the
        handler.
        """
        from aioparallel.records.deferral import defer  # noqa: PLC0415 - records know the engine for types only

        return defer(self, timeout)

    def __repr__(self) -> str:
        # Key and value may be large or secret.
        return f"<Record {self.place} attempt {self.attempt}>"
