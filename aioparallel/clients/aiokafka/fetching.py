"""One walk over the fetched data, with a quota for each partition.

aiokafka fetches in the background into ``Fetcher._records``: for each partition the data of one response, or an error
in its place. A partition is fetched again when its entry is gone. The walk takes records out of these entries; it
never awaits, so nothing can come between taking records and returning them.
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
from aioparallel.clients.aiokafka.internals import (
    Assignment,
    FetchedData,
    Fetcher,
    FetchFault,
    PartitionRecords,
    PartitionState,
    SubscriptionState,
)
from aioparallel.clients.aiokafka.log_identity import FetchedEpochs, LogIdentity
from aioparallel.clients.aiokafka.raw_batches import Damaged
from aioparallel.clients.aiokafka.responses import FetchResponses
from aioparallel.errors import ClientError, FetchFailed, NotAuthorized, OffsetOutOfRange, UnreadableBatch
from aioparallel.group.client import Fetched
from aioparallel.records import Record, TopicPartition

__all__ = ["FetchWalk"]

logger = logging.getLogger(__name__)

_LONGEST_WALK: Final = 0.001
"""Seconds after which a walk ends, so that the loop is free again; the next one goes on where it ended. Handlers that
are to go on wait behind a walk: with 5 ms, the records beside a hot key took a tenth longer."""
_MOST_AT_ONCE: Final = 250
"""Records taken from one partition before the time is looked at: 0.1 to 0.3 ms of decoding."""


class FetchWalk:
    """Takes records out of aiokafka's buffers and keeps its books: positions, and what to fetch next."""

    def __init__(
        self, fetcher: Fetcher, subscriptions: SubscriptionState, epochs: FetchedEpochs, *, read_committed: bool
    ) -> None:
        self._fetcher = fetcher
        self._epochs = epochs
        self.identity: LogIdentity | None = None
        """Who knows topic ids and leaders."""
        self._subscriptions = subscriptions
        self._read_committed = read_committed
        self._responses = FetchResponses(fetcher, subscriptions)
        # The partition whose error stood aside for records in the last walk: its turn comes first in the next.
        self._due: TopicPartition | None = None

    def take(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """What is there for the partitions with a quota, at most ``most`` records; empty when there is nothing.

        Raises the error of a partition with a quota once there is nothing else, or at the next walk.
        """
        if self._subscriptions.reassignment_in_progress:
            return []
        due, self._due = self._due, None
        if due is not None and quotas.get(due, 0) > 0 and self._is_wrong(due):
            raise self._error(due)
        taken = self._news(quotas)
        wrong: TopicPartition | None = None
        buffers = self._fetcher._records
        self._responses.forget_what_is_gone()
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
            if self._is_wrong(tp):
                wrong = tp
        if wrong is not None:
            if not taken:
                raise self._error(wrong)
            self._due = wrong
        return taken

    def _news(self, quotas: Mapping[TopicPartition, int]) -> list[Fetched]:
        """Of logs that may be other ones by now, without records."""
        found: list[Fetched] = []
        if self.identity is not None and self.identity.news:
            for partition in [one for one in self.identity.news if quotas.get(one, 0) > 0]:
                self.identity.news.discard(partition)
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

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from ``offset`` on; what was fetched before is dropped. Ignored when not assigned."""
        if (state := self._state(partition)) is None:
            return
        state.seek(offset)
        self._drop(partition)
        self._epochs.forget(partition)
        state.resume()

    @property
    def assigned(self) -> list[TopicPartition]:
        """What this member holds."""
        assignment = self._assignment()
        return [] if assignment is None else [TopicPartition(*tp) for tp in assignment.tps]

    def is_read(self, partition: TopicPartition) -> bool:
        """Whether it was sought, so that aiokafka fetches it when there is room."""
        state = self._state(partition)
        return state is not None and not state.paused

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The log's end for this reader, as the last fetch response told it, or :meth:`see_end`."""
        state = self._state(partition)
        if state is None or state.highwater is None:
            return None
        return state.lso if self._read_committed and state.lso is not None else state.highwater

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """The same, whatever is decided; as the last fetch response told it."""
        state = self._state(partition)
        return None if state is None else state.highwater

    def see_end(self, partition: TopicPartition, offset: int) -> bool:
        """The log's end for this reader was told by itself. False: it is not this member's any more."""
        state = self._state(partition)
        if state is None:
            return False
        if self._read_committed:
            state.lso = offset
        if not self._read_committed or state.highwater is None:
            state.highwater = offset
        return True

    def _take_from(self, tp: TopicPartition, data: FetchedData, most: int) -> Fetched | None:
        # False: the partition was given away or sought elsewhere since this was fetched.
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
            self._put_aside(tp, inside, damage)
        else:
            if more:
                self._fetcher._records.move_to_end(tp)  # the others first next time
            else:
                self._drop(tp)
        data._update_position()
        if not records and inside.next_fetch_offset == before:
            return None
        partition, next_offset = TopicPartition(*tp), inside.next_fetch_offset
        topic_id = b"" if self.identity is None else self.identity.ids.get(partition.topic, b"")
        return Fetched(partition, records, next_offset, self._epochs.taken(partition, next_offset), topic_id)

    def _put_aside(self, tp: TopicPartition, inside: PartitionRecords, damage: Damaged) -> None:
        """Put an error where the unreadable data was; the position stays before it, until :meth:`seek`."""
        partition, position = TopicPartition(*tp), inside.next_fetch_offset
        failure: FetchFailed
        if damage.place is None:
            failure = FetchFailed(partition, position, f"{damage.reason}; nothing was skipped: repair the log")
        else:
            failure = UnreadableBatch(partition, position, *damage.place, damage.reason)
        failure.__cause__ = damage.__cause__
        self._fetcher._records[tp] = AiokafkaFetchError(error=failure, backoff=0.0)

    def _is_wrong(self, tp: TopicPartition) -> bool:
        """Whether an error that counts stands in the place of data."""
        entry = self._fetcher._records.get(tp)
        if entry is None or _data(entry) is not None:
            return False
        fault = cast("FetchFault", entry)._error
        if self._state(tp) is None or isinstance(fault, kafka.NoOffsetForPartitionError):
            # Not ours any more; or aiokafka asks where to begin, which seek() will say.
            self._drop(tp)
            return False
        return True

    def _error(self, tp: TopicPartition) -> ClientError:
        """The error of a partition that :meth:`_is_wrong`, as one of ours."""
        fault = cast("FetchFault", self._fetcher._records[tp])._error
        state = cast("PartitionState", self._state(tp))
        if isinstance(fault, kafka.RecordTooLargeError):
            state.seek(state.position - 1)  # aiokafka has stepped over the record already
        error = _fetch_error(TopicPartition(*tp), state.position, fault)
        if not isinstance(error, OffsetOutOfRange | FetchFailed):
            # Gone from the buffers, the partition is fetched again, from the position before the error. Out of
            # range stays until seek(), as what is unreadable does: asking again would only be told the same.
            self._drop(tp)
        elif error is not fault:
            self._fetcher._records[tp] = AiokafkaFetchError(error=error, backoff=0.0)
        return error

    def _drop(self, tp: TopicPartition) -> None:
        """Forget what was fetched, and have aiokafka fetch the partition again."""
        fetcher = self._fetcher
        fetcher._records.pop(tp, None)
        self._responses.taken(tp)
        fetcher._notify(fetcher._wait_consume_future)

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        assignment = self._assignment()
        return None if assignment is None else assignment.state_value(partition)

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
