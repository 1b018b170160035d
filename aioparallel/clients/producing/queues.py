"""Everything that was given to ``send`` and has not ended: the sync core of the producer.

No loop, no clock, no client: the time, the leaders and the broker's answers are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from aioparallel.clients.producing.answers import Answer, Verdict
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import Encode, PartitionQueue, RecordBatch
from aioparallel.clients.producing.partitioning import KeyHashes
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.clients.producing.topic import Partitioner, Topic, is_topic_name
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records import Outgoing

__all__ = ["Outdated", "PartitionQueues"]


class Outdated(NamedTuple):
    """What :meth:`PartitionQueues.expire` leaves to be done."""

    cut: list[RecordBatch]
    """Batches in flight that nobody waits for any more: whoever carries them must not deliver them later."""
    next_deadline: float | None


class PartitionQueues:
    """Outputs by topic and partition, until they have ended.

    ``batch_bytes``: largest batch (a larger output goes alone). ``partitioner``: None for Kafka's own.
    ``check``: why an output cannot be sent at all, or None; not asked about those without headers whose key and
    value have no more than ``unchecked_bytes`` together.
    """

    def __init__(
        self,
        encode: Encode,
        check: Callable[[Outgoing], str | None],
        *,
        batch_bytes: int,
        unchecked_bytes: int,
        partitioner: Partitioner | None = None,
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.outstanding = Outstanding()
        self._fresh: Identity | None = None  # for partitions that need a producer id
        self.needs_identity = False
        """Whether some partition waits for a producer id, to be given to :meth:`identified`."""
        self._encode = encode
        self._check = check
        self._batch_bytes = batch_bytes
        self.unchecked_bytes = unchecked_bytes
        self._partitioner = partitioner
        self._hashes = KeyHashes()
        self._transaction: Identity | None = None
        self.on_broken: Callable[[Answer], None] | None = None
        """In transactions: hears why the one that goes on now cannot be committed."""
        # In the order of their turn: queues with something to send and nothing under way.
        self._ready: dict[PartitionQueue, None] = {}
        self._leaderless: dict[PartitionQueue, None] = {}

    # -- in

    def add(self, entry: PendingOutput) -> str | None:
        """Take a new entry; returns why it cannot be sent, if so: it has not failed yet then."""
        output = entry.output
        self.outstanding.count += 1
        if (reason := self.refusal(output)) is not None:
            return reason
        return self._put(entry)

    def add_all(self, entries: Iterable[PendingOutput]) -> list[tuple[PendingOutput, str]]:
        """:meth:`add` for each of these, for which :meth:`refusal` has said None. Returns those that cannot be sent all
        the same, and why."""
        refused = []
        for entry in entries:
            self.outstanding.count += 1
            if (reason := self._put(entry)) is not None:
                refused.append((entry, reason))
        return refused

    def _put(self, entry: PendingOutput) -> str | None:
        """Put it into its topic; returns why that cannot be."""
        name = entry.output.topic
        topic = self.topics.get(name)
        return self._route(self._new(name) if topic is None else topic, entry)

    def refusal(self, output: Outgoing) -> str | None:
        """Why this output cannot be sent whatever the cluster looks like, or None."""
        key, value = output.key, output.value
        size = (len(value) if value else 0) + (len(key) if key else 0)
        if (size > self.unchecked_bytes or output.headers) and (reason := self._check(output)) is not None:
            return reason
        if output.topic not in self.topics and not is_topic_name(output.topic):
            return f"{output.topic!r} is no name of a topic: 249 letters, digits, '.', '_' and '-' at most"
        return None

    def _route(self, topic: Topic, entry: PendingOutput) -> str | None:
        """Put it where it waits; returns why it cannot be put anywhere."""
        try:
            queue = topic.queue_for(entry.output)
        except ValueError as error:
            return str(error)
        except Exception as error:
            if self._partitioner is None:
                return f"it was changed after it was handed over: {error!r}"
            return f"the partitioner failed: {error!r}"
        queue.waiting.append(entry)
        # With a batch under way it is listed again when that has ended.
        if queue.batch is None and queue is not topic.unresolved:
            self._ready[queue] = None
        return None

    def _new(self, name: str) -> Topic:
        hashes, among = self._hashes, self.outstanding
        topic = self.topics[name] = Topic(name, self._batch_bytes, self._partitioner, hashes, among)
        return topic

    # -- what the cluster looks like

    def update(self, partitions: Callable[[str], Mapping[int, bool]], now: float) -> None:
        """The metadata is new. ``partitions(topic)``: its partitions, and whether each has a leader."""
        refused: list[tuple[PendingOutput, str]] = []
        for topic in self.topics.values():
            found = partitions(topic.name)
            topic.update(tuple(found), [number for number, has_leader in found.items() if has_leader])
            for queue in topic.all_queues:
                is_missing = queue.partition not in found if queue is not topic.unresolved else not found
                if not is_missing or queue.is_empty:
                    queue.missing_since = None
                elif queue.missing_since is None:
                    queue.missing_since = now
            waiting = topic.unresolved.waiting
            while waiting and topic.partitions:
                entry = waiting.popleft()
                if (reason := self._route(topic, entry)) is not None:
                    refused.append((entry, reason))
        self._ready.update(self._leaderless)
        self._leaderless.clear()
        for topic in list(self.topics.values()):
            if topic.was_never_found and topic.unresolved.is_empty:
                del self.topics[topic.name]  # or it would be asked for for ever
        # Only now: whoever hears of a failure may send something, to a new topic as well.
        for entry, reason in refused:
            self.outstanding.failed([entry], reason, passing=False)

    @property
    def needs_metadata(self) -> bool:
        """Whether something waits for what only new metadata can tell."""
        return bool(self._leaderless) or any(not topic.unresolved.is_empty for topic in self.topics.values())

    # -- out

    @property
    def has_ready(self) -> bool:
        """Whether anything waits for its turn."""
        return bool(self._ready)

    def by_node(
        self, node_of: Callable[[PartitionQueue], int | None], busy: Collection[int]
    ) -> dict[int, list[PartitionQueue]]:
        """The ready queues by their leaders, busy ones left out; those without a leader wait for metadata."""
        nodes: dict[int, list[PartitionQueue]] = {}
        for queue in list(self._ready):
            if queue.is_empty:
                del self._ready[queue]
                continue
            node = node_of(queue)
            if node is None or node < 0:
                del self._ready[queue]
                self._leaderless[queue] = None
            elif node not in busy:
                nodes.setdefault(node, []).append(queue)
        return nodes

    def fill(self, queues: Iterable[PartitionQueue], node: int, limit: int) -> list[RecordBatch]:
        """The batches of one request, about ``limit`` bytes at most; their queues are not ready any more."""
        batches: list[RecordBatch] = []
        size = 0
        for queue in queues:
            if self._transaction is not None and queue.batch is None:
                queue.numbering.adopt(self._transaction)
            if queue.batch is None and queue.numbering.next(self._fresh) is None:
                self.needs_identity = True  # it stays ready
                continue
            batch = queue.take(self._encode, self._fresh)
            self._ready.pop(queue, None)
            if batch is None:
                continue
            batch.node = node
            batches.append(batch)
            self.topics[queue.topic].has_gone(queue)
            size += len(batch.data)
            if size >= limit:
                break
        return batches

    def identified(self, fresh: Identity) -> None:
        """A producer id that nobody has had."""
        self._fresh = fresh
        self.needs_identity = False

    def begin(self, transaction: Identity) -> None:
        """What is taken from now on is of this transaction. Nothing is outstanding."""
        self._transaction = transaction
        self.needs_identity = False  # none but this one

    # -- back

    def answered(self, batch: RecordBatch, answer: Answer) -> None:
        """What the broker said about a batch. After ``Verdict.AGAIN`` it stays under way until :meth:`resume`."""
        queue = batch.queue
        match answer.verdict:
            case Verdict.WRITTEN:
                queue.acknowledged(batch, answer.offset, answer.timestamp)
            case Verdict.AGAIN:
                queue.again(batch, answer.reason)
                return
            case Verdict.SPLIT | Verdict.TOO_LARGE:
                queue.split(batch, answer.explain, is_too_large=answer.verdict is Verdict.TOO_LARGE)
            case Verdict.ANEW | Verdict.REJECTED:
                queue.anew(batch, answer.reason, is_rejected=answer.verdict is Verdict.REJECTED)
            case Verdict.REFUSED | Verdict.UNCLEAR:
                was_written = answer.verdict is Verdict.UNCLEAR
                queue.refused(batch, answer.explain(len(batch.data)), was_written=was_written)
            case Verdict.BROKEN:
                if (entries := queue.broken(batch)) is not None:
                    assert self.on_broken is not None
                    self.on_broken(answer)
                    self.outstanding.failed(entries, answer.reason, passing=True)
        self.resume(batch)

    def resume(self, batch: RecordBatch) -> None:
        """The partition may go on, with this batch again if it is still under way."""
        queue = batch.queue
        if (queue.batch is None or not queue.batch.is_in_flight) and not queue.is_empty:
            self._ready[queue] = None

    # -- giving up

    def expire(self, now: float, explain: Callable[[PartitionQueue], str]) -> Outdated:
        """Fail all outputs that are out of time."""
        cut: list[RecordBatch] = []
        for queue in self.queues:
            self._expire(queue, now, explain, cut)
        # Only now: whoever heard of a failure may have sent something, wherever.
        deadlines = (queue.next_deadline for queue in self.queues)
        return Outdated(cut, min((deadline for deadline in deadlines if deadline is not None), default=None))

    def give_up_missing(
        self, since: float, deadline: float, explain: Callable[[PartitionQueue], str], *, passing: bool
    ) -> list[RecordBatch]:
        """Fail outputs of partitions that the metadata has not known since then, those up to this deadline; returns
        batches to cut off, as :meth:`expire` does. ``passing``: as what passes."""
        cut: list[RecordBatch] = []
        for queue in self.queues:
            if queue.missing_since is not None and queue.missing_since <= since:
                self._expire(queue, deadline, explain, cut, passing=passing)
        return cut

    def clear_topic(self, name: str) -> list[PendingOutput]:
        """Take everything of one topic out, as :meth:`clear` does."""
        topic = self.topics.get(name)
        return [] if topic is None else [entry for queue in topic.all_queues for entry in queue.drain()]

    def clear(self) -> list[PendingOutput]:
        """Take everything out: nothing is outstanding any more; the entries are still to be failed."""
        entries = [entry for queue in self.queues for entry in queue.drain()]
        self._ready.clear()
        self._leaderless.clear()
        return entries

    def _expire(
        self,
        queue: PartitionQueue,
        deadline: float,
        explain: Callable[[PartitionQueue], str],
        cut: list[RecordBatch],
        *,
        passing: bool = True,
    ) -> None:
        if (batch := queue.expire(deadline, explain, passing=passing)) is not None:
            cut.append(batch)
        if queue.is_empty:
            self._ready.pop(queue, None)
            self._leaderless.pop(queue, None)
        elif queue.batch is None and queue.partition >= 0:
            # It may have been waiting for the batch that was under way.
            self._ready[queue] = None

    @property
    def queues(self) -> list[PartitionQueue]:
        """Those of all topics."""
        return [queue for topic in self.topics.values() for queue in topic.all_queues]
