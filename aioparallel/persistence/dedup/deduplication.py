"""The extension behind ``Deduplicate``: it leaves out copies of records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.policies import Deduplicate
from aioparallel.engine.sinks import DeadLetterSink, Done
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import CommitFault, Committed
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.persistence.compacted_topic import unsaved_problems
from aioparallel.persistence.dedup.identities import identify_by
from aioparallel.persistence.dedup.remembered import Changes, Memory
from aioparallel.persistence.dedup.seen import Looked, Seen
from aioparallel.persistence.dedup.seen_topic import Restore, SeenTopic, Written
from aioparallel.records.errors import ConfigurationError, ProduceFailed, TopicNotFound
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.source_headers import why_no_coordinates

__all__ = ["Deduplication"]

logger = logging.getLogger(__name__)

_TOO_MANY_BYTES: Final = 200_000_000
"""Bytes read to restore one partition that cause a warning about the compaction of the topic."""
_WANTED: Final = "Deduplicate(topic=): with cleanup.policy=compact, and as many partitions as the input topics"


class _Partition:
    """One partition, since its memory was restored."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.writing: tuple[Changes, Written] | None = None  # unacknowledged
        self.not_saved = ""  # why the last changes are not saved


class Deduplication(Extension):
    """Leaves out the records that ``Deduplicate`` describes."""

    _consumer: ConsumerContext
    _topic: SeenTopic

    def __init__(self, policy: Deduplicate) -> None:
        self._policy = policy
        self._not_saved_text = (
            f"the deduplication memory is not saved in {policy.topic}, so its offsets are not committed"
        )
        self._copies = 0
        self._restores: dict[TopicPartition, Restore] = {}
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unknown = 0  # records without the coordinates of their source

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Open the topic for the consumer's group. Raises ConfigurationError."""
        if consumer.producer is None:
            raise ConfigurationError("producer", None, "deduplicate needs one if the client is your own: producer=...")
        self._consumer = consumer
        self._topic = SeenTopic(
            self._policy.topic,
            consumer.group_id,
            consumer.client,
            consumer.producer,
            consumer.options.skip_unreadable,
        )

    def topics(self) -> Mapping[str, str]:
        """Returns the topic of the memory."""
        return {self._policy.topic: "Deduplicate topic"}

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check that the topic exists and can hold the memories of these partitions."""
        assert self._consumer.producer is not None
        await self._consumer.producer.start(timeout)
        if not await self._topic.count(timeout):
            name = self._policy.topic
            raise TopicNotFound({name}, self._consumer.servers, {name: _WANTED})
        await self._topic.check_policy(timeout)
        await self._topic.check_partitions(partitions, timeout)

    # -- partitions -------------------------------------------------------------------------------------

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Read the memories of these partitions."""
        ours = {partition: self._restores.setdefault(partition, Restore()) for partition in positions}
        await self._topic.read(ours, timeout)
        for partition, restore in ours.items():
            memory = await self._topic.remembered(restore, self._policy.remember)
            # The partition may have been released meanwhile, and even assigned again.
            if self._restores.get(partition) is restore:
                del self._restores[partition]
                self._partitions[partition] = _Partition(memory)
                logger.info(
                    "%s: restored the memory of %d %s",
                    partition,
                    len(memory),
                    "records" if self._policy.by == "record" else "keys",
                    extra={"action": "seen_restored", "count": len(memory)},
                )
                if restore.bytes > _TOO_MANY_BYTES:
                    logger.warning(
                        "%s: the restore read %d MB of %s: compact that topic earlier, with segment.bytes=16777216 and "
                        "min.cleanable.dirty.ratio=0.1",
                        partition,
                        restore.bytes // 1_000_000,
                        self._policy.topic,
                        extra={"action": "seen_uncompacted", "bytes": restore.bytes},
                    )
        return positions

    def assigned(self, assignment: Assignment) -> Seen:
        """Returns the filter of one assignment."""
        partition, identify = assignment.partition, identify_by(self._policy.by, self._topic.group_id)
        return Seen(identify, lambda: self._partitions[partition].memory, self._looked)

    # -- commits ----------------------------------------------------------------------------------------

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Write the changes of the memories.

        A partition has at most one unacknowledged write. The next call waits for it.
        """
        ends = asyncio.get_running_loop().time() + timeout
        unsaved: dict[TopicPartition, CommitFault] = {}
        before = [p for p in positions if (one := self._partitions.get(p)) is not None and one.writing is not None]
        # First those without an unacknowledged write: a slow write must not take their time.
        await self._write([partition for partition in positions if partition not in before], ends, unsaved)
        await self._finish(before, ends, unsaved)
        await self._write([partition for partition in before if partition not in unsaved], ends, unsaved)
        return unsaved

    async def _write(
        self, partitions: Collection[TopicPartition], ends: float, unsaved: dict[TopicPartition, CommitFault]
    ) -> None:
        """Write the current changes of these partitions and wait for the acknowledgements."""
        found = {partition: self._partitions.get(partition) for partition in partitions}
        for partition, one in found.items():
            if one is None or one is not self._partitions.get(partition):
                continue
            changes = one.memory.changes()
            outputs = await self._topic.outputs(partition, changes)
            if outputs and self._partitions.get(partition) is one:
                one.writing = changes, self._topic.write(outputs)
        await self._finish(partitions, ends, unsaved)
        for partition, one in found.items():
            if one is None or self._partitions.get(partition) is not one:
                # Released meanwhile. The group may still accept a commit, and unsaved offsets must not be committed.
                unsaved[partition] = CommitFault.RETRIABLE
            elif partition not in unsaved:
                one.not_saved = ""

    async def _finish(
        self, partitions: Collection[TopicPartition], ends: float, unsaved: dict[TopicPartition, CommitFault]
    ) -> None:
        """Wait for the unacknowledged writes of these partitions."""
        found = [(p, self._partitions[p]) for p in partitions if p in self._partitions and p not in unsaved]
        writing = [(partition, one, *one.writing) for partition, one in found if one.writing is not None]
        if not writing:
            return
        left = max(0.0, ends - asyncio.get_running_loop().time())
        await asyncio.wait([written for _, _, _, written in writing], timeout=left)
        for partition, one, changes, written in writing:
            if not written.done():
                unsaved[partition] = CommitFault.RETRIABLE
                self._not_saved(partition, one, "the write is not acknowledged")
                continue
            one.writing = None
            if isinstance(result := written.result(), ProduceFailed):
                unsaved[partition] = CommitFault.RETRIABLE if result.passing else CommitFault.REFUSED
                self._not_saved(partition, one, str(result))
            else:
                one.memory.written(changes)

    def _not_saved(self, partition: TopicPartition, one: _Partition, reason: str) -> None:
        """Log a reason once, and report it in health until the partition is saved."""
        if one.not_saved != reason and self._partitions.get(partition) is one:
            logger.warning("%s: %s: %s", partition, self._not_saved_text, reason, extra={"action": "seen_unsaved"})
        one.not_saved = reason

    def released(self, partition: TopicPartition) -> None:
        """Forget this partition."""
        self._restores.pop(partition, None)
        self._partitions.pop(partition, None)

    # -- reporting --------------------------------------------------------------------------------------

    def stats(self, found: Stats) -> Stats:
        """Count the copies."""
        return replace(found, copies=self._copies)

    def problems(self) -> Sequence[Problem]:
        """Returns what is not saved, and how many records do not name their source."""
        not_saved = {partition: one.not_saved for partition, one in self._partitions.items() if one.not_saved}
        found = unsaved_problems(ProblemKind.SEEN_UNSAVED, self._not_saved_text, not_saved)
        if self._unknown:
            found.append(
                Problem(
                    ProblemKind.NO_SOURCE,
                    f"{self._unknown} records do not name the record they were made of (headers src-topic, "
                    "src-partition, src-offset are missing or wrong), so their copies are handled again",
                )
            )
        return found

    def _looked(self, found: Looked) -> None:
        self._copies += found.copies
        if found.unknown and not self._unknown and found.example is not None:
            logger.warning(
                "%s does not name the record it was made of: %s (aioparallel.source_headers and aioparallel.spark "
                "write src-topic, src-partition and src-offset). It is handled, and so are its copies; logged once",
                found.example.place,
                why_no_coordinates(found.example.headers),
                extra={"action": "no_source"},
            )
        self._unknown += found.unknown

    def dead_letter_sink(self, sink: DeadLetterSink | None) -> DeadLetterSink | None:
        """Do not remember dead letters: a replayed one must be handled."""
        return None if sink is None else _ForgettingSink(sink)


class _ForgettingSink:
    """Does not remember records that were dead-lettered."""

    def __init__(self, dead_letter_sink: DeadLetterSink) -> None:
        self.room = dead_letter_sink.room
        self._dead_letter_sink = dead_letter_sink

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        def disposed(record: Record[Any, Any], failure: Exception | None) -> None:
            if failure is None and not record._source.dropped:
                for state in getattr(record._source, "partition_states", ()):
                    if isinstance(state, Seen):
                        state.dead_lettered(record.offset)
            done(record, failure)

        # A record in a retry topic is retried there, so its copies are still copies.
        self._dead_letter_sink.dispose(record, error, retry_topic, done if retry_topic is not None else disposed)
