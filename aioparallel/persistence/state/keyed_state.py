"""The extension behind ``State``: restores the state before the first record, and saves it with commits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.policies import Transactions
from aioparallel.config.state import State
from aioparallel.delivery.producer import Producer
from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.group.client import CommitFault, Committed
from aioparallel.group.sessions import Session
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import StateStats, Stats
from aioparallel.persistence.state.increments import Place, encode_increment, encode_part, encode_part_key, encode_place
from aioparallel.persistence.state.pieces import PIECE_BYTES
from aioparallel.persistence.state.restores import Restores
from aioparallel.persistence.state.topics import StateTopics, TopicNames
from aioparallel.persistence.state.unapplied import LARGEST_PIECE
from aioparallel.persistence.state.view import StateView
from aioparallel.persistence.state.writing import write_snapshot
from aioparallel.records.errors import ConfigurationError, ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition

__all__ = ["KeyedState"]

logger = logging.getLogger(__name__)

_MADE_AT_ONCE: Final = 20
"""Increments that are encoded in one turn of the event loop."""
_SNAPSHOT_INTERVAL: Final = 0.5
"""Seconds between two checks for full snapshots that are due."""
_FINISHING: Final = 10.0
"""Seconds for full snapshots that are due when the run ends."""
_RETRY_DELAY: Final = 30.0
"""Seconds until a full snapshot that could not be written is tried again."""
_SMALLEST_PIECE: Final = 1024
"""Bytes of offsets or of entries in one record, at least. Smaller records are not tried."""
_REPORTED: Final = 10
"""Partitions that are reported one by one."""

_LAST_SNAPSHOT: Final = 0.1
"""Seconds for unacknowledged pieces of a full snapshot at the end. No increment names that snapshot yet."""

_Write = asyncio.Future[ProduceFailed | None]


class KeyedState(Extension):
    """Keeps the state that ``State`` describes.

    With ``Transactions``, an increment is part of the transaction that commits its position. Otherwise it is written
    before the commit. Full snapshots are written at any time, outside transactions.
    """

    _topics: StateTopics
    _producer: Producer
    _restores: Restores

    def __init__(self, policy: State[Any]) -> None:
        self._policy = policy
        self._is_transactional = False
        self._views: dict[TopicPartition, StateView] = {}
        self._writes: dict[TopicPartition, _Write] = {}  # unacknowledged increments
        self._unsaved: dict[TopicPartition, str] = {}  # why the increment is not written
        self._unwritten: dict[TopicPartition, str] = {}  # why the full snapshot is not written
        self._retry_at: dict[TopicPartition, float] = {}  # no full snapshot is tried before this time
        self._largest = LARGEST_PIECE  # bytes of offsets in one record of an increment
        self._piece = PIECE_BYTES  # bytes of entries in one record of a full snapshot
        self._longest = 0  # bytes of the longest record that was encoded with _largest
        self._refused_largest = 0  # the _largest with which an increment was too large
        self._writing = asyncio.Lock()
        self._written = 0  # full snapshots

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Choose the topics and the producer. Raises ConfigurationError."""
        producer = consumer.plain_producer()
        if producer is None:
            raise ConfigurationError("producer", None, "state needs one if the client is your own: producer=...")
        self._producer = producer
        self._is_transactional = isinstance(consumer.options.commits, Transactions)
        names = TopicNames.of(self._policy, consumer.group_id)
        self._topics = StateTopics(names, consumer.group_id, consumer.client)
        self._restores = Restores(self._topics, consumer.options, self._views.get)

    def topics(self) -> Mapping[str, str]:
        """Returns the topics of increments and of full snapshots."""
        return dict.fromkeys(self._topics.names, "State topic")

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check that the topics can hold the state of these partitions."""
        await self._topics.check(partitions, timeout)

    async def close(self) -> None:
        """Stop restoring, and stop the producer that writes outside transactions."""
        await self._restores.close()
        if self._is_transactional:
            await self._producer.stop(_LAST_SNAPSHOT)

    # -- attempts ---------------------------------------------------------------------------------------

    def before_attempt(self, record: Record[Any, Any]) -> None:
        """Compute the value after this record. Raises RecordWithoutKey, StateFailed."""
        for state in cast("Session", record._source).partition_states:
            if isinstance(state, StateView):
                state.begin(record)

    # -- restoring --------------------------------------------------------------------------------------

    def assigned(self, session: Session) -> StateView:
        """Returns an empty view, which is restored next."""
        self._forget(session.partition)
        view = self._views[session.partition] = StateView(
            self._policy, session, steady_time, keeps_lanes=self._is_transactional
        )
        return view

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Restore the views. Returns the partitions that are ready."""
        return await self._restores.restore(positions, timeout)

    # -- saving -----------------------------------------------------------------------------------------

    def commit_outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
        """Returns the records of an increment, the increment itself last."""
        view = self._views.get(partition)
        if view is None or not view.is_restored:
            return ()
        if self._refused_largest == self._largest:
            self._largest = max(_SMALLEST_PIECE, min(self._largest, self._longest) // 2)
            self._longest = 0
        increment, texts = view.increment(committed, self._largest)
        place, generation = Place(self._topics.group_id, partition, increment.life), increment.generation
        made: list[tuple[bytes, bytes | None]] = []
        if increment.parts is not None:
            parts = increment.parts
            made += [
                (encode_part_key(place, generation, number), encode_part(parts, text))
                for number, text in enumerate(texts)
            ]
        gone = range(len(texts), view.parts_written(len(texts)))
        made += [(encode_part_key(place, generation, number), None) for number in gone]
        made.append((encode_place(place, generation), encode_increment(increment)))
        self._longest = max(self._longest, *[len(value or b"") for _, value in made])
        topic, number = self._topics.names.increments, partition.partition
        return [Outgoing(topic, value, key, partition=number) for key, value in made]

    def commit_outputs_too_large(self) -> None:
        """Encode smaller pieces from now on.

        This does not help if another part of the increment is too large. Health reports that.
        """
        self._refused_largest = self._largest

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Write increments, unless they are part of a transaction.

        A partition has at most one unacknowledged write. The next call waits for it.
        """
        return {} if self._is_transactional else await self._save(positions, timeout)

    async def _save(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        views = {partition: self._views.get(partition) for partition in positions}
        before = {partition: self._writes[partition] for partition in positions if partition in self._writes}
        writes: dict[TopicPartition, _Write] = {}
        ends = asyncio.get_running_loop().time() + timeout
        for count, (partition, committed) in enumerate(positions.items(), 1):
            if partition not in before and self._views.get(partition) is views[partition]:
                if outputs := self.commit_outputs(partition, committed):
                    writes[partition] = self._writes[partition] = self._write(partition, outputs)
                if not count % _MADE_AT_ONCE:
                    await asyncio.sleep(0)
        # Writes of earlier calls do not delay those of this one.
        if writes:
            await asyncio.wait(writes.values(), timeout=max(0.0, ends - asyncio.get_running_loop().time()))
        elif before:
            await asyncio.wait(before.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        unsaved: dict[TopicPartition, CommitFault] = {}
        for partition, view in views.items():
            write = writes.get(partition)
            if view is None or self._views.get(partition) is not view:
                unsaved[partition] = CommitFault.RETRIABLE  # released meanwhile
            elif write is None or not write.done():
                unsaved[partition] = CommitFault.RETRIABLE
                if write is not None or partition in self._writes:
                    self._not_saved(partition, "the write is not acknowledged")
            elif (failure := write.result()) is not None:
                unsaved[partition] = self._refused(partition, failure)
            else:
                self._unsaved.pop(partition, None)
        return unsaved

    def _refused(self, partition: TopicPartition, failure: ProduceFailed) -> CommitFault:
        self._not_saved(partition, str(failure))
        if failure.too_large:
            self.commit_outputs_too_large()
        is_helped = failure.too_large and self._largest > _SMALLEST_PIECE
        return CommitFault.RETRIABLE if failure.passing or is_helped else CommitFault.REFUSED

    def _write(self, partition: TopicPartition, outputs: Sequence[Outgoing]) -> _Write:
        written: _Write = asyncio.get_running_loop().create_future()

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            if self._writes.get(partition) is written:
                del self._writes[partition]
            if not written.done():
                written.set_result(result if isinstance(result, ProduceFailed) else None)

        def parts_delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            # The increment is sent when its parts are stored.
            if isinstance(result, ProduceFailed):
                delivered(result)
            else:
                self._producer.send(outputs[-1:], delivered)

        if len(outputs) > 1:
            self._producer.send(outputs[:-1], parts_delivered)
        else:
            self._producer.send(outputs, delivered)
        return written

    def _not_saved(self, partition: TopicPartition, reason: str) -> None:
        """Log a reason once, and report it in health until the partition is saved."""
        if partition not in self._views:
            return
        if self._unsaved.get(partition) != reason:
            logger.warning(
                "%s: the increment of its state is not written to %s, so its offsets are not committed: %s",
                partition,
                self._topics.names.increments,
                reason,
                extra={"action": "state_unsaved"},
            )
        self._unsaved[partition] = reason

    # -- full snapshots ---------------------------------------------------------------------------------

    async def work(self) -> None:
        """Write full snapshots that are due, one after the other."""
        while True:
            await asyncio.sleep(_SNAPSHOT_INTERVAL)
            await self._write_due()

    async def _write_due(self) -> None:
        for view in [*self._views.values()]:
            partition = view.session.partition
            async with self._writing:
                waits = asyncio.get_running_loop().time() < self._retry_at.get(partition, 0.0)
                if self._views.get(partition) is view and not waits and view.is_due():
                    await self._snapshot(view)

    async def finish(self) -> None:
        """Write full snapshots that are due, so that short daily runs write some as well."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISHING):
                await self._write_due()

    async def _snapshot(self, view: StateView) -> None:
        partition, topic = view.session.partition, self._topics.names.snapshots
        loop = asyncio.get_running_loop()
        began, taken = loop.time(), view.take()
        try:
            named = await write_snapshot(
                self._producer, topic, self._topics.group_id, partition, taken, self._policy, self._piece
            )
        except Exception as error:  # raised by a client or for a key: other partitions continue
            view.not_written()
            if isinstance(error, ProduceFailed) and error.too_large and self._piece > _SMALLEST_PIECE:
                self._piece //= 2  # until the topic accepts them
            else:
                self._retry_at[partition] = loop.time() + _RETRY_DELAY
            if self._views.get(partition) is not view:
                return
            self._unwritten[partition] = str(error) or repr(error)
            logger.warning(
                "%s: a full snapshot of its state is not written to %s: %s; the write is repeated",
                partition,
                topic,
                str(error) or repr(error),
                extra={"action": "snapshot_failed"},
            )
            return
        except BaseException:
            view.not_written()
            raise
        view.written(named)
        self._written += 1
        self._unwritten.pop(partition, None)
        logger.info(
            "%s: wrote a full snapshot of its state: %d keys in %d pieces, %.1f s",
            partition,
            named.keys,
            named.pieces,
            loop.time() - began,
            extra={"action": "snapshot_written", "count": named.keys},
        )

    # -- the end ----------------------------------------------------------------------------------------

    def released(self, partition: TopicPartition) -> None:
        """Forget the state of this partition."""
        self._forget(partition)
        self._views.pop(partition, None)

    def _forget(self, partition: TopicPartition) -> None:
        self._restores.release(partition)
        self._unsaved.pop(partition, None)
        self._unwritten.pop(partition, None)
        self._retry_at.pop(partition, None)

    # -- showing ----------------------------------------------------------------------------------------

    def values(self, partition: TopicPartition) -> dict[bytes, Any] | None:
        """Returns a copy of a partition's values by key; None if it is not assigned or not restored."""
        view = self._views.get(partition)
        return dict(view.table.items()) if view is not None and view.is_restored else None

    def stats(self, found: Stats) -> Stats:
        """Add the statistics of the state."""
        return replace(found, state=self.statistics())

    def statistics(self) -> StateStats:
        """Returns the statistics of the restored partitions and of the restores."""
        views = [view for view in self._views.values() if view.is_restored]
        return StateStats(
            keys=sum(view.table.count for view in views),
            restoring={str(partition): part for partition, part in self._restores.parts().items()},
            restored=self._restores.restored,
            replayed=self._restores.replayed,
            snapshots=self._written,
            unapplied=sum(view.unapplied for view in views),
        )

    def problems(self) -> Sequence[Problem]:
        """Returns what is not restored, and what is not saved."""
        unsaved = [
            (self._unsaved, f"is not saved in {self._topics.names.increments}, so its offsets are not committed"),
            (self._unwritten, f"has no new full snapshot in {self._topics.names.snapshots}"),
        ]
        found: list[Problem] = []
        waits = self._restores.troubles()
        for partition, trouble in itertools.islice(waits.items(), 1):
            more = f" (and {len(waits) - 1} more partitions)" if len(waits) > 1 else ""
            text = f"{partition}: its state is not restored yet{more}: {trouble}"
            found.append(Problem(ProblemKind.STATE_WAITS, text))
        for partitions, what in unsaved:
            found += [
                Problem(ProblemKind.STATE_UNSAVED, f"{partition}: its state {what}: {reason}")
                for partition, reason in itertools.islice(partitions.items(), _REPORTED)
            ]
            if len(partitions) > _REPORTED:
                found.append(Problem(ProblemKind.STATE_UNSAVED, f"and {len(partitions) - _REPORTED} more partitions"))
        return found
