"""The companion of a consumer that deduplicates: memories restored, looked into, saved and released."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aioparallel.coordinates import why_no_coordinates
from aioparallel.deduplication.identities import identify_by
from aioparallel.deduplication.memory import Changes, Memory
from aioparallel.deduplication.seen import Looked, Seen
from aioparallel.deduplication.seen_topic import Restore, SeenTopic
from aioparallel.engine.sinks import DeadLetterSink, Done
from aioparallel.errors import ProduceFailed
from aioparallel.group.client import CommitFault, Committed
from aioparallel.group.sessions import Session
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.policies import Deduplicate
from aioparallel.records import Record, TopicPartition

__all__ = ["Deduplication"]

logger = logging.getLogger(__name__)

_MUCH: Final = 200_000_000
"""Bytes that were read to restore one partition, from which on somebody should look at the topic."""
_TOLD: Final = 10
"""Partitions that are not saved and told of one by one."""


class _Writing(NamedTuple):
    """What is on its way to the topic, of one partition."""

    memory: Memory
    changes: Changes
    written: asyncio.Future[ProduceFailed | None]


class Deduplication:
    """The :class:`~aioparallel.group.companions.Companion` that ``Deduplicate`` asks for."""

    def __init__(self, policy: Deduplicate, topic: SeenTopic) -> None:
        self.left_out = 0
        self._policy = policy
        self._topic = topic
        self._restores: dict[TopicPartition, Restore] = {}
        self._memories: dict[TopicPartition, Memory] = {}
        self._writing: dict[TopicPartition, _Writing] = {}
        self._unsaved: dict[TopicPartition, str] = {}  # and why
        self._unknown = 0

    # -- the companion ----------------------------------------------------------------------------------

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.companions.Companion`."""
        ours = {partition: self._restores.setdefault(partition, Restore()) for partition in found}
        await self._topic.read(ours, timeout)
        for partition, restore in ours.items():
            memory = await self._topic.remembered(restore, self._policy.remember)
            # It may have been released meanwhile, and even be restored anew for somebody else.
            if self._restores.get(partition) is restore:
                del self._restores[partition]
                self._memories[partition] = memory
                self._writing.pop(partition, None)
                logger.info(
                    "%s: %d %s seen are remembered",
                    partition,
                    len(memory),
                    "records" if self._policy.by == "record" else "keys",
                    extra={"action": "seen_restored", "count": len(memory)},
                )
                if restore.bytes > _MUCH:
                    logger.warning(
                        "%s: %d MB were read of %s for it: let that be compacted sooner, with segment.bytes=16777216 "
                        "and min.cleanable.dirty.ratio=0.1",
                        partition,
                        restore.bytes // 1_000_000,
                        self._policy.topic,
                        extra={"action": "seen_uncompacted", "bytes": restore.bytes},
                    )

        return found

    def beside(self, session: Session) -> Seen:
        """See :class:`~aioparallel.group.companions.Companion`."""
        partition = session.partition
        return Seen(identify_by(self._policy.by, self._topic.group_id), lambda: self._memories[partition], self._looked)

    async def save(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """See :class:`~aioparallel.group.companions.Companion`.

        Of each partition one write at most is on its way: one without an answer is waited for by the next save, and not
        sent again beside it.
        """
        ends = asyncio.get_running_loop().time() + timeout
        unsaved: dict[TopicPartition, CommitFault] = {}
        before = [partition for partition in positions if partition in self._writing]
        # First those that wait for nothing: what hangs must not take their time.
        await self._write([partition for partition in positions if partition not in before], ends, unsaved)
        await self._finish(before, ends, unsaved)
        await self._write([partition for partition in before if partition not in unsaved], ends, unsaved)
        return unsaved

    async def _write(
        self, partitions: Collection[TopicPartition], ends: float, unsaved: dict[TopicPartition, CommitFault]
    ) -> None:
        """Write all that is known of these now, and wait for it."""
        memories = {partition: self._memories.get(partition) for partition in partitions}
        for partition, memory in memories.items():
            if memory is None or memory is not self._memories.get(partition):
                continue
            changes = memory.changes()
            outputs = await self._topic.outputs(partition, changes)
            if outputs and self._memories.get(partition) is memory:
                self._writing[partition] = _Writing(memory, changes, self._topic.write(outputs))
        await self._finish(partitions, ends, unsaved)
        for partition, memory in memories.items():
            if memory is None or self._memories.get(partition) is not memory:
                # Released meanwhile. What is not saved must not be committed, though the group may still take it.
                unsaved[partition] = CommitFault.RETRIABLE
            elif partition not in unsaved:
                self._unsaved.pop(partition, None)

    async def _finish(
        self, partitions: Collection[TopicPartition], ends: float, unsaved: dict[TopicPartition, CommitFault]
    ) -> None:
        """Wait for what is on its way of these."""
        writing = {p: self._writing[p] for p in partitions if p in self._writing and p not in unsaved}
        if not writing:
            return
        left = max(0.0, ends - asyncio.get_running_loop().time())
        await asyncio.wait([one.written for one in writing.values()], timeout=left)
        for partition, one in writing.items():
            if not one.written.done():
                unsaved[partition] = CommitFault.RETRIABLE
                self._not_saved(partition, "it does not answer")
                continue
            if self._writing.get(partition) is one:
                del self._writing[partition]
            failure = one.written.result()
            if failure is not None:
                unsaved[partition] = CommitFault.RETRIABLE if failure.passing else CommitFault.REFUSED
                self._not_saved(partition, str(failure))
            else:
                one.memory.written(one.changes)

    def _not_saved(self, partition: TopicPartition, reason: str) -> None:
        """Told once, until it is saved again; health says it as long."""
        if partition not in self._memories:
            return
        if self._unsaved.get(partition) != reason:
            logger.warning(
                "%s: what was seen is not saved in %s, so nothing is committed: %s",
                partition,
                self._policy.topic,
                reason,
                extra={"action": "seen_unsaved"},
            )
        self._unsaved[partition] = reason

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""
        self._restores.pop(partition, None)
        self._memories.pop(partition, None)
        self._writing.pop(partition, None)
        self._unsaved.pop(partition, None)

    async def work(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""

    async def finish(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""

    async def close(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""

    def stats(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""

    def problems(self) -> Sequence[Problem]:
        """See :class:`~aioparallel.group.companions.Companion`."""
        found = [
            Problem(
                ProblemKind.SEEN_UNSAVED,
                f"{partition}: what was seen is not saved in {self._policy.topic}, so nothing is committed: {reason}",
            )
            for partition, reason in itertools.islice(self._unsaved.items(), _TOLD)
        ]
        if len(self._unsaved) > _TOLD:
            found.append(Problem(ProblemKind.SEEN_UNSAVED, f"and {len(self._unsaved) - _TOLD} more partitions"))
        if self._unknown:
            found.append(
                Problem(
                    ProblemKind.NO_SOURCE,
                    f"{self._unknown} records do not say which record they were made of (headers src-topic, "
                    "src-partition, src-offset are missing or wrong), so copies of them are handled again",
                )
            )
        return found

    # -- hearing ----------------------------------------------------------------------------------------

    def _looked(self, found: Looked) -> None:
        self.left_out += found.copies
        if found.unknown and not self._unknown and found.example is not None:
            logger.warning(
                "%s does not say which record it was made of: %s (aioparallel.source_headers and aioparallel.spark "
                "write src-topic, src-partition and src-offset). It is handled, and so are its copies; logged once",
                found.example.place,
                why_no_coordinates(found.example.headers),
                extra={"action": "no_source"},
            )
        self._unknown += found.unknown

    def around(self, dead_letter_sink: DeadLetterSink) -> DeadLetterSink:
        """Dead letters are not remembered: whoever sends one back wants it handled."""
        return _PutAway(dead_letter_sink)


class _PutAway:
    """Tells the view of a session which of its records were not handled."""

    def __init__(self, dead_letter_sink: DeadLetterSink) -> None:
        self.room = dead_letter_sink.room
        self._dead_letter_sink = dead_letter_sink

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """See :class:`~aioparallel.engine.sinks.DeadLetterSink`."""

        def disposed(record: Record[Any, Any], failure: Exception | None) -> None:
            if failure is None and not record._source.dropped:
                beside = getattr(record._source, "beside", None)
                if isinstance(beside, Seen):
                    beside.dead_lettered(record.offset)
            done(record, failure)

        # Into a retry topic it goes on itself: a copy of it is still a copy.
        self._dead_letter_sink.dispose(record, error, retry_topic, done if retry_topic is not None else disposed)
