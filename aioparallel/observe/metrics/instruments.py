"""The list of all instruments. Both exporters, the reference in ``docs/metrics.md``, the dashboard and the alert rules
are made from it.

Names and units are OpenTelemetry's (units by UCUM). The names for Prometheus follow from them by the rules of
OpenTelemetry's own Prometheus exporters: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aioparallel.observe.health import ProblemKind
from aioparallel.observe.metrics.measurements import Figures
from aioparallel.observe.stats import PartitionCounts, PartitionStats, ShareStats, StateStats, Stats, TransactionStats

__all__ = ["INSTRUMENTS", "Instrument", "Kind", "Point"]

Point = tuple[tuple[str, ...], float]
"""Values of the labels, in their order, and the figure."""
Read = Callable[[Figures], Iterable[Point]]

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the buckets for times in this process."""
AGES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
               86400.0)  # fmt: skip
"""The same for ages of records."""
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
"""The same for numbers of records."""

_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


class Kind(enum.StrEnum):
    """What an instrument does."""

    COUNTER = "counter"
    """Only grows while the consumer runs."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One figure, or one for each combination of labels."""

    name: str
    """Without ``aioparallel.``"""
    kind: Kind
    unit: str
    """"s", "By", "1" for a part of a whole, or "{what is counted}"."""
    description: str
    source: str
    """Where the figure comes from, such as a field of Stats."""
    labels: tuple[str, ...] = ()
    read: Read | None = None
    """Of a counter or gauge: reads its points. Of a histogram: None."""
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bounds of its buckets, without the last one."""
    semconv: str = ""
    """The name in the semantic conventions of OpenTelemetry for messaging, if they have one with this meaning."""
    java: str = ""
    """The meters of the Java Parallel Consumer with this meaning, without ``pc.``"""

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return self.semconv or f"aioparallel.{self.name}"

    @property
    def prometheus_family(self) -> str:
        """The name in Prometheus, without the suffixes of samples."""
        return f"aioparallel_{self.name.replace('.', '_')}{'' if self._is_flag else _SUFFIXES.get(self.unit, '')}"

    @property
    def _is_flag(self) -> bool:
        return self.unit == "1" and not self.name.endswith("used")

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, as in queries."""
        return self.prometheus_family + ("_total" if self.kind is Kind.COUNTER else "")


# -- readers --------------------------------------------------------------------------------------------


def _one(value: Callable[[Stats], float | None]) -> Read:
    def read(figures: Figures) -> Iterable[Point]:
        found = None if figures.stats is None else value(figures.stats)
        return () if found is None else (((), found),)

    return read


def _partitions(value: Callable[[PartitionStats], float | None]) -> Read:
    def read(figures: Figures) -> Iterable[Point]:
        for one in () if figures.stats is None else figures.stats.partitions:
            found = value(one)
            if found is not None:
                yield (one.topic, str(one.partition)), found

    return read


def _counts(value: Callable[[PartitionCounts], float]) -> Read:
    def read(figures: Figures) -> Iterable[Point]:
        for one in () if figures.stats is None else figures.stats.counts:
            yield (one.topic, str(one.partition)), value(one)

    return read


def _many(values: Callable[[Stats], Iterable[tuple[Sequence[object], float | None]]]) -> Read:
    def read(figures: Figures) -> Iterable[Point]:
        for labels, found in () if figures.stats is None else values(figures.stats):
            if found is not None:
                yield tuple(map(str, labels)), found

    return read


def _transactions(value: Callable[[TransactionStats], float | None]) -> Read:
    return _one(lambda stats: None if stats.transactions is None else value(stats.transactions))


def _state(value: Callable[[StateStats], float]) -> Read:
    return _one(lambda stats: None if stats.state is None else value(stats.state))


def _ended(stats: Stats) -> Iterable[tuple[Sequence[object], float]]:
    for one in stats.counts:
        for outcome in ("succeeded", "dead_lettered", "skipped", "released"):
            yield (one.topic, one.partition, outcome), getattr(one, outcome)


def _share(value: Callable[[ShareStats], float]) -> Read:
    return _one(lambda stats: None if stats.share is None else value(stats.share))


def _acknowledged(stats: Stats) -> Iterable[tuple[Sequence[object], float]]:
    share = stats.share
    if share is not None:
        yield ("accept",), share.accepted
        yield ("release",), share.released
        yield ("reject",), share.rejected
        yield ("renew",), share.renewed


def _partition_states(stats: Stats) -> Iterable[tuple[Sequence[object], float]]:
    for state in ("opening", "open", "draining"):
        yield (state,), sum(one.state == state for one in stats.partitions)


def _contacts(stats: Stats) -> Iterable[tuple[Sequence[object], float | None]]:
    for request in ("fetch", "heartbeat", "commit"):
        yield (request,), getattr(stats.contact, request)


def _transactions_ended(stats: Stats) -> Iterable[tuple[Sequence[object], float]]:
    if stats.transactions is not None:
        yield ("committed", ""), stats.transactions.committed
        for reason, count in stats.transactions.aborted_for.items():
            yield ("aborted", reason), count


def _problems(figures: Figures) -> Iterable[Point]:
    found = [problem.kind for problem in figures.health.problems]
    return [((kind.value,), found.count(kind)) for kind in ProblemKind]


_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PARTITION: Final = ("topic", "partition")

INSTRUMENTS: Final = (
    # -- records
    Instrument(
        "records.admitted", _COUNTER, "{record}", "Records read, without those that were complete before.",
        "PartitionCounts.admitted", _PARTITION, _counts(lambda one: one.admitted),
        semconv="messaging.client.consumed.messages",
    ),
    Instrument(
        "records.ended", _COUNTER, "{record}",
        "Records with an outcome: succeeded, dead_lettered, skipped or released (a queue delivers it again).",
        "PartitionCounts.succeeded, dead_lettered, skipped, released", (*_PARTITION, "outcome"), _many(_ended),
        java="processed.records",
    ),
    Instrument(
        "records.dropped", _COUNTER, "{record}",
        "Records dropped unfinished because their partition was revoked or lost; its next owner runs them.",
        "PartitionCounts.dropped", _PARTITION, _counts(lambda one: one.dropped),
    ),
    Instrument(
        "attempts.failed", _COUNTER, "{attempt}", "Handler calls that failed, whatever became of the record.",
        "PartitionCounts.failed_attempts", _PARTITION, _counts(lambda one: one.failed_attempts),
        java="failed.records",
    ),
    Instrument(
        "records.copies", _COUNTER, "{record}", "Records that Deduplicate recognised as handled before.",
        "Stats.copies", (), _one(lambda stats: stats.copies),
    ),
    Instrument(
        "records.cut_letters", _COUNTER, "{record}", "Dead letters that lack a part of their record.",
        "Stats.cut_letters", (), _one(lambda stats: stats.cut_letters),
    ),
    # -- time
    Instrument(
        "handler.duration", _HISTOGRAM, "s",
        "Time of one call of the handler, with its wait for a free thread or process (in_threads, in_processes). "
        "Outcome: succeeded, failed, delayed (RetryLater) or cancelled.",
        "Extension.attempts_ended", ("topic", "outcome"), bounds=SECONDS, semconv="messaging.process.duration",
        java="user.function.processing.time",
    ),
    Instrument(
        "record.wait", _HISTOGRAM, "s",
        "Time from the fetch of a record to the start of its first attempt: waiting for its key, or for a free slot.",
        "Extension.attempts_ended", ("topic",), bounds=SECONDS,
    ),
    Instrument(
        "record.age", _HISTOGRAM, "s",
        "Age of records when they end: now minus the timestamp of the record.",
        "Extension.records_ended", ("topic", "outcome"), bounds=AGES,
    ),
    Instrument(
        "batch.size", _HISTOGRAM, "{record}", "Records in one call of a batch handler.",
        "Extension.attempts_ended", ("topic",), bounds=SIZES,
    ),
    # -- the consumer
    Instrument(
        "handlers.running", _GAUGE, "{record}", "Records whose handler runs.",
        "Stats.in_flight", (), _one(lambda stats: stats.in_flight), java="inflight.records",
    ),
    Instrument(
        "handlers.limit", _GAUGE, "{record}", "The most that may run at once: max_concurrency.",
        "Stats.max_concurrency", (), lambda figures: (((), figures.max_concurrency),),
    ),
    Instrument(
        "handlers.oldest", _GAUGE, "s", "Time of the handler that has run longest; 0 while none runs.",
        "Stats.oldest_in_flight", (),
        _one(lambda stats: 0 if stats.oldest_in_flight is None else stats.oldest_in_flight.seconds),
    ),
    Instrument(
        "retrying.longest", _GAUGE, "s", "Time since the first failure of the record that has been failing longest.",
        "Stats.longest_retrying", (),
        _one(lambda stats: 0 if stats.longest_retrying is None else stats.longest_retrying.seconds),
    ),
    Instrument(
        "retrying.failures", _GAUGE, "{attempt}", "Failed attempts of that record.",
        "Stats.longest_retrying", (),
        _one(lambda stats: 0 if stats.longest_retrying is None else stats.longest_retrying.failures),
    ),
    Instrument(
        "buffered", _GAUGE, "By", "Bytes of the records read and not started.",
        "Stats.buffered_bytes", (), _one(lambda stats: stats.buffered_bytes),
    ),
    Instrument(
        "lanes", _GAUGE, "{lane}", "Lanes (keys) with records.",
        "Stats.lanes", (), _one(lambda stats: stats.lanes), java="shards",
    ),
    Instrument(
        "lanes.ready", _GAUGE, "{lane}", "Lanes whose first record may start.",
        "Stats.ready_lanes", (), _one(lambda stats: stats.ready_lanes),
    ),
    Instrument(
        "lanes.longest", _GAUGE, "{record}",
        "Records in the longest lane: a hot key, or one whose first record is stuck.",
        "Stats.longest_lane", (), _one(lambda stats: 1 if stats.longest_lane is None else stats.longest_lane.length),
        java="shards.max.size",
    ),
    Instrument(
        "waiting.records", _GAUGE, "{record}", "Parked records that wait for a limited place, such as an HTTP host.",
        "Stats.waiting", (), _one(lambda stats: sum(one.records for one in stats.waiting)),
    ),
    Instrument(
        "waiting.longest", _GAUGE, "s", "The longest of these waits.",
        "Stats.waiting", (), _one(lambda stats: max((one.seconds for one in stats.waiting), default=0)),
    ),
    Instrument(
        "waiting.shut", _GAUGE, "{place}", "Places that have requested a delay, for example by Retry-After.",
        "Stats.waiting", (), _one(lambda stats: sum(one.opens_in > 0 for one in stats.waiting)),
    ),
    Instrument(
        "intake", _GAUGE, "1", "1 for the current state of the fetcher. full: the buffer is full.",
        "Stats.intake", ("state",), _many(lambda stats: [((stats.intake,), 1)]), java="poller.status",
    ),
    Instrument(
        "lanes.paused", _GAUGE, "{key}", "Paused keys of all topics.",
        "Stats.paused", (), _one(lambda stats: sum(len(keys) for keys in stats.paused.keys.values())),
    ),
    # -- partitions
    Instrument(
        "partitions", _GAUGE, "{partition}", "Assigned partitions by state: opening, open or draining.",
        "PartitionStats.state", ("state",), _many(_partition_states), java="partitions.number",
    ),
    Instrument(
        "member.generation", _GAUGE, "{generation}",
        "The generation of the last assignment, or the member epoch; of several groups the highest.",
        "MemberStats.generation", (), _one(lambda stats: max((one.generation for one in stats.members), default=None)),
    ),
    Instrument(
        "partition.lag", _GAUGE, "{record}", "Records in the log that are not complete.",
        "PartitionStats.lag", _PARTITION, _partitions(lambda one: one.lag),
    ),
    Instrument(
        "partition.lag_age", _GAUGE, "s", "Time since the end offset for the lag was received.",
        "PartitionStats.lag_age", _PARTITION, _partitions(lambda one: one.lag_age),
    ),
    Instrument(
        "partition.oldest", _GAUGE, "s", "Age of the first incomplete record that was read, by its timestamp.",
        "PartitionStats.oldest", _PARTITION, _partitions(lambda one: one.oldest or 0),
    ),
    Instrument(
        "partition.incomplete", _GAUGE, "{record}", "Records read and not complete.",
        "PartitionStats.incompletes", _PARTITION, _partitions(lambda one: one.incompletes),
        java="partition.incomplete.offsets, incomplete.offsets.total",
    ),
    Instrument(
        "partition.buffered", _GAUGE, "{record}", "Records read and not started.",
        "PartitionStats.buffered", _PARTITION, _partitions(lambda one: one.buffered),
        java="waiting.records, shards.size",
    ),
    Instrument(
        "partition.parked", _GAUGE, "{record}", "Records that wait for their next attempt.",
        "PartitionStats.parked", _PARTITION, _partitions(lambda one: one.parked),
    ),
    Instrument(
        "partition.in_flight", _GAUGE, "{record}", "Records whose handler runs.",
        "PartitionStats.in_flight", _PARTITION, _partitions(lambda one: one.in_flight),
    ),
    Instrument(
        "partition.producing", _GAUGE, "{record}", "Records whose outputs are not acknowledged yet.",
        "PartitionStats.producing", _PARTITION, _partitions(lambda one: one.producing),
    ),
    Instrument(
        "partition.retries_only", _GAUGE, "1", "1 if too many records are parked, so that no new ones start.",
        "PartitionStats.retries_only", _PARTITION, _partitions(lambda one: one.retries_only),
        java="partitions.paused",
    ),
    Instrument(
        "partition.paused", _GAUGE, "1", "1 if the partition is paused: by itself, its topic or the whole consumer.",
        "PartitionStats.paused", _PARTITION, _partitions(lambda one: one.paused),
    ),
    Instrument(
        "partition.committed", _GAUGE, "{offset}", "The last acknowledged offset.",
        "PartitionStats.committed", _PARTITION, _partitions(lambda one: one.committed),
        java="partition.latest.committed.offset, partition.highest.sequential.succeeded.offset",
    ),
    Instrument(
        "partition.position", _GAUGE, "{offset}", "The next offset to fetch.",
        "PartitionStats.position", _PARTITION, _partitions(lambda one: one.position),
        java="partition.highest.seen.offset",
    ),
    Instrument(
        "partition.highest_completed", _GAUGE, "{offset}", "The highest completed offset.",
        "PartitionStats.highest_completed", _PARTITION, _partitions(lambda one: one.highest_completed),
        java="partition.highest.completed.offset",
    ),
    Instrument(
        "partition.epoch", _GAUGE, "{assignment}", "How often the partition was assigned to this process.",
        "PartitionStats.epoch", _PARTITION, _partitions(lambda one: one.epoch), java="partition.assignment.epoch",
    ),
    Instrument(
        "partition.map", _GAUGE, "{character}", "Length of the offset map in the last acknowledged commit.",
        "PartitionStats.map_characters", _PARTITION, _partitions(lambda one: one.map_characters),
    ),
    Instrument(
        "partition.map_used", _GAUGE, "1", "That length as a part of what the broker accepts, 0 to 1.",
        "PartitionStats.map_characters, Stats.metadata_limit", _PARTITION,
        _many(lambda stats: [((one.topic, one.partition), one.map_characters / max(1, stats.metadata_limit))
                             for one in stats.partitions]),
        java="metadata.space.used",
    ),
    Instrument(
        "partition.map_cut", _GAUGE, "1", "1 if the offset map did not fit: a crash repeats records above its end.",
        "PartitionStats.map_cut_at", _PARTITION, _partitions(lambda one: one.map_cut_at is not None),
    ),
    # -- commits
    Instrument(
        "commit.duration", _HISTOGRAM, "s",
        "Time from a commit request to its answer; with transactions, of the whole transaction. Outcome: accepted, or "
        "why a position was not.",
        "Extension.commit_ended", ("outcome",), bounds=SECONDS, semconv="messaging.client.operation.duration",
    ),
    Instrument(
        "commits", _COUNTER, "{request}", "Commit requests acknowledged for all their partitions.",
        "Stats.commits", (), _one(lambda stats: stats.commits),
    ),
    Instrument(
        "commits.failed", _COUNTER, "{partition}", "Commits of single partitions that the broker did not accept.",
        "Stats.failed_commits", (), _one(lambda stats: stats.failed_commits),
    ),
    Instrument(
        "maps.written", _COUNTER, "{map}", "Offset maps written for commits, also empty ones.",
        "Stats.maps_written", (), _one(lambda stats: stats.maps_written),
    ),
    Instrument(
        "maps.time", _COUNTER, "s", "Time that this took.",
        "Stats.map_seconds", (), _one(lambda stats: stats.map_seconds), java="offsets.encoding.time",
    ),
    Instrument(
        "maps.cut", _COUNTER, "{map}", "Offset maps that did not fit and were cut.",
        "Stats.cut_maps", (), _one(lambda stats: stats.cut_maps),
    ),
    Instrument(
        "maps.unreadable", _COUNTER, "{map}", "Committed metadata that was not an offset map.",
        "Stats.unreadable_maps", (), _one(lambda stats: stats.unreadable_maps),
    ),
    Instrument(
        "maps.limit", _GAUGE, "{character}", "Characters of commit metadata that the broker accepts, as far as known.",
        "Stats.metadata_limit", (), _one(lambda stats: stats.metadata_limit),
    ),
    Instrument(
        "offset.resets", _COUNTER, "{reset}", "Positions outside the log that were moved into it.",
        "Stats.offset_resets", (), _one(lambda stats: stats.offset_resets),
    ),
    Instrument(
        "log.truncations", _COUNTER, "{partition}", "Logs that have lost known records.",
        "Stats.log_truncations", (), _one(lambda stats: stats.log_truncations),
    ),
    Instrument(
        "batches.skipped", _COUNTER, "{batch}", "Unreadable batches that skip_unreadable skipped.",
        "Stats.skipped_batches", (), _one(lambda stats: stats.skipped_batches),
    ),
    # -- brokers
    Instrument(
        "contact", _GAUGE, "s", "Time since the cluster last answered a fetch, heartbeat or commit.",
        "Stats.contact", ("request",), _many(_contacts),
    ),
    Instrument(
        "broker.owes", _GAUGE, "s", "Time that a request to this broker has been unanswered; 0 if none is.",
        "Stats.contact", ("broker",),
        _many(lambda stats: [((one.broker,), one.owes or 0) for one in stats.contact.brokers]),
    ),
    Instrument(
        "partitions.leaderless", _GAUGE, "{partition}", "Assigned partitions without a leader.",
        "Stats.contact", (), _one(lambda stats: len(stats.contact.leaderless)),
    ),
    Instrument(
        "topics.missing", _GAUGE, "{topic}", "Topics given by name that no longer exist.",
        "Stats.contact", (), _one(lambda stats: len(stats.contact.missing)),
    ),
    Instrument(
        "outputs", _GAUGE, "{output}", "Outputs and dead letters that a broker has not acknowledged yet.",
        "Stats.outputs", ("broker",), _many(lambda stats: [((one.broker,), one.outputs) for one in stats.outputs]),
    ),
    Instrument(
        "outputs.oldest", _GAUGE, "s", "Age of the oldest of them.",
        "Stats.outputs", ("broker",), _many(lambda stats: [((one.broker,), one.oldest) for one in stats.outputs]),
    ),
    # -- transactions and state
    Instrument(
        "transactions", _COUNTER, "{transaction}", "Kafka transactions that ended: committed, or aborted and why.",
        "Stats.transactions", ("outcome", "reason"), _many(_transactions_ended),
    ),
    Instrument(
        "transactions.fenced", _COUNTER, "{time}", "How often another member used the transactional id or partition.",
        "Stats.transactions", (), _transactions(lambda one: one.fenced),
    ),
    Instrument(
        "transactions.refused", _COUNTER, "{record}", "Records whose outputs the brokers refused.",
        "Stats.transactions", (), _transactions(lambda one: one.refused),
    ),
    Instrument(
        "transactions.waiting", _GAUGE, "{output}", "Outputs of complete records in no committed transaction yet.",
        "Stats.transactions", (), _transactions(lambda one: one.waiting_outputs),
    ),
    Instrument(
        "transactions.in_doubt", _GAUGE, "1", "1 while it is unknown whether a transaction was committed.",
        "Stats.transactions", (), _transactions(lambda one: one.in_doubt),
    ),
    Instrument(
        "state.keys", _GAUGE, "{key}", "Keys with a state.", "Stats.state", (), _state(lambda one: one.keys),
    ),
    Instrument(
        "state.restoring", _GAUGE, "{partition}", "Partitions whose state is being restored.",
        "Stats.state", (), _state(lambda one: len(one.restoring)),
    ),
    Instrument(
        "state.restored", _COUNTER, "{partition}", "Partitions whose state was restored.",
        "Stats.state", (), _state(lambda one: one.restored),
    ),
    Instrument(
        "state.replayed", _COUNTER, "{record}", "Records read again for a restore, without their handlers.",
        "Stats.state", (), _state(lambda one: one.replayed),
    ),
    Instrument(
        "state.snapshots", _COUNTER, "{snapshot}", "Full snapshots of states written.",
        "Stats.state", (), _state(lambda one: one.snapshots),
    ),
    # -- share groups
    Instrument(
        "share.locked", _GAUGE, "{record}", "Records that are locked for this member.",
        "Stats.share", (), _share(lambda one: one.locked),
    ),
    Instrument(
        "share.unanswered", _GAUGE, "{acknowledgement}", "Acknowledgements that the brokers have not answered yet.",
        "Stats.share", (), _share(lambda one: one.unanswered),
    ),
    Instrument(
        "share.acknowledged", _COUNTER, "{acknowledgement}", "Acknowledgements that the brokers have, by type.",
        "Stats.share", ("type",), _many(_acknowledged),
    ),
    Instrument(
        "share.released_unbegun", _COUNTER, "{record}", "Records released before their first attempt.",
        "Stats.share", (), _share(lambda one: one.released_unbegun),
    ),
    Instrument(
        "share.lost", _COUNTER, "{record}", "Records whose lock has ended before their handler.",
        "Stats.share", (), _share(lambda one: one.lost),
    ),
    Instrument(
        "share.given_up", _COUNTER, "{record}", "Records given up by the group: released in their last delivery.",
        "Stats.share", (), _share(lambda one: one.given_up),
    ),
    Instrument(
        "share.late", _COUNTER, "{record}", "Records that were handled, but acknowledged after their lock had ended.",
        "Stats.share", (), _share(lambda one: one.late),
    ),
    Instrument(
        "share.unknown", _COUNTER, "{record}", "Handled records whose acknowledgement was not answered.",
        "Stats.share", (), _share(lambda one: one.unknown),
    ),
    Instrument(
        "share.unreadable", _COUNTER, "{offset}", "Acquired offsets that could not be read, at each delivery.",
        "Stats.share", (), _share(lambda one: one.unreadable),
    ),
    # -- event loop and health
    Instrument(
        "loop.lag", _HISTOGRAM, "s", "By how much the event loop is late, measured ten times a second.",
        "a timer", bounds=SECONDS,
    ),
    Instrument(
        "loop.blockages", _COUNTER, "{time}", "How often handlers or other code blocked the event loop.",
        "Stats.blockages", (), _one(lambda stats: stats.blockages),
    ),
    Instrument(
        "loop.blocked", _COUNTER, "s", "Time that this took, to 0.05 s each.",
        "Stats.blocked_seconds", (), _one(lambda stats: stats.blocked_seconds),
    ),
    Instrument(
        "health.running", _GAUGE, "1", "1 while the consumer runs.",
        "Health.running", (), lambda figures: (((), figures.health.running),), java="status",
    ),
    Instrument(
        "health.live", _GAUGE, "1", "0 if only a restart of the process helps.",
        "Health.live", (), lambda figures: (((), figures.health.live),),
    ),
    Instrument(
        "health.ready", _GAUGE, "1", "1 while it is in its group and can read, commit and produce.",
        "Health.ready", (), lambda figures: (((), figures.health.ready),),
    ),
    Instrument(
        "health.problems", _GAUGE, "{problem}", "Problems by kind; 0 for those that do not exist.",
        "Health.problems", ("kind",), _problems,
    ),
)  # fmt: skip
"""All instruments, in the order of the reference."""
