"""The options of a consumer. They are checked together when constructed, and frozen.

``Options`` is the only list of them. Signatures, ``help()``, docs/reference.md and the TypedDicts below it are made
from it. A wrong option raises ConfigurationError before anything is connected. The error names the option, its value
and what is allowed.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, cast

from aioparallel.config.callables import check_plain
from aioparallel.config.extension import Extension, overrides
from aioparallel.config.group_protocol import (
    BROKERS_SESSION,
    HEARTBEAT_INTERVAL,
    OF_BROKERS,
    SESSION_TIMEOUT,
    check_group_protocol,
    given_for_classic,
)
from aioparallel.config.handling import (
    Handling,
    Middleware,
    OrderBy,
    Ordering,
    Resource,
    check_choice,
    check_count,
    check_time,
)
from aioparallel.config.option_docs import documented
from aioparallel.config.policies import Deduplicate, FailurePolicy, Producing, Transactions
from aioparallel.config.security import Security
from aioparallel.config.security.secret import Hidden, hidden
from aioparallel.config.state import State
from aioparallel.config.unknown_options import no_such_option
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = [
    "Deserializer",
    "OptionFields",
    "Options",
    "PlainFields",
]

Deserializer = Callable[[bytes], object]
StartAt = dt.datetime | Mapping[TopicPartition, int]

# Seconds for the rest of a rebalance: the drain, the heartbeat at which a member learns of it and the last commit must
# leave this much of rebalance_timeout.
_SETTLE_RESERVE = 1.0


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Handling):
    """The options of a consumer. Times are seconds. Wrong options raise ConfigurationError."""

    # -- Limits ---------------------------------------------------------------------------------------------

    max_buffered_bytes: int = 64 * 1024 * 1024
    """Maximum size of the buffered records: keys, values and headers, in bytes. At this size the consumer fetches no
    more. A fetch asks for as many records as should fit, by the mean size of earlier ones, and for at least one. Larger
    records may exceed the limit, by at most what the client has read already (``max_partition_fetch_bytes`` for each
    partition)."""

    # -- Records and outputs --------------------------------------------------------------------------------

    key_deserializer: Deserializer | None = None
    """A function of the key's bytes that returns ``record.key``. The order still follows the bytes. If it raises, the
    record fails with DeserializationError. It is not called for a record without a key."""
    value_deserializer: Deserializer | None = None
    """A function of the value's bytes that returns ``record.value``. If it raises, the record fails with
    DeserializationError. It is not called for a record without a value."""
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What happens to a record that fails. **The default retries it forever.**"""
    producing: Producing = field(default_factory=Producing)
    """How the outputs of handlers and dead letters are produced."""
    deduplicate: Deduplicate | None = None
    """Skips copies of records that were handled before."""
    state: State[Any] | None = None
    """Keeps a value for each key, in memory and in two topics."""

    # -- Commits --------------------------------------------------------------------------------------------

    commits: Transactions | Extension | None = None
    """None: at least once. The brokers acknowledge the outputs, then the offsets are committed. ``Transactions(...)``:
    offsets and outputs are committed together, in Kafka transactions. An ``aioparallel.stores.sql.SqlStore``: offsets
    and results are committed together, in the transactions of a database."""
    commit_interval: float = 1.0
    """Seconds between commits while records complete. Small values send more requests; with large ones more records run
    again after a crash."""
    commit_after: int = 10_000
    """Number of completed records after which the consumer commits before ``commit_interval`` is over."""
    commit_timeout: float = 5.0
    """Seconds after which a commit request counts as failed. The next one contains its offsets again."""
    when_map_is_full: Literal["continue", "block"] = "continue"
    """What happens when the offset map does not fit into the commit's metadata. ``"continue"``: go on; after a crash
    the records above the part that fits run again. ``"block"``: start no record above that part until the map fits.
    ``Transactions`` always block."""
    offset_map_formats: Literal["all", "java"] = "all"
    """``"java"``: write only formats that the Java Parallel Consumer reads."""

    # -- Where reading starts and ends ----------------------------------------------------------------------

    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where a partition starts that has no committed offset, or one beyond the end of the log. ``"error"`` ends the
    run. If retention has deleted the records at the committed offset, reading goes on at the beginning of the log, also
    with ``"latest"``: those records are newer, and none of them was handled."""
    auto_offset_reset_new_partitions: Literal["earliest", "latest", "error"] = "earliest"
    """Where a partition starts that was added to its topic after the group began to read it. A partition counts as new
    if its number is above all partitions of its topic that have a committed offset. ``"latest"`` misses the records
    that are produced before the consumer learns of the partition. ``auto_offset_reset`` applies instead to a topic
    without any committed offset and to a partition whose committed offset has expired. If that option is ``"error"``, a
    new partition ends the run as well."""
    start_at: StartAt | None = None
    """Where partitions start that have no committed offset yet. An aware datetime: at the first record with that
    timestamp or a later one. A mapping of offsets by partition: there; other partitions follow ``auto_offset_reset`` or
    ``auto_offset_reset_new_partitions``."""
    until: Literal["end"] | None = None
    """``"end"``: read up to the end offsets at the start of the run, commit, and return. With ``read_committed`` these
    are the last stable offsets: records behind an open transaction are not waited for. None: run until ``stop()``."""
    skip_unreadable: Collection[tuple[str, int, int]] = ()
    """Batches to skip if they cannot be read, each as ``(topic, partition, offset)``: the problem ``unreadable`` names
    them. **Their records are lost.** Each skipped batch is logged and counted in ``stats().skipped_batches``. A batch
    that can be read is not skipped. An unreadable batch that is not listed here stops its partition, and the other
    partitions go on."""

    # -- Group membership -----------------------------------------------------------------------------------

    group_protocol: Literal["classic", "consumer", "auto"] = "auto"
    """How members share the partitions. ``"classic"``: in a rebalance all members give up all their partitions.
    ``"consumer"``: the brokers assign, and a member gives up only the partitions that move (KIP-848); this needs Kafka
    4.0 or later. ``"auto"``: the second one, or the first one if the brokers refuse the second for this group, or if an
    option is given that is for the first: ``session_timeout``, ``heartbeat_interval``, and in ``client_options``
    ``partition_assignment_strategy`` and ``group_instance_id``. With a ``group_remote_assignor`` none of them chooses
    the first."""
    group_remote_assignor: str | None = None
    """With ``group_protocol="consumer"`` or ``"auto"``, the brokers' assignor: ``"uniform"``, ``"range"``, or another
    one that they have. None: their default, the first of ``group.consumer.assignors``."""
    session_timeout: float | None = None
    """Seconds without a heartbeat after which the group removes this member. None: 30 in the protocol ``"classic"``. In
    the protocol ``"consumer"`` the brokers decide it, by ``group.consumer.session.timeout.ms``."""
    heartbeat_interval: float | None = None
    """Seconds between heartbeats. A member learns of a rebalance at its next heartbeat. At most a third of
    ``session_timeout``. None: 3, or that third if it is shorter, in the protocol ``"classic"``. In the protocol
    ``"consumer"`` the brokers decide it, by ``group.consumer.heartbeat.interval.ms``."""
    rebalance_timeout: float = 60.0
    """Seconds that members have to give up their partitions in a rebalance."""

    # -- Connection -----------------------------------------------------------------------------------------

    connect_timeout: float = 30.0
    """Seconds for connecting to the brokers and looking up the topics."""
    stalled_after: float = 60.0
    """Seconds without a record from a partition that has more to read, after which ``health()`` reports it."""
    stuck_after: float = 60.0
    """Seconds after which ``health()`` reports a record whose handler still runs (without ``handler_timeout``), that
    still fails, or that waits for a limited place such as a host of ``http_handler``."""
    security: Security | None = None
    """TLS, a login, or both. The producer uses it as well. None: neither."""
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Options of the Kafka client, such as ``isolation_level``, ``client_id`` and fetch sizes. Also TLS and SASL
    options that ``security`` does not have, such as Kerberos."""

    # -- Extensions --

    extensions: Sequence[Extension] = ()
    """What is added to the consumer. Hooks of several extensions are called in this order."""

    @property
    def protocol(self) -> Literal["classic", "consumer", "auto"]:
        """``group_protocol``, or ``"classic"`` if that is ``"auto"`` and another option is for the classic protocol."""
        return "classic" if self.chooses_classic else self.group_protocol

    @property
    def chooses_classic(self) -> list[str]:
        """The names of the options because of which ``"auto"`` is ``"classic"``."""
        if self.group_protocol != "auto" or self.group_remote_assignor is not None:
            return []
        return given_for_classic(self.times, self.client_options)

    @property
    def times(self) -> dict[str, float]:
        """``session_timeout`` and ``heartbeat_interval``, if they are given."""
        return {name: time for name in OF_BROKERS if (time := getattr(self, name)) is not None}

    @property
    def session(self) -> float:
        """Seconds: ``session_timeout``, or its default in the classic protocol."""
        return SESSION_TIMEOUT if self.session_timeout is None else self.session_timeout

    @property
    def heartbeat(self) -> float:
        """Seconds: ``heartbeat_interval``, or its default in the classic protocol."""
        given = self.heartbeat_interval
        return min(HEARTBEAT_INTERVAL, self.session / 3) if given is None else given

    @property
    def connecting_options(self) -> dict[str, object]:
        """``client_options`` with the options of ``security`` and the isolation level that commits and state need."""
        committed = isinstance(self.commits, Transactions) or self.state is not None
        read = {"isolation_level": "read_committed"} if committed else {}
        secure = {} if self.security is None else self.security.client_options()
        return {**self.client_options, **read, **secure}

    def __post_init__(self) -> None:
        Handling.__post_init__(self)
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        for name in ("max_buffered_bytes", "commit_after"):
            check_count(name, getattr(self, name))
        _check_times(self)
        _check_start(self)
        _check_skip(self)
        _check_kinds(self)
        check_group_protocol(self.group_protocol, self.group_remote_assignor, self.times, self.client_options)
        _check_deduplicate(self)
        _check_transactions(self)
        _check_state(self)
        object.__setattr__(self, "client_options", hidden(self.client_options))

    @classmethod
    def of(cls, given: OptionFields) -> Options:
        """Make options from keywords. Raises ConfigurationError; for an unknown name it suggests the nearest one."""
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise no_such_option(name, given[name], known)  # type: ignore[literal-required]
        if isinstance(given.get("commits"), Transactions) and "commit_interval" in given:
            raise ConfigurationError("commit_interval", given["commit_interval"], _USE_THE_INTERVAL)
        return cls(**given)


# -- Written by `make docs` from the dataclass above: do not edit ---------------------------------------


class PlainFields(TypedDict, total=False):
    """The fields of Options that do not change the type of a record's key or value."""

    ordering: Ordering
    order_by: OrderBy | None
    max_concurrency: int
    max_buffered: int
    max_parked: int | None
    max_buffered_bytes: int
    handler_timeout: float | None
    drain_timeout: float
    middleware: Sequence[Middleware]
    resources: Mapping[str, Resource]
    isolation: Literal["context", "task"]
    failures: FailurePolicy
    producing: Producing
    deduplicate: Deduplicate | None
    state: State[Any] | None
    commits: Transactions | Extension | None
    commit_interval: float
    commit_after: int
    commit_timeout: float
    when_map_is_full: Literal["continue", "block"]
    offset_map_formats: Literal["all", "java"]
    auto_offset_reset: Literal["earliest", "latest", "error"]
    auto_offset_reset_new_partitions: Literal["earliest", "latest", "error"]
    start_at: StartAt | None
    until: Literal["end"] | None
    skip_unreadable: Collection[tuple[str, int, int]]
    group_protocol: Literal["classic", "consumer", "auto"]
    group_remote_assignor: str | None
    session_timeout: float | None
    heartbeat_interval: float | None
    rebalance_timeout: float
    connect_timeout: float
    stalled_after: float
    stuck_after: float
    security: Security | None
    client_options: Mapping[str, object]
    extensions: Sequence[Extension]


class OptionFields(PlainFields, total=False):
    """The fields of Options."""

    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


# -- Written by hand again ------------------------------------------------------------------------------

_CHOICES: dict[str, tuple[object, ...]] = {
    "group_protocol": ("classic", "consumer", "auto"),
    "auto_offset_reset": ("earliest", "latest", "error"),
    "auto_offset_reset_new_partitions": ("earliest", "latest", "error"),
    "until": (None, "end"),
    "when_map_is_full": ("continue", "block"),
    "offset_map_formats": ("all", "java"),
}


def _check_times(options: Options) -> None:
    for name in (
        "commit_interval",
        "commit_timeout",
        "connect_timeout",
        "stalled_after",
        "stuck_after",
        "rebalance_timeout",
        *options.times,
    ):
        check_time(name, getattr(options, name))
    if options.heartbeat_interval is not None and options.heartbeat_interval * 3 > options.session:
        raise ConfigurationError(
            "heartbeat_interval",
            options.heartbeat_interval,
            f"must be at most a third of session_timeout ({options.session:g} s), "
            "or one lost heartbeat ends the session",
        )
    # In the protocol "consumer" the time begins with the answer that tells the member, not before.
    learns = 0.0 if options.group_protocol == "consumer" else options.heartbeat
    usable = options.rebalance_timeout - learns - options.commit_timeout - _SETTLE_RESERVE
    if options.drain_timeout > usable:
        heartbeat = f"heartbeat_interval ({learns:g}) - " if learns else ""
        raise ConfigurationError(
            "drain_timeout",
            options.drain_timeout,
            f"must be at most {max(usable, 0):g} s here: rebalance_timeout ({options.rebalance_timeout:g}) - "
            f"{heartbeat}commit_timeout ({options.commit_timeout:g}) - {_SETTLE_RESERVE:g}; lower it or raise "
            "rebalance_timeout",
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
            if not _is_partition(place) or not _is_number(offset):
                raise ConfigurationError(
                    "start_at",
                    {place: offset},
                    "must map TopicPartition(topic, partition) to an offset of 0 or more",
                )
    else:
        raise ConfigurationError("start_at", start, "must be an aware datetime or a mapping of offsets")


def _check_skip(options: Options) -> None:
    given: object = options.skip_unreadable
    if not isinstance(given, list | tuple | set | frozenset) or not all(_is_batch(one) for one in given):
        raise ConfigurationError(
            "skip_unreadable",
            given,
            'must be batches, each as (topic, partition, offset), e.g. [("orders", 3, 4711)]: the problem "unreadable" '
            "names them",
        )


def _is_batch(place: object) -> bool:
    return isinstance(place, tuple) and len(place) == 3 and _is_partition(place[:2]) and _is_number(place[2])


def _is_partition(place: object) -> bool:
    return isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and _is_number(place[1])


def _is_number(value: object) -> bool:
    """Whether it may be the number of a partition, or an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_kinds(options: Options) -> None:
    if not isinstance(options.client_options, Mapping):
        raise ConfigurationError("client_options", options.client_options, "must be a mapping of option names")
    _check_security(options)
    checked_extensions(options.extensions)
    for name, kind in (("failures", FailurePolicy), ("producing", Producing)):
        if not isinstance(getattr(options, name), kind):
            raise ConfigurationError(name, getattr(options, name), f"must be a {kind.__name__}")
    for name in ("key_deserializer", "value_deserializer"):
        function = getattr(options, name)
        if function is not None:
            check_plain(function, name, "bytes")


def _check_security(options: Options) -> None:
    if options.security is None:
        return
    if not isinstance(options.security, Security):
        raise ConfigurationError("security", Hidden(options.security), 'must be a Security: Security("SASL_SSL", ...)')
    for name in options.client_options:
        if str(name).startswith("sasl_") or name in ("security_protocol", "ssl_context"):
            raise ConfigurationError(
                f"client_options[{name!r}]", Hidden(options.client_options[name]), "cannot be combined with security"
            )


def _check_deduplicate(options: Options) -> None:
    policy, failures = options.deduplicate, options.failures
    if policy is None:
        return
    if not isinstance(policy, Deduplicate):
        raise ConfigurationError("deduplicate", policy, 'must be a Deduplicate: Deduplicate("a compacted topic")')
    if policy.topic == failures.dead_letter or policy.topic in failures.retry_topics:
        raise ConfigurationError(
            "Deduplicate topic", policy.topic, "is a topic of the failure policy; it needs its own"
        )
    if policy.by != "key":
        return
    instead = 'Deduplicate(..., by="record") goes with it'
    if failures.dead_letter is not None or failures.retry_topics:
        raise ConfigurationError(
            "Deduplicate by",
            "key",
            "cannot be combined with dead letters or retry topics: a record that comes back from there is older than "
            f"what its key has seen since, and would be left out; {instead}",
        )
    if options.ordering is Ordering.UNORDERED or (options.ordering is Ordering.KEY and options.order_by is not None):
        raise ConfigurationError(
            "Deduplicate by",
            "key",
            "needs the records of a key one after the other (ordering KEY without order_by, or PARTITION): else a "
            f"later one may be complete before an earlier one, which would then be left out; {instead}",
        )


_USE_THE_INTERVAL = "cannot be combined with Transactions: use its interval"
_TRANSACTION_CHECK = 10.0
"""Seconds between a broker's checks for expired transactions
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``)."""


def _check_transactions(options: Options) -> None:
    policy = options.commits
    if policy is None or (isinstance(policy, Extension) and overrides(policy, Extension, "commit_strategy")):
        return
    if not isinstance(policy, Transactions):
        raise ConfigurationError(
            "commits",
            policy,
            "must be None, Transactions(...), or an Extension with a commit_strategy (SqlStore is one)",
        )
    if options.commit_interval != Options.__dataclass_fields__["commit_interval"].default:
        raise ConfigurationError("commit_interval", options.commit_interval, _USE_THE_INTERVAL)
    _check_transaction_timeout(options, policy.transaction_timeout)
    if options.deduplicate is not None:
        raise ConfigurationError(
            "deduplicate",
            options.deduplicate,
            "cannot be combined with Transactions: what was seen is not written in the transaction. Let the stage "
            "before write in transactions as well, or leave one of them out",
        )
    _check_isolation(options, "Transactions")


def _check_transaction_timeout(options: Options, seconds: float) -> None:
    """Check that the brokers abort the transaction of a dead member before its session ends, in each protocol that the
    member may get."""
    protocol, needed = options.protocol, seconds + _TRANSACTION_CHECK
    sessions: list[tuple[float, str]] = []
    if protocol != "consumer":
        sessions.append((options.session, f"session_timeout ({options.session:g})"))
    if protocol != "classic":
        theirs = f"the session of the brokers ({OF_BROKERS['session_timeout']}, {BROKERS_SESSION:g} s by default)"
        sessions.append((BROKERS_SESSION, theirs))
    shortest, what = min(sessions)
    if needed <= shortest:
        return
    would_be_classic = protocol == "auto" and options.group_remote_assignor is None
    advice = "lower it"
    if protocol == "classic" or would_be_classic or (protocol == "auto" and needed <= BROKERS_SESSION):
        advice += f", or raise session_timeout to {needed:g} s"
    if would_be_classic:
        advice += ", and with it choose the classic group protocol"
    raise ConfigurationError(
        "Transactions transaction_timeout", seconds, f"must be at most {what} - {_TRANSACTION_CHECK:g}: {advice}"
    )


def _check_isolation(options: Options, beside: str) -> None:
    level = options.client_options.get("isolation_level", "read_committed")
    if level != "read_committed":
        raise ConfigurationError(
            "client_options['isolation_level']", level, f"must be read_committed, or left out, beside {beside}"
        )


def _check_state(options: Options) -> None:
    state = options.state
    if state is None:
        return
    if not isinstance(state, State):
        raise ConfigurationError("state", state, "must be a State: State(initial=, apply=, dump=, load=)")
    _check_isolation(options, "state")
    if options.ordering is Ordering.UNORDERED or options.order_by is not None:
        found = "order_by" if options.order_by is not None else "ordering"
        raise ConfigurationError(
            found,
            getattr(options, found),
            "cannot be combined with state: the records of a key must run one after the other, as they do with "
            "ordering KEY without order_by, or PARTITION",
        )
    if options.failures.retry_topics:
        raise ConfigurationError(
            "FailurePolicy retry_topics",
            dict(options.failures.retry_topics),
            "cannot be combined with state: a record that comes back from there is another partition's, and finds "
            "another state; use retry, and dead_letter",
        )
    if options.deduplicate is not None:
        raise ConfigurationError(
            "deduplicate",
            options.deduplicate,
            "cannot be combined with state: let apply know what it has seen, or leave one of them out",
        )
    if options.commits is not None and not isinstance(options.commits, Transactions):
        raise ConfigurationError(
            "commits",
            options.commits,
            "cannot be combined with state: keep it in that database, or use Transactions",
        )


def checked_topics(topics: object) -> tuple[str, ...] | re.Pattern[str]:
    """The topics to read, as names or as a pattern. Raises ConfigurationError for anything else."""
    if isinstance(topics, re.Pattern):
        return topics
    names = (topics,) if isinstance(topics, str) else topics
    if (
        isinstance(names, list | tuple | set | frozenset)
        and names
        and all(isinstance(n, str) and n.strip() for n in names)
    ):
        return tuple(dict.fromkeys(names))
    raise ConfigurationError("topics", topics, "must be a topic's name, several names, or a compiled pattern")


def checked_extensions(given: object) -> tuple[Extension, ...]:
    """The extensions. Raises ConfigurationError for anything else."""
    if isinstance(given, list | tuple) and all(isinstance(one, Extension) for one in given):
        return tuple(given)
    raise ConfigurationError("extensions", given, "must be a list of instances of aioparallel.Extension")


def checked_text(option: str, value: object) -> str:
    """A non-empty text. Raises ConfigurationError for anything else."""
    if isinstance(value, str) and value.strip():
        return value
    raise ConfigurationError(option, value, "must be a non-empty text")
