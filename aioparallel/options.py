"""The options of a consumer: checked once, together, frozen after.

Each wrong option is refused with its name, the value found and what is allowed, before anything is connected.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict, cast

from aioparallel.errors import ConfigurationError
from aioparallel.records import Record, TopicPartition

__all__ = ["OptionFields", "Options", "Ordering"]

OrderBy = Callable[[Record], Hashable]
StartAt = dt.datetime | Mapping[TopicPartition, int]

# Time that a settle needs beside the drain: a member may learn of a rebalance one heartbeat late, then the
# last commit and its acknowledgement must fit (seconds).
_SETTLE_RESERVE = 1.0


class Ordering(enum.Enum):
    """Which records run one after the other."""

    KEY = "key"
    """Records of one partition with equal key bytes; records without a key have no order. The default."""
    PARTITION = "partition"
    """All records of one partition."""
    UNORDERED = "unordered"
    """None: every record may run at any time."""


class OptionFields(TypedDict, total=False):
    """The names and types of :class:`Options`, for constructors that pass them on. See there for meanings."""

    ordering: Ordering
    order_by: OrderBy | None
    max_concurrency: int
    max_buffered: int
    max_buffered_bytes: int
    commit_interval: float
    commit_after: int
    commit_timeout: float
    drain_timeout: float
    retry_delay: float
    auto_offset_reset: Literal["earliest", "latest", "error"]
    start_at: StartAt | None
    until: Literal["end"] | None
    when_map_is_full: Literal["continue", "block"]
    offset_map_formats: Literal["all", "java"]
    isolation: Literal["context", "task"]
    connect_timeout: float
    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    client_options: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a consumer is told. Times are seconds; sizes say records or bytes."""

    ordering: Ordering = Ordering.KEY
    """Which records run one after the other."""
    order_by: OrderBy | None = None
    """A function of the record whose result names its lane within its partition, in place of the key
    (None from it: no order for this record). Needs ``ordering=Ordering.KEY``; must be quick and must not
    raise. Default None: the key's bytes."""
    max_concurrency: int = 100
    """Handlers running at once, at most. 1 is one record after the other; thousands are fine."""
    max_buffered: int = 10_000
    """Records read ahead and not yet started, over all partitions, parked ones included. It is the look-ahead
    past a slow or hot key. Small: lanes run dry; large: memory, and more to fetch again after a crash."""
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of the buffered records. Intake stops when it is reached; it may be
    passed by what one fetch brings."""
    commit_interval: float = 1.0
    """Seconds from one commit to the next when records complete. Small: more requests; large: more records
    run again after a crash."""
    commit_after: int = 10_000
    """Completions after which a commit is made early."""
    commit_timeout: float = 5.0
    """Seconds one commit request may take before it counts as failed (it is sent anew after)."""
    drain_timeout: float = 20.0
    """Seconds that handlers in flight get to end when a partition is given away or the consumer closes; then
    they are cancelled. 0 cancels at once. Must fit in ``rebalance_timeout``."""
    retry_delay: float = 1.0
    """Seconds a record whose handler raised is parked before its next attempt."""
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to start without a committed offset, or when it is outside the log. ``"error"`` ends the run."""
    start_at: StartAt | None = None
    """Where partitions start whose group has committed nothing yet: an aware datetime (the first record at or
    after it), or offsets by partition (others follow ``auto_offset_reset``)."""
    until: Literal["end"] | None = None
    """``"end"``: run up to the end offsets at the start of the run, commit, and return."""
    when_map_is_full: Literal["continue", "block"] = "continue"
    """When the offset map does not fit the commit's metadata: go on (after a crash the records above what
    fitted run again), or start nothing above it until it fits."""
    offset_map_formats: Literal["all", "java"] = "all"
    """``"java"``: write only formats that the Java Parallel Consumer reads."""
    isolation: Literal["context", "task"] = "context"
    """``"context"``: each record runs in its own copy of the context. ``"task"``: in an asyncio task of its own,
    for code that keys state by ``asyncio.current_task()``; costs several microseconds a record."""
    connect_timeout: float = 30.0
    """Seconds for connecting and for looking up the topics."""
    session_timeout: float = 30.0
    """Seconds without a heartbeat after which the group takes this member for dead."""
    heartbeat_interval: float = 3.0
    """Seconds between heartbeats; a rebalance is noticed at the next one."""
    rebalance_timeout: float = 60.0
    """Seconds the members have to give up their partitions in a rebalance."""
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Passed on to the Kafka client: TLS, SASL, ``isolation_level``, fetch sizes."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_counts(self)
        _check_times(self)
        _check_start(self)
        _check_order_by(self)

    @classmethod
    def of(cls, given: OptionFields) -> Options:
        """Make options from keywords; an unknown name is refused with the nearest known one."""
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(known))}"
                raise ConfigurationError(name, given[name], f"there is no such option; {hint}")  # type: ignore[literal-required]
        return cls(**given)


_CHOICES: dict[str, tuple[object, ...]] = {
    "ordering": tuple(Ordering),
    "auto_offset_reset": ("earliest", "latest", "error"),
    "until": (None, "end"),
    "when_map_is_full": ("continue", "block"),
    "offset_map_formats": ("all", "java"),
    "isolation": ("context", "task"),
}


def _check_choices(options: Options) -> None:
    for name, allowed in _CHOICES.items():
        value = getattr(options, name)
        if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
            raise ConfigurationError(name, value, "must be one of " + ", ".join(map(str, allowed)))
    if not isinstance(options.client_options, Mapping):
        raise ConfigurationError("client_options", options.client_options, "must be a mapping of option names")


def _check_counts(options: Options) -> None:
    for name in ("max_concurrency", "max_buffered", "max_buffered_bytes", "commit_after"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(name, value, "must be a whole number of at least 1")


def _check_times(options: Options) -> None:
    positive = (
        "commit_interval",
        "commit_timeout",
        "connect_timeout",
        "session_timeout",
        "heartbeat_interval",
    )
    for name in (*positive, "rebalance_timeout", "drain_timeout", "retry_delay"):
        value = getattr(options, name)
        least_is_open = name not in ("drain_timeout", "retry_delay")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e7:
            raise ConfigurationError(name, value, "must be seconds, from 0 to 10,000,000")
        if least_is_open and value == 0:
            raise ConfigurationError(name, value, "must be more than 0 seconds")
    if options.heartbeat_interval * 3 > options.session_timeout:
        raise ConfigurationError(
            "heartbeat_interval",
            options.heartbeat_interval,
            f"must be at most a third of session_timeout ({options.session_timeout:g} s), "
            "or one lost heartbeat ends the session",
        )
    usable = options.rebalance_timeout - options.heartbeat_interval - options.commit_timeout - _SETTLE_RESERVE
    if options.drain_timeout > usable:
        raise ConfigurationError(
            "drain_timeout",
            options.drain_timeout,
            f"must be at most {max(usable, 0):g} s here: rebalance_timeout ({options.rebalance_timeout:g}) - "
            f"heartbeat_interval ({options.heartbeat_interval:g}) - commit_timeout "
            f"({options.commit_timeout:g}) - {_SETTLE_RESERVE:g}; lower it or raise rebalance_timeout",
        )


def _check_start(options: Options) -> None:
    start = options.start_at
    if start is None:
        return
    if isinstance(start, dt.datetime):
        if start.tzinfo is None:
            raise ConfigurationError("start_at", start, "must have a time zone, e.g. datetime.now(timezone.utc)")
    elif isinstance(start, Mapping):
        for place, offset in cast("Mapping[object, object]", start).items():
            if not _is_partition(place) or not isinstance(offset, int) or offset < 0:
                raise ConfigurationError(
                    "start_at",
                    {place: offset},
                    "must map TopicPartition(topic, partition) to an offset of 0 or more",
                )
    else:
        raise ConfigurationError("start_at", start, "must be an aware datetime or a mapping of offsets")


def _is_partition(place: object) -> bool:
    return isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and isinstance(place[1], int)


def _check_order_by(options: Options) -> None:
    if options.order_by is None:
        return
    if not callable(options.order_by):
        raise ConfigurationError("order_by", options.order_by, "must be a function of the record")
    if options.ordering is not Ordering.KEY:
        raise ConfigurationError("order_by", options.order_by, f"needs ordering=Ordering.KEY, found {options.ordering}")


def checked_topics(topics: object) -> tuple[str, ...] | re.Pattern[str]:
    """The topics to read, as names or as a pattern; refuses anything else."""
    if isinstance(topics, re.Pattern):
        return topics
    names = (topics,) if isinstance(topics, str) else topics
    if isinstance(names, list | tuple | set | frozenset) and names and all(isinstance(n, str) and n for n in names):
        return tuple(dict.fromkeys(names))
    raise ConfigurationError("topics", topics, "must be a topic's name, several names, or a compiled pattern")


def checked_text(option: str, value: object) -> str:
    """A non-empty text option."""
    if isinstance(value, str) and value.strip():
        return value
    raise ConfigurationError(option, value, "must be a non-empty text")
