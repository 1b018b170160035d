"""What happened to one record so far. Only records that failed, were deferred or came from a retry topic have one."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioparallel.errors import UndecodableRecord
from aioparallel.records import Failure, Headers, Origin, Record
from aioparallel.user_errors import text_of

if TYPE_CHECKING:
    from aioparallel.deferral import Deferral
    from aioparallel.engine.gates import Gate

__all__ = ["History", "failure_of", "history_of", "make_undecodable", "may_be_undecodable", "refuse_undecodable"]

_MESSAGE_LENGTH = 1_000  # characters


class History:
    """Kept on the record (``Record._history``); everything on one event loop."""

    __slots__ = (
        "alone",
        "attempts_before",
        "deferral",
        "first_failure",
        "idle_parks",
        "is_restored",
        "kept_at",
        "lacking_since",
        "last_failure",
        "origin",
        "strayed",
        "trying_since",
        "undecodable",
        "waited",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.alone = False  # runs in no batch with others: it has failed with them
        self.attempts_before = 0  # in the topics the record stood in before
        self.idle_parks = 0  # times it was parked without an attempt: not due yet, or its handler requested a delay
        self.waiting_since: float | None = None  # when the handler first requested a delay, on the loop's clock
        self.lacking_since: float | None = None  # since when its process has lacked resources each time, on that clock
        self.waited = 0.0  # seconds it asked for since the first failed attempt
        self.trying_since: float | None = None  # first failed attempt in this topic, on the loop's clock
        self.first_failure: Failure | None = None
        self.last_failure: Failure | None = None
        self.origin: Origin | None = None
        self.is_restored = False  # of a retry topic: what its headers say is in here
        self.deferral: Deferral | None = None
        self.kept_at: tuple[Gate, ...] = ()  # where a place is kept for it, until it enters some gate
        self.strayed = False  # its last attempt ended by a cancellation that may not have been its own
        self.undecodable: str | None = None  # why no handler may have it

    def waits(self, delay: float, now: float, *, lacks: bool = False) -> None:
        """The handler requests a delay: no attempt, and no failure. ``now``: the event loop's time. ``lacks``: whether
        its process lacks resources."""
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
        """It has found a gate shut: no attempt, and no failure. ``now``: on the loop's clock."""
        self.waits(0.0, now)

    def waited_at_gate(self, seconds: float) -> None:
        """So long, until it was woken."""
        if self.trying_since is not None:
            self.waited += seconds

    def failed(self, failure: Failure, now: float) -> None:
        """Note one more failed attempt. ``now``: on the loop's clock."""
        if self.trying_since is None:
            self.trying_since = now
        self.first_failure = self.first_failure or failure
        self.last_failure = failure
        self.strayed = False


def history_of(record: Record[Any, Any]) -> History:
    """The record's history, made where there is none yet."""
    history = record._history
    if history is None:
        history = record._history = History()
    return history


class _Met:
    """Whether this process has met a record that cannot be decoded. Until then nobody looks for them in batches."""

    undecodable = False


def make_undecodable(record: Record[Any, Any], reason: str) -> None:
    """It fails with UndecodableRecord where it would be handled."""
    history_of(record).undecodable = reason
    _Met.undecodable = True


def may_be_undecodable() -> bool:
    """Whether it is worth to look at each record."""
    return _Met.undecodable


def refuse_undecodable(record: Record[Any, Any]) -> None:
    """Raises UndecodableRecord for one that could not be decoded whole: no handler may have it."""
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
) -> Record[Any, Any]:
    key, value, headers, timestamp = parts
    record: Record[Any, Any] = Record(*place, key, value, headers, timestamp)
    if raw is not None:
        record._raw = raw
    if attempt != 1 or origin is not None or failures != (None, None):
        history = history_of(record)
        history.attempts_before = attempt - 1
        history.first_failure, history.last_failure = failures
        history.origin = origin
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
    )


# What a handler sees of a record goes to other processes, and nothing of the engine's. Here, where histories are known.
copyreg.pickle(Record, _reduced)


def failure_of(error: BaseException, at: float) -> Failure:
    """What is kept of an exception. ``at``: seconds since the epoch."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(at, name, text_of(error)[:_MESSAGE_LENGTH])
