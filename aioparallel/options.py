"""The options of a consumer: checked once, together, frozen after.

Each wrong option is refused with its name, the value found and what is allowed, before anything is connected.
"""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from aioparallel.errors import ConfigurationError
from aioparallel.extension import Extension, overrides
from aioparallel.handling import Handling, HandlingFields, Ordering, check_choice, check_count, check_time
from aioparallel.keyed_state import State
from aioparallel.policies import Deduplicate, FailurePolicy, Producing, Transactions
from aioparallel.records import TopicPartition
from aioparallel.security import Security
from aioparallel.security.secret import Hidden, hidden

__all__ = [
    "Deserializer",
    "OptionFields",
    "Options",
    "PlainFields",
]

Deserializer = Callable[[bytes], object]
StartAt = dt.datetime | Mapping[TopicPartition, int]

# Time that a settle needs beside the drain: a member may learn of a rebalance one heartbeat late, then the
# last commit and its acknowledgement must fit (seconds).
_SETTLE_RESERVE = 1.0


class PlainFields(HandlingFields, total=False):
    """:class:`OptionFields` without those that decide what a handler's record holds."""

    max_buffered_bytes: int
    commit_interval: float
    commit_after: int
    commit_timeout: float
    failures: FailurePolicy
    producing: Producing
    commits: Transactions | Extension | None
    deduplicate: Deduplicate | None
    state: State[Any] | None
    auto_offset_reset: Literal["earliest", "latest", "error"]
    auto_offset_reset_new_partitions: Literal["earliest", "latest", "error"]
    skip_unreadable: Collection[tuple[str, int, int]]
    start_at: StartAt | None
    until: Literal["end"] | None
    when_map_is_full: Literal["continue", "block"]
    offset_map_formats: Literal["all", "java"]
    connect_timeout: float
    stalled_after: float
    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    security: Security | None
    client_options: Mapping[str, object]
    extensions: Sequence[Extension]


class OptionFields(PlainFields, total=False):
    """The names and types of :class:`Options`, for constructors that pass them on. See there for meanings."""

    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Handling):
    """What a consumer is told. Times are seconds; sizes say records or bytes."""

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
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What happens to a record that fails. **The default tries it again for ever.**"""
    producing: Producing = field(default_factory=Producing)
    """How what handlers return, and dead letters, are produced."""
    commits: Transactions | Extension | None = None
    """``Transactions(...)``: positions and outputs are committed together, in Kafka's transactions. A
    ``aioparallel.stores.sql.SqlStore``: positions and results, in a database's. None: outputs are acknowledged first,
    and positions committed then: at least once."""
    deduplicate: Deduplicate | None = None
    """Leave out copies of records that were handled before."""
    state: State[Any] | None = None
    """Keep a value for each key, in memory and in two topics: :class:`~aioparallel.State`."""
    key_deserializer: Deserializer | None = None
    """A function of the key's bytes; what it returns is ``record.key``. Lanes still go by the bytes. When it raises,
    the record fails with DeserializationError. Not called for a record without a key."""
    value_deserializer: Deserializer | None = None
    """The same for the value."""
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to start without a committed offset, or when it is beyond the end of the log. ``"error"`` ends the run. A
    position behind the beginning of the log (retention was faster) goes on at the beginning, also under ``"latest"``:
    what is left there came after it, and nobody has handled it."""
    auto_offset_reset_new_partitions: Literal["earliest", "latest", "error"] = "earliest"
    """The same for partitions that were added since the group began with their topic: those with a number above every
    partition of it that the group has committed. Records are there before a consumer hears of such a partition, and
    ``"latest"`` passes over them. Topics of which nothing is committed, and partitions whose committed offset has
    expired, follow ``auto_offset_reset``; where that is ``"error"``, new partitions end the run, too."""
    skip_unreadable: Collection[tuple[str, int, int]] = ()
    """Batches that are passed over where they cannot be read, each as ``(topic, partition, offset)``: the one that the
    problem ``unreadable`` names, by the offset that it bears. **Their records are lost.** Each is logged and counted in
    ``stats().skipped_batches``; nothing else is skipped, nor a batch of these that can be read. One that is not named
    here holds its partition, and the others go on."""
    start_at: StartAt | None = None
    """Where partitions start whose group has committed nothing yet: an aware datetime (the first record at or
    after it), or offsets by partition (others follow ``auto_offset_reset``, or that for new partitions)."""
    until: Literal["end"] | None = None
    """``"end"``: run up to the end offsets at the start of the run, commit, and return. Under ``read_committed`` these
    are the ends of what is decided: records behind an open transaction are not waited for."""
    when_map_is_full: Literal["continue", "block"] = "continue"
    """When the offset map does not fit the commit's metadata: go on (after a crash the records above what
    fitted run again), or start nothing above it until it fits, as it always is with ``Transactions``."""
    offset_map_formats: Literal["all", "java"] = "all"
    """``"java"``: write only formats that the Java Parallel Consumer reads."""
    connect_timeout: float = 30.0
    """Seconds for connecting and for looking up the topics."""
    stalled_after: float = 60.0
    """Seconds without a record from a partition that has more to read, after which ``health()`` tells of it."""
    session_timeout: float = 30.0
    """Seconds without a heartbeat after which the group takes this member for dead."""
    heartbeat_interval: float = 3.0
    """Seconds between heartbeats; a rebalance is noticed at the next one."""
    rebalance_timeout: float = 60.0
    """Seconds the members have to give up their partitions in a rebalance."""
    security: Security | None = None
    """How a cluster is reached that wants TLS, a login, or both; for the producer too."""
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Passed on to the Kafka client: ``isolation_level``, fetch sizes, ``client_id``; TLS and SASL too, where
    ``security`` has not what is needed, as Kerberos."""
    extensions: Sequence[Extension] = ()
    """What is added to the consumer, each a :class:`~aioparallel.Extension`. Hooks are called in this order."""

    @property
    def connecting_options(self) -> dict[str, object]:
        """``client_options``, with what ``security`` says."""
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
        _check_deduplicate(self)
        _check_transactions(self)
        _check_state(self)
        object.__setattr__(self, "client_options", hidden(self.client_options))

    @classmethod
    def of(cls, given: OptionFields) -> Options:
        """Make options from keywords; an unknown name is refused with the nearest known one."""
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(known))}"
                raise ConfigurationError(name, given[name], f"there is no such option; {hint}")  # type: ignore[literal-required]
        if isinstance(given.get("commits"), Transactions) and "commit_interval" in given:
            raise ConfigurationError(
                "commit_interval", given["commit_interval"], "cannot stand beside Transactions: use its interval"
            )
        return cls(**given)


_CHOICES: dict[str, tuple[object, ...]] = {
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
        "session_timeout",
        "heartbeat_interval",
        "rebalance_timeout",
    ):
        check_time(name, getattr(options, name))
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
    if not (isinstance(place, tuple) and len(place) == 3 and isinstance(place[0], str)):
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in place[1:])


def _is_partition(place: object) -> bool:
    return isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and isinstance(place[1], int)


def _check_kinds(options: Options) -> None:
    if not isinstance(options.client_options, Mapping):
        raise ConfigurationError("client_options", options.client_options, "must be a mapping of option names")
    _check_security(options)
    for name, kind in (("failures", FailurePolicy), ("producing", Producing)):
        if not isinstance(getattr(options, name), kind):
            raise ConfigurationError(name, getattr(options, name), f"must be a {kind.__name__}")
    for name in ("key_deserializer", "value_deserializer"):
        function = getattr(options, name)
        if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
            raise ConfigurationError(name, function, "must be a plain function of bytes")


def _check_security(options: Options) -> None:
    if options.security is None:
        return
    if not isinstance(options.security, Security):
        raise ConfigurationError("security", Hidden(options.security), 'must be a Security: Security("SASL_SSL", ...)')
    for name in options.client_options:
        if str(name).startswith("sasl_") or name in ("security_protocol", "ssl_context"):
            raise ConfigurationError(
                f"client_options[{name!r}]", Hidden(options.client_options[name]), "cannot stand beside security"
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
            "cannot stand beside dead letters or retry topics: a record that comes back from there is older than what "
            f"its key has seen since, and would be left out; {instead}",
        )
    if options.ordering is Ordering.UNORDERED or (options.ordering is Ordering.KEY and options.order_by is not None):
        raise ConfigurationError(
            "Deduplicate by",
            "key",
            "needs the records of a key one after the other (ordering KEY without order_by, or PARTITION): else a "
            f"later one may be complete before an earlier one, which would then be left out; {instead}",
        )


_TRANSACTION_CHECK = 10.0
"""Seconds between two looks of a broker for transactions whose time is over
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``)."""


def _check_transactions(options: Options) -> None:
    policy = options.commits
    if policy is None or (isinstance(policy, Extension) and overrides(policy, Extension, "commit_strategy")):
        return
    if not isinstance(policy, Transactions):
        raise ConfigurationError(
            "commits",
            policy,
            "must be None, Transactions(...), or an Extension with a commit_strategy, such as SqlStore",
        )
    longest = options.session_timeout - _TRANSACTION_CHECK
    if policy.transaction_timeout > longest:
        raise ConfigurationError(
            "Transactions transaction_timeout",
            policy.transaction_timeout,
            f"must be at most session_timeout ({options.session_timeout:g}) - {_TRANSACTION_CHECK:g}: lower it, or "
            f"raise session_timeout to {policy.transaction_timeout + _TRANSACTION_CHECK:g} s",
        )
    if options.deduplicate is not None:
        raise ConfigurationError(
            "deduplicate",
            options.deduplicate,
            "cannot stand beside Transactions: what was seen is not written in the transaction. Have the stage before "
            "write in transactions, too, or leave one of them out",
        )
    _check_isolation(options, "Transactions")


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
            "cannot stand beside state: the records of a key must run one after the other, as they do with ordering "
            "KEY without order_by, or PARTITION",
        )
    if options.failures.retry_topics:
        raise ConfigurationError(
            "FailurePolicy retry_topics",
            dict(options.failures.retry_topics),
            "cannot stand beside state: a record that comes back from there is another partition's, and finds another "
            "state; use retry, and dead_letter",
        )
    if options.deduplicate is not None:
        raise ConfigurationError(
            "deduplicate",
            options.deduplicate,
            "cannot stand beside state: let apply know what it has seen, or leave one of them out",
        )
    if options.commits is not None and not isinstance(options.commits, Transactions):
        raise ConfigurationError(
            "commits",
            options.commits,
            "cannot stand beside state: keep it in that database, or use Transactions",
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
