"""The option ``state``: a value for each key, kept in memory and saved in compacted topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aioparallel.config.callables import check_arguments, is_async
from aioparallel.config.extension import PartitionState
from aioparallel.config.handling import check_count, check_time
from aioparallel.config.option_docs import documented
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.record import Record
from aioparallel.records.user_errors import RAISED, refuse_coroutine, repr_of

__all__ = ["KeyedPartition", "State"]

S = TypeVar("S")


@documented
@dataclass(frozen=True, kw_only=True)  # with slots State[int](...) is refused by Python 3.11
class State(Generic[S]):
    """A value for each key, in memory: the fold of ``apply`` over the key's handled records, in order.

    ::

        def add(total: int, record: Record) -> int:
            return total + int(record.value)

        totals = State[int](initial=0, apply=add, dump=lambda total: b"%d" % total, load=int)

        async def handle(record: Record) -> None:
            before = totals.of(record)  # the total of the earlier records of its key

        consumer = ParallelConsumer("payments", group_id="totals", state=totals)

    A state belongs to a key within its partition, and moves with the partition. When a partition is assigned, the state
    **at the committed position** is restored from the last full snapshot and the records after it. No handler runs for
    these records.

    ``apply``, ``dump``, ``load`` and the consumer's deserialisers must be pure: their results depend on nothing but
    their arguments, which they do not change. They are plain functions that run on the event loop, so they must be
    quick.
    """

    initial: S
    """The value of a key without handled records. Do not change it in place."""
    apply: Callable[[S, Record[Any, Any]], S | None]
    """Returns the value after a record, from the value before it and the deserialised record. Called before each
    attempt of the handler, and again in a restore. The value is set when the handler has succeeded. An exception fails
    the record, like one of the handler. None removes the value: the key is back at ``initial``."""
    dump: Callable[[S], bytes]
    """Returns a value as bytes."""
    load: Callable[[bytes], S]
    """Returns the value that ``dump`` returned as bytes."""
    topic: str | None = None
    """The compacted topic of increments: one record for each commit of a partition. None: the group's id with
    ``-state``. It needs as many partitions as the largest input topic. Groups may share it. It is not created."""
    snapshots: str | None = None
    """The compacted topic of full snapshots. None: the group's id with ``-snapshots``. The same rules hold."""
    snapshot_after: int = 50_000
    """Records of a partition after which a full snapshot is taken, but at least as many as the partition has keys. A
    restore reads the snapshot and about as many records at most."""
    snapshot_interval: float = 3600.0
    """Seconds after which a full snapshot is taken even for one record. The retention (``retention.ms``) of the input
    topics must be longer than this plus the longest time without a running consumer."""

    def __post_init__(self) -> None:
        for name in ("apply", "dump", "load"):
            function = getattr(self, name)
            if not callable(function) or is_async(function):
                raise ConfigurationError(f"State {name}", function, "must be a plain function")
            wanted, count = ("a value and a record", 2) if name == "apply" else ("one argument", 1)
            check_arguments(function, f"State {name}", wanted, count)
        for name in ("topic", "snapshots"):
            found = getattr(self, name)
            if found is not None and not (isinstance(found, str) and found.strip()):
                raise ConfigurationError(f"State {name}", found, "must be None, or the name of a compacted topic")
        if self.topic is not None and self.topic == self.snapshots:
            raise ConfigurationError("State snapshots", self.snapshots, "must differ from the topic of the increments")
        check_count("State snapshot_after", self.snapshot_after)
        check_time("State snapshot_interval", self.snapshot_interval)
        if self.initial is not None:
            self._check_dump()

    def _check_dump(self) -> None:
        try:
            dumped = self.dump(self.initial)
            refuse_coroutine(dumped)
        except RAISED as error:
            raise ConfigurationError("State dump", self.dump, f"raised {repr_of(error)} for initial") from error
        if type(dumped) is not bytes:
            raise ConfigurationError(
                "State dump", self.dump, f"must return bytes, and returned {type(dumped).__name__} for initial"
            )
        try:
            refuse_coroutine(self.load(dumped))
        except RAISED as error:
            raise ConfigurationError(
                "State load", self.load, f"raised {repr_of(error)} for the bytes that dump returned"
            ) from error

    def of(self, record: Record[Any, Any]) -> S:
        """Returns the value of this record's key before this record. Call it in the record's handler.

        Earlier records of the same batch count. Raises ConsumerStateError outside the handler.
        """
        for state in getattr(getattr(record, "_source", None), "partition_states", ()):
            if isinstance(state, KeyedPartition):
                value: S = state.state_of(record)
                return value
        raise ConsumerStateError(f"{record!r} is of no consumer with state=...: its key has no state")


class KeyedPartition(PartitionState):
    """The states of one partition."""

    def state_of(self, record: Record[Any, Any]) -> Any:
        """Returns the value before this record. Raises ConsumerStateError."""
        raise NotImplementedError
