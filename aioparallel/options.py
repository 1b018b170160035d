"""The options of a consumer: checked once, together, frozen after.

Each wrong option is refused with its name, the value found and what is allowed, before anything is connected.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import inspect
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, cast

from aioparallel.errors import ConfigurationError
from aioparallel.policies import FailurePolicy, Producing
from aioparallel.records import Record, TopicPartition

__all__ = [
    "CallNext",
    "Deserializer",
    "Middleware",
    "OptionFields",
    "Options",
    "OrderBy",
    "Ordering",
    "PlainFields",
    "Resource",
]

OrderBy = Callable[[Record[Any, Any]], Hashable]
Deserializer = Callable[[bytes], object]
CallNext = Callable[[Record[Any, Any]], Awaitable[object]]
Middleware = Callable[[Record[Any, Any], CallNext], Awaitable[object]]
Resource = Callable[[], AbstractAsyncContextManager[object]]
StartAt = dt.datetime | Mapping[TopicPartition, int]

# Time that a settle needs beside the drain: a member may learn of a rebalance one heartbeat late, then the
# last commit and its acknowledgement must fit (seconds).
_SETTLE_RESERVE = 1.0


# Records that may be parked unless max_parked says otherwise.
_PARKED = 10_000


class Ordering(enum.Enum):
    """Which records run one after the other."""

    KEY = "key"
    """Records of one partition with equal key bytes; records without a key have no order. The default."""
    PARTITION = "partition"
    """All records of one partition."""
    UNORDERED = "unordered"
    """None: every record may run at any time."""


class PlainFields(TypedDict, total=False):
    """:class:`OptionFields` without those that decide what a handler's record holds."""

    ordering: Ordering
    order_by: OrderBy | None
    max_concurrency: int
    max_buffered: int
    max_buffered_bytes: int
    commit_interval: float
    commit_after: int
    commit_timeout: float
    drain_timeout: float
    max_parked: int | None
    handler_timeout: float | None
    failures: FailurePolicy
    producing: Producing
    middleware: Sequence[Middleware]
    resources: Mapping[str, Resource]
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


class OptionFields(PlainFields, total=False):
    """The names and types of :class:`Options`, for constructors that pass them on. See there for meanings."""

    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


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
    """Records read ahead and not yet started, over all partitions. It is the look-ahead past a slow or hot key.
    Small: lanes run dry; large: memory, and more to fetch again after a crash. The last sixteenth (1 to 1,000 records)
    is for partitions that have nothing read ahead; those take turns where they are more than there is room for.
    Records whose start did not count are read ahead once more and may pass it, at most ``max_concurrency`` of them."""
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of the buffered records. Intake stops when it is reached. One fetch asks for as
    many records as still fit by the mean size of those before, and for at least one: the bound is passed by what these
    are larger, at most by what the client has read already (``max_partition_fetch_bytes`` for each partition)."""
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
    max_parked: int | None = None
    """Records that wait for their next attempt, at most, over all partitions. Half of it is reserved for the partitions
    in equal parts, the rest is for whoever comes; a partition that finds no more room starts nothing new, only retries,
    and the others go on. Outputs that fail together may pass it. None: 10,000, or four times ``max_concurrency`` if
    that is more."""
    handler_timeout: float | None = None
    """Seconds after which a handler is cancelled; its record fails with HandlerTimeout. None: never."""
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What happens to a record that fails. **The default tries it again for ever.**"""
    producing: Producing = field(default_factory=Producing)
    """How what handlers return, and dead letters, are produced."""
    key_deserializer: Deserializer | None = None
    """A function of the key's bytes; what it returns is ``record.key``. Lanes still go by the bytes. When it raises,
    the record fails with DeserializationError. Not called for a record without a key."""
    value_deserializer: Deserializer | None = None
    """The same for the value."""
    middleware: Sequence[Middleware] = ()
    """Async functions of a record and ``call_next``, around each attempt, the first outermost: ``return await
    call_next(record)``. They see the record deserialised."""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    """Functions by name that make async context managers, opened with the consumer in this order and closed with it
    in the reverse one: ``{"http": lambda: httpx.AsyncClient()}``. Handlers reach them with ``resource("http")``."""
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
        _check_around(self)

    @property
    def parked_bound(self) -> int:
        """``max_parked``, or what None stands for."""
        return self.max_parked or max(_PARKED, 4 * self.max_concurrency)

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
    given = () if options.max_parked is None else ("max_parked",)
    for name in ("max_concurrency", "max_buffered", "max_buffered_bytes", "commit_after", *given):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(name, value, "must be a whole number of at least 1")
    if options.max_parked is not None and options.max_parked < 2 * options.max_concurrency:
        raise ConfigurationError(
            "max_parked",
            options.max_parked,
            f"must be at least twice max_concurrency ({options.max_concurrency}): all in flight may fail at once",
        )


def _check_times(options: Options) -> None:
    positive = (
        "commit_interval",
        "commit_timeout",
        "connect_timeout",
        "session_timeout",
        "heartbeat_interval",
    )
    given = () if options.handler_timeout is None else ("handler_timeout",)
    for name in (*positive, *given, "rebalance_timeout", "drain_timeout"):
        value = getattr(options, name)
        least_is_open = name != "drain_timeout"
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


def _check_around(options: Options) -> None:
    for name, kind in (("failures", FailurePolicy), ("producing", Producing)):
        if not isinstance(getattr(options, name), kind):
            raise ConfigurationError(name, getattr(options, name), f"must be a {kind.__name__}")
    for name in ("key_deserializer", "value_deserializer"):
        function = getattr(options, name)
        if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
            raise ConfigurationError(name, function, "must be a plain function of bytes")
    if not isinstance(options.middleware, list | tuple) or not all(callable(one) for one in options.middleware):
        raise ConfigurationError("middleware", options.middleware, "must be async functions of a record and call_next")
    if not hasattr(options.resources, "items") or not all(callable(one) for one in options.resources.values()):
        raise ConfigurationError(
            "resources", options.resources, "must map names to functions that make async context managers"
        )


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
