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
from aioparallel.delivery.producer import Producer, sent
from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import CommitFault, Committed
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import StateStats, Stats
from aioparallel.persistence.compacted_topic import unsaved_problems
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
_LAST_SNAPSHOT: Final = 0.1
"""Seconds for unacknowledged pieces of a full snapshot at the end. No increment names that snapshot yet."""

_Write = asyncio.Task[Sequence[Produced] | ProduceFailed]


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
        self._last: dict[TopicPartition, StateView] = {}  # when a run has ended with everything committed
        self._has_finished = False
        self._writes: dict[TopicPartition, _Write] = {}  # the last increments
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
        for state in cast("Assignment", record._source).partition_states:
            if isinstance(state, StateView):
                state.begin(record)

    # -- restoring --------------------------------------------------------------------------------------

    def assigned(self, assignment: Assignment) -> StateView:
        """Returns an empty view, which is restored next."""
        self._restores.release(assignment.partition)
        view = self._views[assignment.partition] = StateView(
            self._policy, assignment, steady_time, keeps_lanes=self._is_transactional
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
        place, generation = Place(self._topics.group_id, partition, increment.incarnation), increment.generation
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
        before = {p: write for p in positions if (write := self._writes.get(p)) is not None and not write.done()}
        writes: dict[TopicPartition, _Write] = {}
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        for count, (partition, committed) in enumerate(positions.items(), 1):
            if partition not in before and self._views.get(partition) is views[partition]:
                if outputs := self.commit_outputs(partition, committed):
                    write = loop.create_task(self._write(outputs), name="aioparallel-increment")
                    writes[partition] = self._writes[partition] = write
                if not count % _MADE_AT_ONCE:
                    await asyncio.sleep(0)
        # Writes of earlier calls do not delay those of this one.
        if writes:
            await asyncio.wait(writes.values(), timeout=max(0.0, ends - loop.time()))
        elif before:
            await asyncio.wait(before.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        unsaved: dict[TopicPartition, CommitFault] = {}
        for partition, view in views.items():
            own = writes.get(partition)
            if view is None or self._views.get(partition) is not view:
                unsaved[partition] = CommitFault.RETRIABLE  # released meanwhile
            elif own is None or not own.done():
                unsaved[partition] = CommitFault.RETRIABLE
                pending = own or before.get(partition)
                if pending is not None and not pending.done():
                    self._not_saved(view, "the write is not acknowledged")
            elif isinstance(result := own.result(), ProduceFailed):
                unsaved[partition] = self._refused(view, result)
            else:
                view.save_failure = ""
        return unsaved

    def _refused(self, view: StateView, failure: ProduceFailed) -> CommitFault:
        self._not_saved(view, str(failure))
        if failure.too_large:
            self.commit_outputs_too_large()
        is_helped = failure.too_large and self._largest > _SMALLEST_PIECE
        return CommitFault.RETRIABLE if failure.passing or is_helped else CommitFault.REFUSED

    async def _write(self, outputs: Sequence[Outgoing]) -> Sequence[Produced] | ProduceFailed:
        """Write an increment, after its parts are stored."""
        if len(outputs) > 1 and isinstance(result := await sent(self._producer, outputs[:-1]), ProduceFailed):
            return result
        return await sent(self._producer, outputs[-1:])

    def _not_saved(self, view: StateView, reason: str) -> None:
        """Log a reason once, and report it in health until the partition is saved."""
        if view.save_failure != reason:
            logger.warning(
                "%s: the increment of its state is not written to %s, so its offsets are not committed: %s",
                view.assignment.partition,
                self._topics.names.increments,
                reason,
                extra={"action": "state_unsaved"},
            )
        view.save_failure = reason

    # -- full snapshots ---------------------------------------------------------------------------------

    async def work(self) -> None:
        """Write full snapshots that are due, one after the other."""
        while True:
            await asyncio.sleep(_SNAPSHOT_INTERVAL)
            await self._write_due()

    async def _write_due(self) -> None:
        for view in [*self._views.values()]:
            partition = view.assignment.partition
            async with self._writing:
                waits = asyncio.get_running_loop().time() < view.retry_at
                if self._views.get(partition) is view and not waits and view.is_due():
                    await self._snapshot(view)

    async def finish(self) -> None:
        """Write full snapshots that are due, so that short daily runs write some as well."""
        self._has_finished = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISHING):
                await self._write_due()

    async def _snapshot(self, view: StateView) -> None:
        partition, topic = view.assignment.partition, self._topics.names.snapshots
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
                view.retry_at = loop.time() + _RETRY_DELAY
            if self._views.get(partition) is not view:
                return
            view.snapshot_failure = str(error) or repr(error)
            logger.warning(
                "%s: a full snapshot of its state is not written to %s: %s; the write is repeated",
                partition,
                topic,
                view.snapshot_failure,
                extra={"action": "snapshot_failed"},
            )
            return
        except BaseException:
            view.not_written()
            raise
        view.written(named)
        self._written += 1
        view.snapshot_failure = ""
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
        """Forget the state of this partition, unless the run has ended: a bounded run's result may be its states."""
        self._restores.release(partition)
        view = self._views.pop(partition, None)
        if view is not None and self._has_finished:
            self._last[partition] = view

    # -- showing ----------------------------------------------------------------------------------------

    def values(self, partition: TopicPartition) -> dict[bytes, Any] | None:
        """Returns a copy of a partition's values by key, after the run as they were at its end; None if it is not
        assigned or not restored."""
        view = self._views.get(partition) or self._last.get(partition)
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
        found: list[Problem] = []
        waits = self._restores.troubles()
        for partition, trouble in itertools.islice(waits.items(), 1):
            more = f" (and {len(waits) - 1} more partitions)" if len(waits) > 1 else ""
            text = f"{partition}: its state is not restored yet{more}: {trouble}"
            found.append(Problem(ProblemKind.STATE_WAITS, text))
        names, kind = self._topics.names, ProblemKind.STATE_UNSAVED
        not_saved = {partition: view.save_failure for partition, view in self._views.items() if view.save_failure}
        not_written = {
            partition: view.snapshot_failure for partition, view in self._views.items() if view.snapshot_failure
        }
        text = f"its state is not saved in {names.increments}, so its offsets are not committed"
        found += unsaved_problems(kind, text, not_saved)
        return found + unsaved_problems(kind, f"its state has no new full snapshot in {names.snapshots}", not_written)
