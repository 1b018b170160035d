"""The option ``state``: what is kept of each key, in memory, with the topic as its home."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aioparallel.config.extension import PartitionState
from aioparallel.config.handling import check_count, check_time
from aioparallel.config.option_docs import documented
from aioparallel.config.policies import is_async
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.record import Record
from aioparallel.records.user_errors import RAISED, repr_of

__all__ = ["KeyedPartition", "State"]

S = TypeVar("S")


@documented
@dataclass(frozen=True, kw_only=True)  # with slots State[int](...) is refused by Python 3.11
class State(Generic[S]):
    """A value for each key, in memory: the fold of ``apply`` over the key's records that were handled, in their order.

    ::

        def add(total: int, record: Record) -> int:
            return total + int(record.value)

        totals = State[int](initial=0, apply=add, dump=lambda total: b"%d" % total, load=int)

        async def handle(record: Record) -> None:
            before = totals.of(record)  # what the records of its key before it have made

        consumer = ParallelConsumer("payments", group_id="totals", state=totals)

    A state belongs to a key within its partition, and moves with it. At a start, or when a partition comes, it is made
    anew from the last full snapshot and the records behind that, **as it was at the committed position**: no handler
    runs for them.

    ``apply``, ``dump``, ``load`` and the consumer's deserialisers must be pure: what they give depends on what they are
    given alone, and they change none of it. They are plain functions, called on the event loop, so quick ones.
    """

    initial: S
    """The value of a key of which nothing was handled yet. Nothing may change it."""
    apply: Callable[[S, Record[Any, Any]], S | None]
    """The value after a record, of the value before and the record, deserialised. Called before the record's handler,
    whatever becomes of it, and the value counts when that has succeeded; and again at a restore. What it raises fails
    the record as the handler would. None: nothing is kept of the key any more, it is back at ``initial``."""
    dump: Callable[[S], bytes]
    """A value as bytes."""
    load: Callable[[bytes], S]
    """And back."""
    topic: str | None = None
    """The compacted topic of increments: one record for each commit of a partition. None: the group's id, and
    ``-state`` behind it. As many partitions as the largest topic that is read; groups may share it. Not created."""
    snapshots: str | None = None
    """The compacted topic of full snapshots. None: the group's id, and ``-snapshots`` behind it. The same holds."""
    snapshot_after: int = 50_000
    """A partition's full snapshot is taken anew when so many records were handled since the last one, and as many as it
    has keys. A restore reads about as many again at most, besides the snapshot."""
    snapshot_interval: float = 3600.0
    """Seconds after which it is taken anew for one record, too: what is read must be kept (``retention.ms``) for longer
    than this and the longest time in which nobody reads it."""

    def __post_init__(self) -> None:
        for name in ("apply", "dump", "load"):
            function = getattr(self, name)
            if not callable(function) or is_async(function):
                raise ConfigurationError(f"State {name}", function, "must be a plain function")
            _check_arguments(name, function, 2 if name == "apply" else 1)
        for name in ("topic", "snapshots"):
            found = getattr(self, name)
            if found is not None and not (isinstance(found, str) and found.strip()):
                raise ConfigurationError(f"State {name}", found, "must be None, or the name of a compacted topic")
        if self.topic is not None and self.topic == self.snapshots:
            raise ConfigurationError("State snapshots", self.snapshots, "must be another topic than the increments'")
        check_count("State snapshot_after", self.snapshot_after)
        check_time("State snapshot_interval", self.snapshot_interval)
        if self.initial is not None:
            self._check_dump()

    def _check_dump(self) -> None:
        try:
            dumped = self.dump(self.initial)
        except RAISED as error:
            raise ConfigurationError("State dump", self.dump, f"raised {repr_of(error)} for initial") from error
        if type(dumped) is not bytes:
            raise ConfigurationError(
                "State dump", self.dump, f"must give bytes, and gave {type(dumped).__name__} for initial"
            )
        try:
            self.load(dumped)
        except RAISED as error:
            raise ConfigurationError("State load", self.load, f"raised {repr_of(error)} for what dump gave") from error

    def of(self, record: Record[Any, Any]) -> S:
        """The state of this record's key, as the records before it have left it. Within its handler.

        In a batch that means those before it in the batch, too. Raises ConsumerStateError elsewhere.
        """
        for state in getattr(getattr(record, "_source", None), "partition_states", ()):
            if isinstance(state, KeyedPartition):
                value: S = state.state_of(record)
                return value
        raise ConsumerStateError(f"{record!r} is of no consumer with state=...: there is no state of its key")


class KeyedPartition(PartitionState):
    """The states of one partition."""

    def state_of(self, record: Record[Any, Any]) -> Any:
        """Return what the handler of this record sees. Raises ConsumerStateError."""
        raise NotImplementedError


def _check_arguments(name: str, function: Callable[..., object], count: int) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # int, say, does not tell
    try:
        signature.bind(*range(count))
    except TypeError as error:
        what = "a value and a record" if count == 2 else "one argument"
        raise ConfigurationError(f"State {name}", function, f"must take {what}: {error}") from error
