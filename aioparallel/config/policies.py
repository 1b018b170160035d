"""Options that come in groups: retries, failed records, outputs, transactions. Checked when constructed, and frozen."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from aioparallel.config.callables import is_async
from aioparallel.config.handling import check_choice, check_count, check_time
from aioparallel.config.option_docs import documented
from aioparallel.config.security.secret import hidden
from aioparallel.records.errors import ConfigurationError, RetryLater
from aioparallel.records.record import Outgoing, Produced, Record

__all__ = [
    "DeadLetterFunction",
    "EndOfRetries",
    "FailurePolicy",
    "OnProduced",
    "Producing",
    "QueueVerdict",
    "RetryBudget",
    "RetryFunction",
    "RetryPolicy",
    "TooLargeLetters",
    "Transactions",
    "Verdict",
    "check_too_large",
]

EndOfRetries = Literal["dead_letter", "skip", "stop", "release"]
"""What happens to a record whose retries have ended. ``"release"``: leave it unacknowledged, so that it is delivered
again; only queues do that, partitions do not."""
Verdict = float | Literal["dead_letter", "skip", "stop"]
"""Seconds until the next attempt, or what happens to the record instead."""
QueueVerdict = Verdict | Literal["release"]
"""The same for a record of a queue."""
RetryFunction = Callable[[Record[Any, Any], Exception, int], Verdict]
"""A function of the record, the exception that its handler raised, and the number of attempts so far (1 or more). It is
also called for a RetryLater. A delay after a RetryLater counts no attempt, so the next call gets the same number. It is
not called for NotToBlame, for which the library itself waits."""
DeadLetterFunction = Callable[[Record[Any, Any], Exception], Awaitable[None]]
"""An async function of the record and its exception. When it returns, the record is complete; when it raises, it is
called again."""
OnProduced = Callable[[Record[Any, Any], Outgoing, Produced], None]

TooLargeLetters = Literal["drop_value", "truncate", "hold"]
"""What happens to a dead letter that is larger than its topic allows."""


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When a failed record is retried, and when its retries end. The default retries forever.

    The delay after attempt ``n`` is ``first_delay * multiplier ** (n - 1)``, at most ``max_delay``, and varies evenly
    by ``jitter``: with 0.1 from 90 to 110 percent.
    """

    first_delay: float = 1.0
    """Seconds between the first failed attempt and the next one."""
    multiplier: float = 2.0
    """Factor from one delay to the next. 1 keeps the delay constant."""
    max_delay: float = 60.0
    """Maximum delay in seconds, before jitter."""
    jitter: float = 0.1
    """Fraction of the delay by which it varies, 0 to 1, so that records that failed together are not retried
    together."""
    max_attempts: int | None = None
    """Maximum number of attempts, including the first. Attempts that raise RetryLater do not count, unless
    ``count_waits``. Each retry topic starts at 0 again. None: no limit."""
    max_elapsed: float | None = None
    """Seconds since the first failure after which no attempt starts. Delays that RetryLater requests do not count.
    None: no limit."""
    max_wait: float | None = None
    """Seconds since a record's first RetryLater within which its delays must end. A delay that would end later ends the
    retries. Other limits do not apply, because waiting is not failing. None: no limit."""
    count_waits: bool = False
    """Whether a RetryLater counts as a failed attempt that sets its own delay. ``max_attempts`` and ``max_elapsed``
    then limit it, and ``max_wait`` does not. If the process lacks a resource (memory, files) and ``max_wait`` is None,
    a record then waits for a minute at most, and not forever."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    """The exceptions that are retried. All others end the retries at once."""

    def __post_init__(self) -> None:
        for name in ("first_delay", "max_delay"):
            check_time(f"RetryPolicy {name}", getattr(self, name), zero=True)
        for name in ("max_elapsed", "max_wait"):
            if getattr(self, name) is not None:
                check_time(f"RetryPolicy {name}", getattr(self, name), zero=True)
        _check_range("RetryPolicy multiplier", self.multiplier, 1, 1_000)
        _check_range("RetryPolicy jitter", self.jitter, 0, 1)
        if self.max_attempts is not None:
            check_count("RetryPolicy max_attempts", self.max_attempts)
        check_choice("RetryPolicy count_waits", self.count_waits, (True, False))
        kinds: tuple[object, ...] = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ConfigurationError(
                "RetryPolicy retry_on", self.retry_on, "must be an exception class, or a tuple of them"
            )

    @property
    def is_endless(self) -> bool:
        """Whether failures are retried forever."""
        return self.max_attempts is None and self.max_elapsed is None

    def delay(self, error: Exception, attempts: int, elapsed: float) -> float | None:
        """Seconds until the next attempt, or None when the retries have ended.

        ``attempts``: number of attempts so far. ``elapsed``: seconds since the first failure, without waits.
        """
        asked = error.delay if isinstance(error, RetryLater) else None
        if asked is None and not isinstance(error, self.retry_on):
            return None
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return None
        planned = self._planned(attempts) * (1 + self.jitter * random.uniform(-1, 1)) if asked is None else asked
        if self.max_elapsed is not None and elapsed + planned > self.max_elapsed:
            return None
        return planned

    def wait(self, wish: float, waiting: float) -> float | None:
        """The delay that a RetryLater requests, or None when the retries have ended.

        ``wish``: that delay in seconds. ``waiting``: seconds since the record's first RetryLater.
        """
        return wish if self.max_wait is None or waiting + wish <= self.max_wait else None

    def _planned(self, attempts: int) -> float:
        try:
            return min(self.first_delay * float(self.multiplier) ** (attempts - 1), self.max_delay)
        except OverflowError:
            return self.max_delay if self.first_delay else 0.0


class RetryBudget(NamedTuple):
    """How often and for how long a failing record is retried, and what happens to it then."""

    retry: RetryPolicy | Callable[[Record[Any, Any], Exception, int], QueueVerdict]
    end: EndOfRetries
    """What happens when the retries have ended. ``"dead_letter"``: the record goes to the dead-letter sink."""
    retry_topics: tuple[str, ...] = ()
    """The topics that the record passes through before that, in this order."""
    redelivers: bool = False
    """Whether the retry function may return ``"release"``."""
    may_retry: Callable[[Record[Any, Any]], bool] | None = None
    """Whether a record may run alone here after its batch has failed; else it is released. None: always."""
    option: str = "FailurePolicy retry"
    """What the user has set ``retry`` with, in messages."""


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class FailurePolicy:
    """What happens to a record whose handler fails, that cannot be deserialized, or whose outputs cannot be produced.

    **The default retries forever**, with delays of up to a minute. No record is lost or skipped, but a record that can
    never succeed blocks its key until the cause is fixed. With ``dead_letter`` the retries end after ten attempts (four
    minutes), unless ``retry`` says something else, and the other records of its key go on.
    """

    retry: RetryPolicy | RetryFunction = field(
        default_factory=lambda: _WITHOUT_END, metadata={"documented_default": "RetryPolicy()"}
    )
    """A policy, or a function of the record, the exception and the number of attempts so far. Not given:
    ``RetryPolicy(max_attempts=10)`` with ``dead_letter`` or ``retry_topics``, else ``RetryPolicy()``, which has no end.
    The function returns the seconds until the next attempt, or ``"dead_letter"``, ``"skip"`` or ``"stop"``. It must be
    fast, and not async. If it raises, the consumer stops."""
    dead_letter: str | DeadLetterFunction | None = None
    """Where a record goes when its retries have ended: a topic, which must exist, or an async function of the record
    and the exception. The record is complete when the topic or the function has taken it; until then this is retried
    forever."""
    give_up: Literal["stop", "skip"] = "stop"
    """What happens when the retries have ended and there is no ``dead_letter``. ``"stop"``: the run ends with
    RecordStopped, and the record is not committed. ``"skip"``: the record is logged and complete, **and thereby
    lost**."""
    retry_topics: Mapping[str, float] = field(default_factory=dict)
    """Topics with their delays in seconds: ``{"orders.retry.5s": 5, "orders.retry.1m": 60}``. When the retries end, the
    record is produced to the next of these topics, in their order here. The same consumer reads it there after the
    delay and retries it as often again. After the last topic, ``dead_letter`` or ``give_up`` applies. The other records
    of its key go on meanwhile: **the order of the key is given up**. Requires a ``retry`` that ends. A record that is
    too large for such a topic with its additional headers goes to ``dead_letter`` or ``give_up`` at once."""
    dead_letter_too_large: TooLargeLetters = "drop_value"
    """What happens to a dead letter that is too large for its topic, even without the texts of its error. (Its headers
    add some hundred bytes to the record.) ``"drop_value"``: it is produced without its value, or without its largest
    part, and the header ``aioparallel.left.out`` names that part. ``aioparallel dlq`` reads the part from the original
    record while that exists. ``"truncate"``: it is produced with the first half of its value, or the first quarter and
    so on, as much as the topic takes. ``"hold"``: the record and its key wait until the topic takes it; so does a
    record that is too large for a retry topic."""

    def __post_init__(self) -> None:
        if self.retry is _WITHOUT_END or self.retry is _WITH_END:  # none was given, also to a copy of this policy
            has_target = self.dead_letter is not None or bool(self.retry_topics)
            object.__setattr__(self, "retry", _WITH_END if has_target else _WITHOUT_END)
        if not isinstance(self.retry, RetryPolicy) and not callable(self.retry):
            raise ConfigurationError("FailurePolicy retry", self.retry, "must be a RetryPolicy or a function")
        if is_async(self.retry):
            raise ConfigurationError(
                "FailurePolicy retry",
                self.retry,
                "must be a RetryPolicy or a plain function, and this one is async: its result is used at once, and "
                "nothing awaits it",
            )
        check_choice("FailurePolicy give_up", self.give_up, ("stop", "skip"))
        check_too_large("FailurePolicy dead_letter_too_large", self.dead_letter_too_large)
        if self.dead_letter is not None:
            self._check_dead_letter()
        if self.retry_topics or not isinstance(cast("object", self.retry_topics), Mapping):
            self._check_retry_topics()

    def _check_dead_letter(self) -> None:
        where = self.dead_letter
        if self.give_up == "skip":
            raise ConfigurationError(
                "FailurePolicy give_up", self.give_up, "cannot be combined with dead_letter: leave one of them out"
            )
        if isinstance(where, str):
            if not where.strip():
                raise ConfigurationError("FailurePolicy dead_letter", where, "must be the name of a topic")
        elif not is_async(where):
            raise ConfigurationError(
                "FailurePolicy dead_letter",
                where,
                "must be the name of a topic, or an async function of the record and the exception",
            )

    def _check_retry_topics(self) -> None:
        topics = self.retry_topics
        names: list[object] = [*topics] if hasattr(topics, "items") else [None]
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError("FailurePolicy retry_topics", topics, "must map names of topics to seconds")
        for topic, delay in topics.items():
            check_time(f"FailurePolicy retry_topics[{topic!r}]", delay, zero=True)
        if self.dead_letter in topics:
            raise ConfigurationError("FailurePolicy dead_letter", self.dead_letter, "is one of the retry_topics")
        if isinstance(self.retry, RetryPolicy) and self.retry.is_endless and self.retry.max_wait is None:
            raise ConfigurationError(
                "FailurePolicy retry_topics",
                dict(topics),
                "would never be used: retry has no end; give it max_attempts (1: straight to the first), max_elapsed "
                "or max_wait",
            )

    @property
    def retry_budget(self) -> RetryBudget:
        """What the engine needs of this policy."""
        return RetryBudget(
            self.retry, self.give_up if self.dead_letter is None else "dead_letter", (*self.retry_topics,)
        )


@documented
@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Handles each record once although the topic contains copies, because an earlier stage writes at least once.

    Two records are copies if their headers name the same source: ``src-topic``, ``src-partition``, ``src-offset`` and,
    if present, ``src-index`` and ``src-digest``. ``aioparallel.spark`` writes these headers. A compacted topic stores
    which records were handled. It is written before offsets are committed, so this outlives the process and moves with
    the partition. A copy is complete at once.
    """

    topic: str
    """The topic that stores which records were handled. It must exist, be compacted (``cleanup.policy=compact``) and
    have at least as many partitions as each topic that is read. Groups may share it."""
    by: Literal["record", "key"] = field(default="record", kw_only=True)
    """``"record"``: remember each record. ``"key"``: remember the last record of each key, for each source partition.
    That takes less space. It is right only if each attempt of the earlier stage writes the records of a key in order
    and omits none that it writes later. So it cannot be combined with dead letters, retry topics or an order other
    than that of keys."""
    remember: int = field(default=50_000, kw_only=True)
    """Number of records, or keys, that are remembered for each partition, the last handled ones. At least as many as
    may come twice: after Spark, the records that a micro-batch writes to one partition. Each takes 300 to 400 bytes of
    memory."""

    def __post_init__(self) -> None:
        topic: object = self.topic
        if not (isinstance(topic, str) and topic.strip()):
            raise ConfigurationError("Deduplicate topic", self.topic, "must be the name of a compacted topic")
        check_choice("Deduplicate by", self.by, ("record", "key"))
        check_count("Deduplicate remember", self.remember)


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Producing:
    """How outputs, dead letters and records for retry topics are produced. The producer is always idempotent, with
    ``acks=all``."""

    max_unacknowledged_bytes: int = 32 * 1024 * 1024
    """Maximum size in bytes of the outputs that are not acknowledged yet: keys, values, headers, and 256 bytes for each
    output. At the limit, handlers that have ended wait, so fewer start. The outputs of a single record may exceed
    it."""
    delivery_timeout: float = 120.0
    """Seconds within which the brokers must acknowledge an output. After that its record has failed."""
    on_produced: OnProduced | None = None
    """A function of the record, the output and the place where it was stored. It is called after the broker has
    acknowledged the output, and before the record is complete; with ``Transactions``, after the commit of the
    transaction. It must not be async, and must be fast. An Exception is logged; SystemExit and the
    like end the run."""
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Options of the producing Kafka client, such as ``compression_type``, ``linger_ms``, ``max_batch_size``,
    ``max_request_size`` and ``partitioner``. TLS, SASL, ``client_id`` and timeouts come from the consumer's
    ``client_options``, unless they are given here."""

    def __post_init__(self) -> None:
        check_count("Producing max_unacknowledged_bytes", self.max_unacknowledged_bytes)
        check_time("Producing delivery_timeout", self.delivery_timeout)
        on_produced: object = self.on_produced
        if on_produced is not None and (not callable(on_produced) or is_async(on_produced)):
            raise ConfigurationError("Producing on_produced", self.on_produced, "must be a plain function")
        if not hasattr(self.client_options, "items"):
            raise ConfigurationError("Producing client_options", self.client_options, "must be a mapping of names")
        object.__setattr__(self, "client_options", hidden(self.client_options))


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Transactions:
    """Commits offsets and all outputs in Kafka transactions: exactly once for consumers that read ``read_committed``.

    Outputs, dead letters, records for retry topics and offsets of one member go into one transaction at a time. Other
    effects of handlers, such as writes to a database or HTTP requests, are outside of it and happen at least once.
    Requires brokers with ``transaction.version`` 2: Apache Kafka 4.0 or newer. Records are read ``read_committed``.
    """

    interval: float = 0.1
    """Seconds from the begin of one transaction to the begin of the next. Outputs become visible after that. Small
    values make more transactions, which take 3 to 15 milliseconds each; with large ones more is repeated after a crash.
    Replaces ``commit_interval``. A transaction ends early after ``commit_after`` records or at half of
    ``Producing(max_unacknowledged_bytes=)``."""
    transaction_timeout: float = 10.0
    """Seconds after which the brokers abort the transaction of a member that has died; they may take 10 seconds longer.
    At most ``session_timeout`` - 10, and 35 where the brokers decide the session (45 s by default), so that the
    transaction is aborted before the group reassigns the partitions, and their next owner does not wait for it."""
    id_prefix: str | None = None
    """The beginning of the ``transactional.id`` of each member, for prefixed ACLs (WRITE and DESCRIBE on transactional
    ids). The rest is the ``group_instance_id`` or random. None: the ``group_id``."""

    def __post_init__(self) -> None:
        for name in ("interval", "transaction_timeout"):
            check_time(f"Transactions {name}", getattr(self, name))
        if self.interval > self.transaction_timeout / 2:
            raise ConfigurationError(
                "Transactions interval",
                self.interval,
                f"must be at most half of transaction_timeout ({self.transaction_timeout:g} s)",
            )
        prefix: object = self.id_prefix
        if prefix is not None and not (isinstance(prefix, str) and prefix.strip()):
            raise ConfigurationError("Transactions id_prefix", prefix, "must be None, or a text that is not empty")
        if prefix is not None and (size := len(prefix.encode())) > _LONGEST_PREFIX:
            shown = f"{prefix[:20]}... ({size:,} bytes)"
            raise ConfigurationError("Transactions id_prefix", shown, f"must be at most {_LONGEST_PREFIX:,} bytes long")


def check_too_large(option: str, value: object) -> None:
    """Raises ConfigurationError unless ``value`` is one of :data:`TooLargeLetters`."""
    check_choice(option, value, get_args(TooLargeLetters))


_LONGEST_PREFIX: Final = 32_000
"""Bytes. A ``transactional.id``, which continues after the prefix, has at most 32,767."""


def _is_plain(function: object) -> bool:
    return callable(function) and not is_async(function)


def _check_range(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigurationError(name, value, f"must be from {least} to {most:,}")


_WITHOUT_END: Final[RetryPolicy] = RetryPolicy()
"""The default. Its identity tells that no policy was given."""
_WITH_END: Final = RetryPolicy(max_attempts=10)
"""The default where a record has somewhere to go: four minutes of retries."""
