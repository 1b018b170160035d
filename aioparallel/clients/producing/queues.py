"""All outputs that were given to ``send`` and have no result: the synchronous core of the producer.

It has no loop, clock or client: the time, the leaders and the brokers' answers are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import Encode, PartitionQueue, RecordBatch
from aioparallel.clients.producing.partitioning import KeyHashes
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.clients.producing.produce_answers import Answer, Verdict
from aioparallel.clients.producing.topic import Partitioner, Topic, is_topic_name
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records.record import Outgoing

__all__ = ["PartitionQueues"]


class PartitionQueues:
    """Outputs by topic and partition, until they have a result.

    ``batch_bytes``: largest batch; a larger output gets a batch of its own. ``partitioner``: None for Kafka's default.
    ``check`` returns why an output cannot be sent, or None. It is skipped for outputs without headers whose key and
    value together have at most ``unchecked_bytes``.
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
        """Whether a partition waits for a producer id from :meth:`identified`."""
        self._encode = encode
        self._check = check
        self._batch_bytes = batch_bytes
        self.unchecked_bytes = unchecked_bytes
        self._partitioner = partitioner
        self._hashes = KeyHashes()
        self._transaction: Identity | None = None
        self.on_broken: Callable[[Answer], None] | None = None
        """In transactions: called with the reason when the current transaction can no longer be committed."""
        # Queues with something to send and nothing in flight, in the order of their turn.
        self._ready: dict[PartitionQueue, None] = {}
        self._leaderless: dict[PartitionQueue, None] = {}

    # -- in

    def add(self, entry: PendingOutput) -> str | None:
        """Accept a new entry. Returns the reason if it cannot be sent; the caller must then fail it."""
        output = entry.output
        self.outstanding.count += 1
        if (reason := self.refusal(output)) is not None:
            return reason
        return self._put(entry)

    def add_all(self, entries: Iterable[PendingOutput]) -> list[tuple[PendingOutput, str]]:
        """:meth:`add` for entries that have passed :meth:`refusal`. Returns those that cannot be sent, with the
        reasons."""
        refused = []
        for entry in entries:
            self.outstanding.count += 1
            if (reason := self._put(entry)) is not None:
                refused.append((entry, reason))
        return refused

    def _put(self, entry: PendingOutput) -> str | None:
        """Add the entry to its topic. Returns the reason if that is impossible."""
        name = entry.output.topic
        topic = self.topics.get(name)
        if topic is None:
            topic = Topic(name, self._batch_bytes, self._partitioner, self._hashes, self.outstanding)
            self.topics[name] = topic
        return self._route(topic, entry)

    def refusal(self, output: Outgoing) -> str | None:
        """Why this output can never be sent, whatever the cluster looks like, or None."""
        key, value = output.key, output.value
        size = (len(value) if value else 0) + (len(key) if key else 0)
        if (size > self.unchecked_bytes or output.headers) and (reason := self._check(output)) is not None:
            return reason
        if output.topic not in self.topics and not is_topic_name(output.topic):
            return f"{output.topic!r} is not a topic name: 249 letters, digits, '.', '_' and '-' at most"
        return None

    def _route(self, topic: Topic, entry: PendingOutput) -> str | None:
        """Add the entry to its queue. Returns the reason if there is no such queue."""
        try:
            queue = topic.queue_for(entry.output)
        except ValueError as error:
            return str(error)
        except Exception as error:
            if self._partitioner is None:
                return f"it was changed after it was handed over: {error!r}"
            return f"the partitioner failed: {error!r}"
        queue.waiting.append(entry)
        # A queue with a current batch becomes ready again when that batch ends.
        if queue.batch is None and queue is not topic.unresolved:
            self._ready[queue] = None
        return None

    # -- metadata

    def update(self, partitions: Callable[[str], Mapping[int, bool]], now: float) -> None:
        """Apply new metadata. ``partitions(topic)``: its partitions, and whether each has a leader."""
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
                del self.topics[topic.name]  # else its metadata would be requested for ever
        # Last, because failure callbacks may send outputs, also to new topics.
        for entry, reason in refused:
            self.outstanding.failed([entry], reason, passing=False)

    @property
    def needs_metadata(self) -> bool:
        """Whether an output waits for new metadata."""
        return bool(self._leaderless) or any(not topic.unresolved.is_empty for topic in self.topics.values())

    # -- out

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def by_node(
        self, node_of: Callable[[PartitionQueue], int | None], busy: Collection[int]
    ) -> dict[int, list[PartitionQueue]]:
        """The ready queues by leader, without busy nodes. Queues without a leader then wait for metadata."""
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
        """Make the batches of one request, about ``limit`` bytes at most. Their queues are no longer ready."""
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
            self.topics[queue.topic].batch_taken(queue)
            size += len(batch.data)
            if size >= limit:
                break
        return batches

    def identified(self, fresh: Identity) -> None:
        self._fresh = fresh
        self.needs_identity = False

    def begin(self, transaction: Identity) -> None:
        """Assign all further batches to this transaction. Nothing may be outstanding."""
        self._transaction = transaction
        self.needs_identity = False  # the transaction's identity is the only one

    # -- results

    def answered(self, batch: RecordBatch, answer: Answer) -> None:
        """Apply the broker's answer. After ``Verdict.AGAIN`` the batch stays current until :meth:`resume`."""
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
        """Let the partition send again, with this batch if it is still current."""
        queue = batch.queue
        if (queue.batch is None or not queue.batch.is_in_flight) and not queue.is_empty:
            self._ready[queue] = None

    # -- timeouts

    @property
    def next_deadline(self) -> float | None:
        """When the oldest output times out."""
        deadlines = (queue.next_deadline for queue in self.queues)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def expire(self, now: float, explain: Callable[[PartitionQueue], str]) -> list[RecordBatch]:
        """Fail all outputs that have timed out.

        Returns batches given up in flight. Their connections must be closed so that they are not written later."""
        return self._expire(self.queues, now, explain, passing=True)

    def give_up_missing(
        self, since: float, deadline: float, explain: Callable[[PartitionQueue], str], *, passing: bool
    ) -> list[RecordBatch]:
        """Fail outputs with deadlines up to ``deadline`` whose partitions have been missing from the metadata since
        ``since`` or longer.

        ``passing``: whether they fail as transient. Returns batches given up in flight, as :meth:`expire` does."""
        missing = [queue for queue in self.queues if queue.missing_since is not None and queue.missing_since <= since]
        return self._expire(missing, deadline, explain, passing=passing)

    def clear_topic(self, name: str) -> list[PendingOutput]:
        topic = self.topics.get(name)
        return [] if topic is None else [entry for queue in topic.all_queues for entry in queue.drain()]

    def clear(self) -> list[PendingOutput]:
        """Remove and return all entries. The caller must fail them."""
        entries = [entry for queue in self.queues for entry in queue.drain()]
        self._ready.clear()
        self._leaderless.clear()
        return entries

    def _expire(
        self,
        queues: Iterable[PartitionQueue],
        deadline: float,
        explain: Callable[[PartitionQueue], str],
        *,
        passing: bool,
    ) -> list[RecordBatch]:
        cut: list[RecordBatch] = []
        for queue in queues:
            if (batch := queue.expire(deadline, explain, passing=passing)) is not None:
                cut.append(batch)
            if queue.is_empty:
                self._ready.pop(queue, None)
                self._leaderless.pop(queue, None)
            elif queue.batch is None and queue.partition >= 0:
                # It may have waited for the batch that was given up.
                self._ready[queue] = None
        return cut

    @property
    def queues(self) -> list[PartitionQueue]:
        return [queue for topic in self.topics.values() for queue in topic.all_queues]
