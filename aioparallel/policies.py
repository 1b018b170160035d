"""Options in groups: what happens to a record that fails, and how outputs are produced. Checked once, frozen after."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

from aioparallel.errors import ConfigurationError, RetryLater
from aioparallel.records import Outgoing, Produced, Record
from aioparallel.security.secret import hidden

__all__ = [
    "DeadLetterFunction",
    "EndOfRetries",
    "FailurePolicy",
    "OnProduced",
    "Producing",
    "RetryBudget",
    "RetryFunction",
    "RetryPolicy",
    "TooLargeLetters",
    "Transactions",
    "Verdict",
    "check_too_large",
    "is_async",
]

EndOfRetries = Literal["dead_letter", "skip", "stop", "release"]
"""What becomes of a record that is not tried any more. ``"release"``: whoever delivered it delivers it again, which no
partition does by itself."""
Verdict = float | EndOfRetries
"""Seconds until the next attempt, or what becomes of the record instead."""
RetryFunction = Callable[[Record[Any, Any], Exception, int], Verdict]
"""Called with the record, what its handler raised, and the number of attempts so far (1 or more). Also for a
RetryLater that the handler raised: a delay for it counts no attempt, so the next call sees the same number. Not for
NotToBlame: the library itself waits then."""
DeadLetterFunction = Callable[[Record[Any, Any], Exception], Awaitable[None]]
"""Puts a record away by itself; when it returns the record is done with, when it raises it is called again."""
OnProduced = Callable[[Record[Any, Any], Outgoing, Produced], None]

TooLargeLetters = Literal["drop_value", "truncate", "hold"]
"""What becomes of a dead letter that is larger than its topic takes."""

_FOREVER = 1e7  # seconds; more is a mistake


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When a failed record is tried again, and when no more. The default never gives up.

    The delay after attempt ``n`` is ``first_delay * multiplier ** (n - 1)``, at most ``max_delay``, then spread
    evenly by ``jitter``: 0.1 means from 90 to 110 percent of it.
    """

    first_delay: float = 1.0
    """Seconds after the first failed attempt."""
    multiplier: float = 2.0
    """How much longer each next delay is; 1 keeps it the same."""
    max_delay: float = 60.0
    """Seconds, the longest delay before jitter."""
    jitter: float = 0.1
    """Part of the delay by which it varies, 0 to 1, so that what failed together is not tried again together."""
    max_attempts: int | None = None
    """Calls of the handler, the first included, those not counted that ended with RetryLater; None: any number. Counted
    anew in each retry topic."""
    max_elapsed: float | None = None
    """Seconds since the first failure after which no attempt is started any more, without those that RetryLater asked
    for; None: any time."""
    max_wait: float | None = None
    """Seconds since the first RetryLater of a record in which its waits must end: one that would end later ends the
    retries. Waiting is not failing, so nothing else bounds it. None: any time."""
    count_waits: bool = False
    """Whether a RetryLater is an attempt that has failed, with a delay of its own: ``max_attempts`` and ``max_elapsed``
    bound it then, and ``max_wait`` does not. Without ``max_wait`` a record waits for what its process lacks (memory,
    files) for a minute then, and not for ever."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    """Only these exceptions are tried again; others end the retries at once."""

    def __post_init__(self) -> None:
        for name in ("first_delay", "max_delay"):
            _check_seconds(f"RetryPolicy {name}", getattr(self, name))
        if not _is_number(self.multiplier) or not 1 <= self.multiplier <= 1_000:
            raise ConfigurationError("RetryPolicy multiplier", self.multiplier, "must be from 1 to 1,000")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ConfigurationError("RetryPolicy jitter", self.jitter, "must be from 0 to 1")
        if self.max_attempts is not None and (not _is_whole(self.max_attempts) or self.max_attempts < 1):
            raise ConfigurationError("RetryPolicy max_attempts", self.max_attempts, "must be None, or 1 or more")
        for name in ("max_elapsed", "max_wait"):
            if getattr(self, name) is not None:
                _check_seconds(f"RetryPolicy {name}", getattr(self, name))
        if not isinstance(cast("object", self.count_waits), bool):
            raise ConfigurationError("RetryPolicy count_waits", self.count_waits, "must be True or False")
        kinds: tuple[object, ...] = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ConfigurationError(
                "RetryPolicy retry_on", self.retry_on, "must be an exception class, or a tuple of them"
            )

    @property
    def is_endless(self) -> bool:
        """Whether what fails is tried again for ever."""
        return self.max_attempts is None and self.max_elapsed is None

    def delay(self, error: Exception, attempts: int, elapsed: float) -> float | None:
        """Seconds until the next attempt, or None when the retries have ended.

        ``attempts``: made so far. ``elapsed``: seconds since the first failure, without those of waits.
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
        """The delay that a RetryLater requests, as it is, or None when the retries have ended.

        ``waiting``: seconds since the record's first RetryLater.
        """
        return wish if self.max_wait is None or waiting + wish <= self.max_wait else None

    def _planned(self, attempts: int) -> float:
        try:
            return min(self.first_delay * float(self.multiplier) ** (attempts - 1), self.max_delay)
        except OverflowError:
            return self.max_delay if self.first_delay else 0.0


class RetryBudget(NamedTuple):
    """How often and how long a failing record is tried, and what happens to it then."""

    retry: RetryPolicy | RetryFunction
    end: EndOfRetries
    """``"dead_letter"``: the dead-letter sink gets it."""
    retry_topics: tuple[str, ...] = ()
    """The topics where it goes before that, one after the other."""
    redelivers: bool = False
    """Whether the function may return ``"release"``: the record is delivered again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailurePolicy:
    """What happens to a record whose handler fails, that cannot be read, or whose outputs cannot be written.

    **The default tries for ever**, with delays up to a minute: nothing is lost and nothing is passed over, and a record
    that can never succeed holds its key until somebody mends it. Set ``dead_letter`` and a limit in ``retry`` to let
    the others of its key go on.
    """

    retry: RetryPolicy | RetryFunction = field(default_factory=RetryPolicy)
    """A policy, or a function of the record, the exception and the attempts so far that gives the seconds to the next
    attempt, or "dead_letter", "skip" or "stop". It must be quick; when it raises, the consumer stops."""
    dead_letter: str | DeadLetterFunction | None = None
    """Where a record goes when its retries have ended: a topic (which must exist), or an async function of the record
    and the exception. Its offset completes when that is acknowledged; until then it is tried for ever."""
    give_up: Literal["stop", "skip"] = "stop"
    """Without ``dead_letter``: ``"stop"`` ends the run with RecordStopped, the record not committed; ``"skip"``
    completes it, with a line in the log: the record is lost then, and that is what it says."""
    retry_topics: Mapping[str, float] = field(default_factory=dict)
    """Topics by delay in seconds, shortest first: ``{"orders.retry.5s": 5, "orders.retry.1m": 60}``. When the
    attempts of ``retry`` end the record goes to the next of them, where the same consumer reads it after the delay and
    tries it as often again; after the last one, ``dead_letter`` or ``give_up``. Its key goes on meanwhile: **order is
    given up for progress**. Needs a ``retry`` with an end. A record that is too large for such a topic, with the
    headers that it gets, goes to ``dead_letter`` or ``give_up`` at once."""
    dead_letter_too_large: TooLargeLetters = "drop_value"
    """What becomes of a dead letter that its topic does not take for its size, also without the texts of its error
    (its headers add some hundred bytes to the record). ``"drop_value"``: it stands there without its value, or
    whatever part of it is largest, and says so in the header ``aioparallel.left.out``; ``aioparallel dlq`` reads that
    part from where the record stands, while it does. ``"truncate"``: with the first half of its value, or quarter, as
    much as the topic takes. ``"hold"``: the record waits, and its key with it, until the topic takes it; so does one
    that is too large for a retry topic."""

    def __post_init__(self) -> None:
        if not isinstance(self.retry, RetryPolicy) and not callable(self.retry):
            raise ConfigurationError("FailurePolicy retry", self.retry, "must be a RetryPolicy or a function")
        if self.give_up not in ("stop", "skip"):
            raise ConfigurationError("FailurePolicy give_up", self.give_up, 'must be "stop" or "skip"')
        check_too_large("FailurePolicy dead_letter_too_large", self.dead_letter_too_large)
        if self.dead_letter is not None:
            self._check_dead_letter()
        if self.retry_topics or not isinstance(cast("object", self.retry_topics), Mapping):
            self._check_retry_topics()

    def _check_dead_letter(self) -> None:
        where = self.dead_letter
        if self.give_up == "skip":
            raise ConfigurationError(
                "FailurePolicy give_up", self.give_up, "cannot stand beside dead_letter: leave one of them out"
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
            _check_seconds(f"FailurePolicy retry_topics[{topic!r}]", delay)
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
        """The part that the engine goes by."""
        return RetryBudget(
            self.retry, self.give_up if self.dead_letter is None else "dead_letter", (*self.retry_topics,)
        )


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Handle each record once, though the topic holds copies: for what a stage before writes at least once.

    Two records are copies when their headers name the same source (``src-topic``, ``src-partition``, ``src-offset``
    and, if they are there, ``src-index`` and ``src-digest``; ``aioparallel.spark`` writes them). What was handled is
    remembered in a compacted topic, which is written before offsets are committed, so it outlives the process and moves
    with the partition. A record is complete at once when it is a copy.
    """

    topic: str
    """The topic that holds what was seen. Compacted (``cleanup.policy=compact``), with as many partitions as the
    largest of the topics that are read; groups may share it. It is not created."""
    by: Literal["record", "key"] = field(default="record", kw_only=True)
    """``"record"``: each record is remembered. ``"key"``: of each key the last one, for each partition of the source:
    less to keep, and right only where every attempt of the stage before writes a key's records in order and none is
    left out that comes later. So it is refused beside dead letters, retry topics and anything but the order of keys."""
    remember: int = field(default=50_000, kw_only=True)
    """Records, or keys, remembered of each partition, those handled last: at least as many as may come twice. Behind
    Spark that is what one micro-batch writes to one partition. A record takes 300 to 400 bytes."""

    def __post_init__(self) -> None:
        topic: object = self.topic
        if not (isinstance(topic, str) and topic.strip()):
            raise ConfigurationError("Deduplicate topic", self.topic, "must be the name of a compacted topic")
        if self.by not in ("record", "key"):
            raise ConfigurationError("Deduplicate by", self.by, 'must be "record" or "key"')
        if not _is_whole(self.remember) or self.remember < 1:
            raise ConfigurationError("Deduplicate remember", self.remember, "must be 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Producing:
    """How outputs, dead letters and records for retry topics are produced: idempotent, ``acks=all``, always."""

    max_unacknowledged_bytes: int = 32 * 1024 * 1024
    """Bytes of outputs that are not acknowledged yet (keys, values, headers, and 256 for each). At the bound handlers
    that have ended wait, so fewer start; one record's outputs may be larger by themselves."""
    delivery_timeout: float = 120.0
    """Seconds the brokers have to take an output; then its record has failed and follows the failure policy."""
    on_produced: OnProduced | None = None
    """Called with the record, the output and where it stands, once the broker has it and before the record's offset
    completes; in transactions, when theirs is committed. A plain function, quick; what it raises is logged."""
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Passed on to the producing Kafka client: ``compression_type``, ``linger_ms``, ``max_batch_size``,
    ``max_request_size``, ``partitioner``. TLS, SASL, ``client_id`` and timeouts come from the consumer's
    ``client_options``; given here they win."""

    def __post_init__(self) -> None:
        if not _is_whole(self.max_unacknowledged_bytes) or self.max_unacknowledged_bytes < 1:
            raise ConfigurationError(
                "Producing max_unacknowledged_bytes", self.max_unacknowledged_bytes, "must be 1 or more bytes"
            )
        _check_seconds("Producing delivery_timeout", self.delivery_timeout)
        if self.delivery_timeout == 0:
            raise ConfigurationError("Producing delivery_timeout", 0, "must be more than 0 seconds")
        if self.on_produced is not None and not _is_plain(self.on_produced):
            raise ConfigurationError("Producing on_produced", self.on_produced, "must be a plain function")
        if not hasattr(self.client_options, "items"):
            raise ConfigurationError("Producing client_options", self.client_options, "must be a mapping of names")
        object.__setattr__(self, "client_options", hidden(self.client_options))


@dataclass(frozen=True, kw_only=True, slots=True)
class Transactions:
    """Commit positions and everything that is produced in Kafka's transactions: exactly once for those who read
    ``read_committed``.

    Outputs, dead letters, records for retry topics and positions of one member go into one transaction at a time. What
    handlers do beside that, in a database or over HTTP, is not in it and happens at least once. Needs brokers with
    ``transaction.version`` 2: Apache Kafka 4.0 or newer. The records are read ``read_committed``.
    """

    interval: float = 0.1
    """Seconds from the begin of one transaction to the next. Outputs are visible after it; small: more transactions
    (each takes 3 to 15 milliseconds); large: more is done again after a crash. In the place of ``commit_interval``.
    ``commit_after`` completions, or half of ``Producing(max_unacknowledged_bytes=)``, end it early."""
    transaction_timeout: float = 10.0
    """Seconds after which the brokers abort a transaction whose member has died; whoever has its partitions then waits
    for that, up to 10 seconds more. At most ``session_timeout`` - 10: then nobody waits, for the partitions of a dead
    member are given away later than that."""
    id_prefix: str | None = None
    """What the ``transactional.id`` of each member begins with, for access rules of the cluster (WRITE and DESCRIBE on
    transactional ids, prefixed). The rest is the ``group_instance_id`` or chance. None: the ``group_id``."""

    def __post_init__(self) -> None:
        for name in ("interval", "transaction_timeout"):
            _check_seconds(f"Transactions {name}", getattr(self, name))
            if getattr(self, name) == 0:
                raise ConfigurationError(f"Transactions {name}", 0, "must be more than 0 seconds")
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
    """Raises ConfigurationError for what is no :data:`TooLargeLetters`."""
    if value not in ("drop_value", "truncate", "hold"):
        raise ConfigurationError(option, value, 'must be "drop_value", "truncate" or "hold"')


_LONGEST_PREFIX: Final = 32_000
"""Bytes. A ``transactional.id`` has at most 32,767, with what follows the prefix."""


def is_async(function: object) -> bool:
    """Whether it was declared with ``async def``: itself, what a partial or a method stands for, its ``__call__``, or
    what a wrapper made with ``functools.wraps`` goes around. Known before it is called."""
    while function is not None:
        for one in (function, getattr(function, "__call__", None)):  # noqa: B004
            if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
                return True
        function = getattr(function, "__wrapped__", None)
    return False


def _is_plain(function: object) -> bool:
    return callable(function) and not is_async(function)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_seconds(name: str, value: float) -> None:
    if not (_is_number(value) and 0 <= value < _FOREVER):
        raise ConfigurationError(name, value, "must be seconds, from 0 to 10,000,000")
