"""One walk over the fetched data, with a quota for each partition.

aiokafka fetches in the background into ``Fetcher._records``. It contains for each partition the data of one response,
or an error instead. aiokafka fetches a partition again when its entry is removed. The walk takes records out of these
entries. It never awaits, so nothing happens between taking records and returning them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.consumer.fetcher import FetchError as AiokafkaFetchError
from aiokafka.consumer.fetcher import FetchResult

from aioparallel.clients.aiokafka.decoding import Decoder
from aioparallel.clients.aiokafka.fetch_responses import FetchResponses
from aioparallel.clients.aiokafka.internals import (
    Assignment,
    FetchedData,
    Fetcher,
    FetchFault,
    PartitionRecords,
    PartitionState,
    SubscriptionState,
)
from aioparallel.clients.aiokafka.log_identity import LogIdentity
from aioparallel.clients.aiokafka.raw_batches import Damaged
from aioparallel.group.client import Fetched
from aioparallel.records.errors import ClientError, FetchFailed, NotAuthorized, OffsetOutOfRange, UnreadableBatch
from aioparallel.records.record import Record, TopicPartition

__all__ = ["FetchWalk"]

logger = logging.getLogger(__name__)

_LONGEST_WALK: Final = 0.001
"""Seconds after which a walk ends to yield to the loop; the next one continues there. Handlers that are ready to
continue wait for the walk: with 5 ms, the records next to a hot key took a tenth longer."""
_MOST_AT_ONCE: Final = 250
"""Most records to take from one partition between checks of the time: 0.1 to 0.3 ms of decoding."""


class FetchWalk:
    """Takes records out of aiokafka's buffers, and maintains positions and what to fetch next."""

    def __init__(self, fetcher: Fetcher, subscriptions: SubscriptionState, *, read_committed: bool) -> None:
        self._fetcher = fetcher
        self.identity: LogIdentity | None = None
        """Provides topic ids and leaders."""
        self._subscriptions = subscriptions
        self._read_committed = read_committed
        self._responses = FetchResponses(fetcher, subscriptions)
        # A partition whose error was deferred in the last walk, in favour of records.
        self._deferred: TopicPartition | None = None

    def take(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """At most ``most`` records of the partitions with a quota; empty if there are none.

        Raises the error of a partition with a quota if there are no records, else at the next walk.
        """
        if self._subscriptions.reassignment_in_progress:
            return []
        deferred, self._deferred = self._deferred, None
        if deferred is not None and quotas.get(deferred, 0) > 0 and self._has_error(deferred):
            raise self._error(deferred)
        taken = self._changed_logs(quotas)
        wrong: TopicPartition | None = None
        buffers = self._fetcher._records
        self._responses.prune()
        until = time.perf_counter() + _LONGEST_WALK
        for tp in list(buffers):
            quota = quotas.get(tp, 0)
            if quota <= 0:
                continue
            if (entry := _data(buffers[tp])) is not None:
                fetched = self._take_from(tp, entry, min(quota, most, _MOST_AT_ONCE))
                if fetched is not None:
                    taken.append(fetched)
                    most -= len(fetched.records)
                    if most <= 0 or time.perf_counter() > until:
                        break
                    continue
            if self._has_error(tp):
                wrong = tp
        if wrong is not None:
            if not taken:
                raise self._error(wrong)
            self._deferred = wrong
        return taken

    def _changed_logs(self, quotas: Mapping[TopicPartition, int]) -> list[Fetched]:
        """Partitions whose leader has changed, so that the log may be another one; without records."""
        found: list[Fetched] = []
        if self.identity is not None and self.identity.changed:
            for partition in [one for one in self.identity.changed if quotas.get(one, 0) > 0]:
                self.identity.changed.discard(partition)
                if (state := self._state(partition)) is not None and not state.paused:
                    topic_id = self.identity.ids.get(partition.topic, b"")
                    found.append(Fetched(partition, [], state.position, topic_id=topic_id, leader_changed=True))
        return found

    def park(self, partition: TopicPartition) -> None:
        """Keep aiokafka from fetching this newly assigned partition, and from choosing a position for it."""
        if (state := self._state(partition)) is not None:
            state.seek(0)
            state.pause()
            self._fetcher._records.pop(partition, None)
            self._responses.taken(partition)

    def pause(self, partition: TopicPartition) -> None:
        """Fetch nothing more of this partition."""
        if (state := self._state(partition)) is not None:
            state.pause()

    def forget(self, partition: TopicPartition) -> None:
        """This partition is not assigned any more: drop its data."""
        self._fetcher._records.pop(partition, None)
        self._fetcher._preferred_read_replica.pop(partition, None)
        self._responses.taken(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from ``offset`` on, and drop data that was fetched before. Ignored if the partition is not assigned."""
        if (state := self._state(partition)) is None:
            return
        state.seek(offset)
        self._drop(partition)
        state.resume()

    @property
    def assigned(self) -> list[TopicPartition]:
        assignment = self._assignment()
        return [] if assignment is None else [TopicPartition(*tp) for tp in assignment.tps]

    def position(self, partition: TopicPartition) -> int | None:
        """The offset to fetch next; None if it is not known."""
        state = self._state(partition)
        return state.position if state is not None and state.has_valid_position else None

    def is_read(self, partition: TopicPartition) -> bool:
        """Whether the partition has a position, so that aiokafka fetches it when the buffer allows."""
        state = self._state(partition)
        return state is not None and not state.paused

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The log's end for this reader, from the last fetch response or :meth:`see_end`."""
        state = self._state(partition)
        if state is None or state.highwater is None:
            return None
        return state.lso if self._read_committed and state.lso is not None else state.highwater

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """The log's end including undecided transactions, from the last fetch response."""
        state = self._state(partition)
        return None if state is None else state.highwater

    def see_end(self, partition: TopicPartition, offset: int) -> bool:
        """Set the log's end for this reader, from a separate request. Returns False if it is no longer assigned."""
        state = self._state(partition)
        if state is None:
            return False
        if self._read_committed:
            state.lso = offset
        if not self._read_committed or state.highwater is None:
            state.highwater = offset
        return True

    def _take_from(self, tp: TopicPartition, data: FetchedData, most: int) -> Fetched | None:
        # The partition was given up, or its position changed, since the fetch.
        if not data.check_assignment(tp):
            self._drop(tp)
            return None
        inside = data._partition_records
        decoder = inside._records_iterator
        if not isinstance(decoder, Decoder):
            decoder = inside._records_iterator = Decoder(TopicPartition(*tp), self._responses.taken(tp))
        before = inside.next_fetch_offset
        records: list[Record] = []
        try:
            more = decoder.take(inside, most, records)
        except Damaged as damage:
            self._store_error(tp, inside, damage)
        else:
            if more:
                self._fetcher._records.move_to_end(tp)  # others come first in the next walk
            else:
                self._drop(tp)
        data._update_position()
        if not records and inside.next_fetch_offset == before:
            return None
        partition, next_offset = TopicPartition(*tp), inside.next_fetch_offset
        topic_id = b"" if self.identity is None else self.identity.ids.get(partition.topic, b"")
        return Fetched(partition, records, next_offset, decoder.epochs_taken(next_offset), topic_id)

    def _store_error(self, tp: TopicPartition, inside: PartitionRecords, damage: Damaged) -> None:
        """Replace unreadable data with an error. The position stays before the data until :meth:`seek`."""
        partition, position = TopicPartition(*tp), inside.next_fetch_offset
        failure: FetchFailed
        if damage.place is None:
            failure = FetchFailed(partition, position, f"{damage.reason}; nothing was skipped: repair the log")
        else:
            failure = UnreadableBatch(partition, position, *damage.place, damage.reason)
        failure.__cause__ = damage.__cause__
        self._fetcher._records[tp] = AiokafkaFetchError(error=failure, backoff=0.0)

    def _has_error(self, tp: TopicPartition) -> bool:
        """Whether the partition's entry is an error that must be reported."""
        entry = self._fetcher._records.get(tp)
        if entry is None or _data(entry) is not None:
            return False
        fault = cast("FetchFault", entry)._error
        if self._state(tp) is None or isinstance(fault, kafka.NoOffsetForPartitionError):
            # No longer assigned; or aiokafka has no position yet, which seek() will set.
            self._drop(tp)
            return False
        return True

    def _error(self, tp: TopicPartition) -> ClientError:
        fault = cast("FetchFault", self._fetcher._records[tp])._error
        state = cast("PartitionState", self._state(tp))
        if isinstance(fault, kafka.RecordTooLargeError):
            state.seek(state.position - 1)  # aiokafka has advanced beyond the record
        error = _fetch_error(TopicPartition(*tp), state.position, fault)
        if not isinstance(error, OffsetOutOfRange | FetchFailed):
            # Without an entry the partition is fetched again, from the position before the error. OffsetOutOfRange and
            # FetchFailed stay until seek(): another fetch would fail in the same way.
            self._drop(tp)
        elif error is not fault:
            self._fetcher._records[tp] = AiokafkaFetchError(error=error, backoff=0.0)
        return error

    def _drop(self, tp: TopicPartition) -> None:
        """Discard the entry and let aiokafka fetch the partition again."""
        fetcher = self._fetcher
        fetcher._records.pop(tp, None)
        self._responses.taken(tp)
        fetcher._notify(fetcher._wait_consume_future)

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        assignment = self._assignment()
        return assignment.state_value(partition) if assignment is not None and partition in assignment.tps else None

    def _assignment(self) -> Assignment | None:
        subscription = self._subscriptions.subscription
        assignment = None if subscription is None else subscription.assignment
        return assignment if assignment is not None and assignment.active else None


def _data(entry: FetchedData | FetchFault) -> FetchedData | None:
    return cast("FetchedData", entry) if isinstance(entry, FetchResult) else None


def _fetch_error(partition: TopicPartition, position: int, fault: Exception) -> ClientError:
    if isinstance(fault, ClientError):
        return fault
    if isinstance(fault, kafka.OffsetOutOfRangeError):
        error: ClientError = OffsetOutOfRange(partition, position)
    elif isinstance(fault, kafka.TopicAuthorizationFailedError):
        right = "this user needs the permission READ on it"
        error = NotAuthorized(f"topic {partition.topic!r}: {right} (reading {partition} at offset {position})")
    elif isinstance(fault, kafka.RecordTooLargeError):
        error = FetchFailed(
            partition,
            position,
            "the record is larger than max_partition_fetch_bytes; raise it in client_options (nothing was skipped)",
        )
    else:
        error = FetchFailed(partition, position, repr(fault))
    error.__cause__ = fault
    return error
