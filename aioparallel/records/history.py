"""What happened to a record so far. Records that failed, waited, were deferred or came from a retry topic have one."""

from __future__ import annotations

import copyreg
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioparallel.records.errors import UndecodableRecord
from aioparallel.records.record import Failure, Headers, Origin, Record
from aioparallel.records.user_errors import class_of, text_of

if TYPE_CHECKING:
    from aioparallel.engine.outcomes.gates import Gate
    from aioparallel.records.deferral import Deferral

__all__ = [
    "History",
    "Skip",
    "failure_of",
    "history_of",
    "make_undecodable",
    "may_be_undecodable",
    "refuse_undecodable",
]

_MESSAGE_LENGTH = 1_000  # characters


class Skip(enum.Enum):
    """A request to skip a record that runs or whose outputs are sent."""

    ASKED = enum.auto()
    """It is skipped when its handler has ended, however that ends. If its outputs are sent already, it is skipped only
    if they are not delivered."""
    DONE = enum.auto()


class History:
    """Stored in ``Record._history``; used on one event loop."""

    __slots__ = (
        "alone",
        "attempts_before",
        "deferral",
        "delivery_count",
        "first_failure",
        "idle_parks",
        "is_restored",
        "kept_at",
        "lacking_since",
        "last_failure",
        "origin",
        "skip",
        "strayed",
        "trying_since",
        "undecodable",
        "waited",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.alone = False  # must run in a batch of its own, as it failed in a batch with others
        self.attempts_before = 0  # attempts in earlier topics
        self.idle_parks = 0  # times it was parked without an attempt: not due yet, or a delay was requested
        self.waiting_since: float | None = None  # when a delay was first requested, by the loop's clock
        self.lacking_since: float | None = None  # since when each attempt found the process out of resources
        self.waited = 0.0  # seconds of requested delays since the first failed attempt
        self.trying_since: float | None = None  # first failed attempt in this topic, by the loop's clock
        self.first_failure: Failure | None = None
        self.last_failure: Failure | None = None
        self.origin: Origin | None = None
        self.is_restored = False  # the headers that a retry topic added were read
        self.deferral: Deferral | None = None
        self.delivery_count = 1  # of a share group: how often it was delivered
        self.kept_at: tuple[Gate, ...] = ()  # gates that keep a place for it until it enters one
        self.strayed = False  # its last attempt ended by a cancellation that may have been meant for other work
        self.undecodable: str | None = None  # why no handler may get it
        self.skip: Skip | None = None  # somebody has asked to skip it, while it ran

    def waits(self, delay: float, now: float, *, lacks: bool = False) -> None:
        """The handler requests a delay, which is no attempt and no failure. ``now``: the event loop's time. ``lacks``:
        whether the process is out of resources."""
        self.idle_parks += 1
        if not lacks:
            self.lacking_since = None
        elif self.lacking_since is None:
            self.lacking_since = now
        if self.waiting_since is None:
            self.waiting_since = now
        if self.trying_since is not None:
            self.waited += delay
        self.strayed = False

    def turned_away(self, now: float) -> None:
        """A gate was shut, which is no attempt and no failure. ``now``: the event loop's time."""
        self.waits(0.0, now)

    def waited_at_gate(self, seconds: float) -> None:
        """It waited so long at a gate."""
        if self.trying_since is not None:
            self.waited += seconds

    def failed(self, failure: Failure, now: float) -> None:
        """Note a failed attempt. ``now``: the event loop's time."""
        if self.trying_since is None:
            self.trying_since = now
        self.first_failure = self.first_failure or failure
        self.last_failure = failure
        self.strayed = False


def history_of(record: Record[Any, Any]) -> History:
    """The record's history, created if there is none."""
    history = record._history
    if history is None:
        history = record._history = History()
    return history


class _Seen:
    """Whether this process has read an undecodable record. Until then batches need no check of each record."""

    undecodable = False


def make_undecodable(record: Record[Any, Any], reason: str) -> None:
    """Let it fail with UndecodableRecord instead of being handled."""
    history_of(record).undecodable = reason
    _Seen.undecodable = True


def may_be_undecodable() -> bool:
    """Whether records must be checked for it."""
    return _Seen.undecodable


def refuse_undecodable(record: Record[Any, Any]) -> None:
    """Raises UndecodableRecord if it could not be decoded completely: no handler may get it."""
    history = record._history
    if history is not None and history.undecodable is not None:
        raise UndecodableRecord(history.undecodable)


def _rebuilt(
    place: tuple[str, int, int],
    parts: tuple[Any, Any, Headers, int],
    raw: tuple[bytes | None, bytes | None] | None,
    attempt: int,
    failures: tuple[Failure | None, Failure | None],
    origin: Origin | None,
    delivery_count: int,
) -> Record[Any, Any]:
    key, value, headers, timestamp = parts
    record: Record[Any, Any] = Record(*place, key, value, headers, timestamp)
    if raw is not None:
        record._raw = raw
    if attempt != 1 or origin is not None or failures != (None, None) or delivery_count != 1:
        history = history_of(record)
        history.attempts_before = attempt - 1
        history.first_failure, history.last_failure = failures
        history.origin = origin
        history.delivery_count = delivery_count
    return record


def _reduced(record: Record[Any, Any]) -> tuple[Callable[..., Record[Any, Any]], tuple[object, ...]]:
    history = record._history
    return _rebuilt, (
        (record.topic, record.partition, record.offset),
        (record.key, record.value, record.headers, record.timestamp),
        getattr(record, "_raw", None),
        record.attempt,
        (record.first_failure, record.last_failure),
        history.origin if history is not None else None,
        record.delivery_count,
    )


# Pickling keeps what a handler sees and drops the engine's fields. Registered here, as this module knows histories.
copyreg.pickle(Record, _reduced)


def failure_of(error: BaseException, at: float) -> Failure:
    """The Failure for an exception. ``at``: seconds since the epoch."""
    name = class_of(error)
    return Failure(at, name, text_of(error)[:_MESSAGE_LENGTH])
