"""Builds statistics and health problems from the parts of the engine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.lanes import length_from
from aioparallel.engine.sources import EndCounts, Source
from aioparallel.engine.watch.blockages import Blockage
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client, CommitFault
from aioparallel.group.committing import PositionCommitter
from aioparallel.group.offset_commits import MetadataLimit
from aioparallel.group.rebalancer import Rebalancer
from aioparallel.group.run_state import RunState
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import (
    BrokerOutputs,
    Contact,
    InFlight,
    LongestLane,
    MemberStats,
    PartitionCounts,
    PartitionStats,
    Retrying,
    Stats,
)
from aioparallel.records.record import Record, TopicPartition

__all__ = ["engine_stats", "problems_of", "stats_before", "stats_of"]

# The most problems of one kind that are listed one by one.
_AT_MOST = 10
# A record that fails so many times is a problem, however short the time.
_OFTEN = 10
# A broker that does not answer for so many seconds is a problem. A leader usually moves in less time.
_SILENT = 5.0


def stats_of(
    client: Client,
    group_id: str,
    processor: Processor,
    assignment: Rebalancer,
    committer: PositionCommitter,
    state: RunState,
    intake: str,
    outputs: tuple[BrokerOutputs, ...],
) -> Stats:
    """Return a snapshot. It walks all lanes, so call it a few times a second at most."""
    scheduler = processor.scheduler
    heads = scheduler.heads()
    first, now = _first_incompletes(heads), time.time()
    held = _sources_by_name(scheduler.sources)
    partitions = tuple(
        _partition_stats(client, assignment, state, held.get(name, ()), first.get(name), now)
        for name, assignment in sorted(assignment.assignments.items())
    )
    lags = [partition.lag for partition in partitions]
    ages = [partition.lag_age for partition in partitions if partition.lag_age is not None]
    lag = None if None in lags or not assignment.has_assignment else sum(lag for lag in lags if lag is not None)
    return replace(
        engine_stats(client.contact(), processor, state, intake, outputs, heads),
        lag=lag,
        lag_age=None if lag is None else max(ages, default=0.0),
        commits=committer.commits,
        failed_commits=committer.failed_commits,
        offset_resets=assignment.resets.count,
        unreadable_maps=assignment.opener.unreadable_maps,
        log_truncations=assignment.truncations.count,
        cut_maps=committer.cut_maps,
        metadata_limit=committer.limit.characters,
        partitions=partitions,
        transactions=committer.transactions(),
        skipped_batches=assignment.unreadable.skipped,
        maps_written=committer.maps.count,
        map_seconds=committer.maps.seconds,
        members=tuple(
            MemberStats(one.group or group_id, one.member_id, one.id)
            for _, one in sorted(assignment.generations.items())
        ),
    )


def engine_stats(
    contact: Contact,
    processor: Processor,
    state: RunState,
    intake: str,
    outputs: tuple[BrokerOutputs, ...],
    heads: Collection[Record[Any, Any]],
) -> Stats:
    """Return the part of a snapshot that does not depend on the kind of group. ``heads``: of all lanes."""
    scheduler, counters = processor.scheduler, processor.scheduler.counters
    return replace(
        stats_before(contact, intake, state),
        admitted=counters.admitted,
        buffered=scheduler.buffered,
        buffered_bytes=scheduler.buffered_bytes,
        parked=scheduler.parked,
        in_flight=counters.in_flight,
        producing=counters.producing,
        succeeded=counters.succeeded,
        dead_lettered=counters.dead_lettered,
        skipped=counters.skipped,
        dropped=counters.dropped,
        failed_attempts=counters.failed_attempts,
        ready_lanes=scheduler.ready,
        lanes=sum(len(source.lanes) for source in scheduler.sources),
        waiting=tuple(processor.retries.at_gates),
        oldest_in_flight=_oldest_in_flight(processor),
        longest_retrying=_longest_retrying(scheduler.sources, processor.time()),
        longest_lane=_longest_lane(heads),
        outputs=outputs,
        released=counters.released,
        counts=_counts(scheduler.end_counts, _sources_by_name(scheduler.sources)),
        blockages=processor.pool.loop_watch.blockages,
        blocked_seconds=processor.pool.loop_watch.blocked_seconds,
    )


def stats_before(contact: Contact, intake: str, state: RunState) -> Stats:
    """Return the snapshot of a run that has not begun."""
    return Stats(
        admitted=0,
        buffered=0,
        buffered_bytes=0,
        parked=0,
        in_flight=0,
        producing=0,
        succeeded=0,
        dead_lettered=0,
        skipped=0,
        dropped=0,
        failed_attempts=0,
        ready_lanes=0,
        lanes=0,
        lag=None,
        intake=intake,
        longest_lane=None,
        commits=0,
        failed_commits=0,
        offset_resets=0,
        unreadable_maps=0,
        log_truncations=0,
        cut_maps=0,
        metadata_limit=MetadataLimit.DEFAULT,
        partitions=(),
        contact=contact,
        paused=state.paused,
        max_concurrency=state.max_concurrency,
    )


def _partition_stats(
    client: Client,
    assignment: Assignment,
    state: RunState,
    held: Sequence[Source],
    first: Record[Any, Any] | None,
    now: float,
) -> PartitionStats:
    """``held``: the sources with records of this partition: the assignment, or others to which its records were
    given."""
    ledger = assignment.ledger
    end = client.end_offset_seen(assignment.partition)
    if assignment.state is AssignmentState.OPENING:
        end = None  # without a position yet, a lag means nothing
    incompletes = sum(1 for offset in ledger.incompletes if offset < ledger.position)
    return PartitionStats(
        topic=assignment.partition.topic,
        partition=assignment.partition.partition,
        epoch=assignment.epoch,
        state=assignment.state.value,
        committed=assignment.acknowledged.offset if assignment.acknowledged else None,
        position=ledger.position,
        highest_completed=ledger.highest_completed,
        incompletes=incompletes,
        buffered=sum([source.buffered for source in held]),
        parked=sum([len(source.parked) for source in held]),
        retries_only=any(source.full for source in held),
        lag=max(0, end - ledger.position) + incompletes if end is not None else None,
        map_cut_at=assignment.cut,
        oldest=None if first is None or first.timestamp < 0 else max(0.0, now - first.timestamp / 1000),
        lag_age=None if end is None else client.since_end_seen(assignment.partition),
        in_flight=sum([len(source.in_flight) for source in held]),
        producing=sum([len(source.producing) for source in held]),
        paused=assignment.paused or state.is_paused,
        map_characters=len(assignment.acknowledged.metadata) if assignment.acknowledged else 0,
    )


def _counts(
    counts: Mapping[Hashable, EndCounts], held: Mapping[Hashable, Sequence[Source]]
) -> tuple[PartitionCounts, ...]:
    return tuple(
        PartitionCounts(
            topic=name.topic,
            partition=name.partition,
            admitted=one.admitted,
            succeeded=one.admitted
            - (one.dead_lettered + one.skipped + one.released + one.dropped)
            - sum([source.unfinished for source in held.get(name, ())]),
            dead_lettered=one.dead_lettered,
            skipped=one.skipped,
            released=one.released,
            dropped=one.dropped,
            failed_attempts=one.failed_attempts,
        )
        for name, one in counts.items()
        if isinstance(name, TopicPartition)
    )


def _sources_by_name(sources: Iterable[Source]) -> Mapping[Hashable, Sequence[Source]]:
    """Group sources by name, which is their partition."""
    found: defaultdict[Hashable, list[Source]] = defaultdict(list)
    for source in sources:
        found[source.name].append(source)
    return found


def _first_incompletes(heads: Iterable[Record[Any, Any]]) -> Mapping[Hashable, Record[Any, Any]]:
    """Return the first incomplete record for each name of a source, given the heads of all lanes."""
    first: dict[Hashable, Record[Any, Any]] = {}
    for record in heads:
        source = record._source
        found = first.get(source.name)
        if not source.dropped and (found is None or record.offset < found.offset):
            first[source.name] = record
    return first


def _oldest_in_flight(processor: Processor) -> InFlight | None:
    """Return the record whose handler was started first, of those that still hold a worker; None if there is none."""
    found = processor.pool.oldest
    if found is None:
        return None
    record, seconds = found
    return InFlight(record.topic_partition, record.offset, seconds, record.attempt)


def _longest_retrying(sources: Iterable[Source], now: float, *, paused: bool = True) -> Retrying | None:
    """Return the parked record whose first failure is the oldest; None if there is none. ``now``: the loop's time.
    ``paused``: whether paused records count."""
    longest, since = None, float("inf")
    for source in sources:
        for record in source.parked:
            history = record._history
            if history is not None and history.trying_since is not None and history.trying_since < since:
                if not paused and source.is_paused(record):
                    continue
                longest, since = record, history.trying_since
    if longest is None:
        return None
    failure = longest.last_failure
    return Retrying(
        longest.topic_partition,
        longest.offset,
        now - since,
        longest.attempt - 1,
        "" if failure is None else f"{failure.type}: {failure.message}",
    )


def _longest_lane(heads: Iterable[Record[Any, Any]]) -> LongestLane | None:
    longest: LongestLane | None = None
    for head in heads:
        if head._next is not None and ((length := length_from(head)) > (longest.length if longest else 1)):
            longest = LongestLane(head.topic_partition, head._lane, length, head.offset)
    return longest


def _held_up(processor: Processor, stuck_after: float) -> Iterator[Problem]:
    running = _oldest_in_flight(processor)
    if running is not None and running.seconds >= stuck_after and not processor.has_deadlines:
        yield Problem(
            ProblemKind.LONG_HANDLER,
            f"{running.partition} offset {running.offset}: its handler has been running for {running.seconds:.0f} s",
        )
    failing = _longest_retrying(processor.scheduler.sources, processor.time(), paused=False)
    if failing is not None and (failing.failures >= _OFTEN or failing.seconds >= stuck_after):
        yield Problem(
            ProblemKind.RETRYING,
            f"{failing.partition} offset {failing.offset} has failed {failing.failures} times in "
            f"{failing.seconds:.0f} s, the last time with {failing.error}; its key waits",
        )


def _full_gates(processor: Processor, stuck_after: float) -> Iterator[Problem]:
    for waiting in processor.retries.at_gates[:_AT_MOST]:
        if waiting.seconds >= stuck_after:
            text = f"{waiting.place}: {waiting.records:,} records wait for it, the first for {waiting.seconds:.0f} s"
            shut = f"; it requests a delay, {waiting.opens_in:.0f} s more" if waiting.opens_in else ""
            yield Problem(ProblemKind.NO_ROOM, text + shut)


def _throttled(processor: Processor) -> Iterator[Problem]:
    texts = [f"{place} throttles: {throttled}" for place, throttled in processor.retries.throttled]
    return _first(ProblemKind.THROTTLED, texts, "places that throttle")


def _unanswered(contact: Contact) -> Iterator[Problem]:
    for broker in contact.brokers:
        if broker.owes is not None and broker.owes >= _SILENT:
            why = f" ({broker.reason})" if broker.reason else ""
            yield Problem(
                ProblemKind.BROKER_UNREACHABLE,
                f"broker {broker.broker} at {broker.address} has not answered for {broker.owes:.0f} s{why}",
            )
    if contact.leaderless:
        named = ", ".join(map(str, contact.leaderless[:_AT_MOST]))
        more = f" and {len(contact.leaderless) - _AT_MOST} more" if len(contact.leaderless) > _AT_MOST else ""
        yield Problem(ProblemKind.NO_LEADER, f"no broker leads {named}{more}: nothing is read there")
    if contact.missing:
        yield Problem(
            ProblemKind.TOPIC_GONE,
            f"not in the cluster any more: {', '.join(contact.missing[:_AT_MOST])}. Nothing is read there until it is "
            "created again",
        )


def _first(kind: ProblemKind, texts: Sequence[str], what: str) -> Iterator[Problem]:
    for text in texts[:_AT_MOST]:
        yield Problem(kind, text)
    if len(texts) > _AT_MOST:
        yield Problem(kind, f"and {len(texts) - _AT_MOST} more {what}")


def _unreadable(assignments: Iterable[Assignment]) -> Iterator[Problem]:
    texts = [str(assignment.unreadable) for assignment in assignments if assignment.unreadable is not None]
    return _first(ProblemKind.UNREADABLE, texts, "partitions that cannot be read")


def _blocked(blockage: Blockage, times: int) -> str:
    record = blockage.sample.record
    who = "code outside of handlers" if record is None else f"{record.place}: its handler {blockage.sample.handler}"
    often = f", the longest of {times} times in the last minute" if times > 1 else ""
    return f"{who} blocked the event loop for {blockage.seconds:.2g} s{often}"


def problems_of(
    contact: Contact,
    processor: Processor,
    assignments: Iterable[Assignment],
    undelivered: Mapping[Record[Any, Any], str],
    stuck_after: float,
) -> Iterator[Problem]:
    """Yield the health problems, the most urgent first. ``stuck_after``: as in the options."""
    yield from _unanswered(contact)
    yield from _unreadable(assignments)
    for assignment in assignments:
        if assignment.fenced:
            yield Problem(
                ProblemKind.FENCED, f"{assignment.partition}: the group refuses this member's commits; it should rejoin"
            )
        elif assignment.fault is CommitFault.REFUSED:
            yield Problem(ProblemKind.COMMIT_REFUSED, f"{assignment.partition}: the broker refuses its commits")
    for blockage, times in processor.pool.loop_watch.worst()[:_AT_MOST]:
        yield Problem(ProblemKind.LOOP_HELD, _blocked(blockage, times))
    for stuck in processor.pool.stuck[:_AT_MOST]:
        record = stuck.record
        yield Problem(
            ProblemKind.HANDLER_STUCK,
            f"{record.topic_partition} offset {record.offset}: the handler still runs {stuck.seconds:.0f} s after it "
            "was cancelled; it blocks its key and one slot of max_concurrency",
        )
    yield from processor.shortages.problems()
    yield from _held_up(processor, stuck_after)
    yield from _full_gates(processor, stuck_after)
    yield from _throttled(processor)
    letters = [f"{record.place} cannot be dead-lettered: {reason}" for record, reason in undelivered.items()]
    yield from _first(ProblemKind.DEAD_LETTER_FAILED, letters, "records that cannot be dead-lettered")
    at_gates = "".join(f"; {one.records:,} of all wait for {one.place}" for one in processor.retries.at_gates[:2])
    for source in processor.scheduler.sources:
        if source.full and not source.paused:
            yield Problem(
                ProblemKind.MAX_PARKED,
                f"{source.name}: starts retries only, {len(source.parked)} records wait for a retry{at_gates}",
            )
    yield from _logs_and_maps(assignments)


def _logs_and_maps(assignments: Iterable[Assignment]) -> Iterator[Problem]:
    for assignment in assignments:
        if assignment.truncated is not None:
            yield Problem(ProblemKind.LOG_TRUNCATED, assignment.truncated[0])
    for assignment in assignments:
        if assignment.cut is not None:
            yield Problem(
                ProblemKind.MAP_CUT,
                f"{assignment.partition}: the offset map does not fit; complete records above offset {assignment.cut} "
                "would run again after a crash",
            )
