"""Whether a run kept its promises: each record once, the order of the lanes, and everything committed.

The evidence of a partition is the sequence of its handlers' beginnings and ends, see ``wire.py``. A lane is a key, or
the whole partition. Everything is computed on whole arrays: half a million records take a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as Partition

from aioparallel.cli.bench.filling import DEADLINE, end_offsets
from aioparallel.cli.bench.model import Work
from aioparallel.cli.bench.workload import Lane, Numbers
from aioparallel.errors import BrokerUnreachable

__all__ = ["Expected", "check_commits", "check_events", "check_evidence"]

SHOWN: Final = 3
"""Problems of one kind that are told one by one."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run had to do. ``keys``: for each partition the number of the key at each offset. ``order``: the lanes it
    promised to keep; ``"unordered"`` is no promise.

    A ``stopped`` run may have left records out, and handlers without an end. ``repeats``: records may run again, after
    a crash or a rebalance.
    """

    keys: Sequence[Numbers]
    sleeps: bool
    order: Lane
    stopped: bool = False
    repeats: bool = False


class Finding(NamedTuple):
    """Problems of one kind in one partition. ``tell`` makes the end of a sentence for one of ``offsets``, of which
    ``others`` says, place by place, which other offset has to do with it."""

    kind: str
    offsets: Integers
    others: Integers
    tell: Callable[[int], str]


def check_evidence(folder: Path, expected: Expected) -> list[str]:
    """What is wrong with a run that has written down what it did, as :func:`check_events` says it."""
    told, events = list[str](), list[Integers]()
    for partition in range(len(expected.keys)):
        try:
            events.append(np.fromfile(folder / f"partition-{partition}.bin", "<i4").astype(np.int64))
        except OSError as error:
            told.append(f"there is no evidence of partition {partition}: {error.strerror}")
    return told or check_events(events, expected)


def check_events(events: Sequence[Integers], expected: Expected) -> list[str]:
    """What is wrong with a run, in sentences that name partition, offset and the key's number; empty if nothing is.

    ``events``: the evidence of each partition.
    """
    kinds: dict[str, list[tuple[int, Finding]]] = {}
    for partition, (seen, keys) in enumerate(zip(events, expected.keys, strict=True)):
        for finding in findings(seen, keys, expected):
            kinds.setdefault(finding.kind, []).append((partition, finding))
    return [sentence for kind, found in kinds.items() for sentence in sentences(kind, found, expected.keys)]


def sentences(kind: str, found: list[tuple[int, Finding]], planned: Sequence[Numbers]) -> Iterator[str]:
    """The first problems of a kind, and how many there are."""
    shown = 0
    for partition, finding in found:
        keys = planned[partition]
        for offset, other in zip(finding.offsets[: SHOWN - shown], finding.others, strict=False):
            key = f" (key {keys[offset]})" if 0 <= offset < keys.size else ""
            yield f"partition {partition}, offset {offset}{key}: {finding.tell(int(other))}"
            shown += 1
    count = sum(finding.offsets.size for _, finding in found)
    if count > shown:
        yield f"{kind}: {count:,} in all"


def findings(events: Integers, keys: Numbers, expected: Expected) -> Iterator[Finding]:
    """Everything wrong in one partition."""
    offsets = np.where(events < 0, ~events, events)
    known = offsets < keys.size
    if not known.all():
        yield Finding("unknown offsets", offsets[~known], offsets[~known], lambda _: "the topic has no such record")
        events, offsets = events[known], offsets[known]
    yield from incomplete(events, keys.size, expected)
    if expected.order != "unordered":
        yield from out_of_order(events, offsets, keys, expected)


def incomplete(events: Integers, count: int, expected: Expected) -> Iterator[Finding]:
    """Records without a beginning or an end, or with too many."""
    began = np.bincount(events[events >= 0], minlength=count)
    again = (began > 1) & (not expected.repeats)
    yield from counted("records handled more than once", again, began, lambda times: f"began {times} times")
    if not expected.stopped:
        yield from counted("records never handled", began == 0, began, lambda _: "was never handled")
    if not expected.sleeps:
        return
    # Of a record that ran again one end is enough: a crash took the others.
    most = 1 if expected.repeats else events.size
    ended = np.bincount(~events[events < 0], minlength=count)
    yield from counted("records ended too often", ended > np.maximum(began, 1), ended, lambda n: f"ended {n} times")
    if not expected.stopped:
        yield from counted(
            "handlers without an end", ended < np.minimum(began, most), ended, lambda _: "its handler never ended"
        )
    early = (ended > 0) & (first_places(~events, count) < first_places(events, count))
    yield from counted("ends before the beginning", early, ended, lambda _: "ended without having begun")


def first_places(offsets: Integers, count: int) -> Integers:
    """For each offset where it is seen first; behind everything when it is not. Negative ones are left out."""
    first = np.full(count, offsets.size)
    places = np.flatnonzero(offsets >= 0)[::-1]
    first[offsets[places]] = places  # in reverse, so that the first place is written last and stays
    return first


def counted(kind: str, wrong: npt.NDArray[np.bool_], counts: Integers, tell: Callable[[int], str]) -> Iterator[Finding]:
    """A finding for the offsets where ``wrong`` is true, if there are any."""
    offsets = np.flatnonzero(wrong)
    if offsets.size:
        yield Finding(kind, offsets, counts[offsets], tell)


def out_of_order(events: Integers, offsets: Integers, keys: Numbers, expected: Expected) -> Iterator[Finding]:
    """Handlers of one lane that overlap, or follow each other in the wrong order."""
    lanes = keys[offsets] if expected.order == "key" else np.zeros(offsets.size, np.uint32)
    order = np.argsort(lanes, kind="stable")  # lane by lane, in each as it happened
    events, offsets, lanes = events[order], offsets[order], lanes[order]
    same_lane, begins = lanes[1:] == lanes[:-1], events[1:] >= 0
    before, after = offsets[:-1], offsets[1:]
    lane = f"of the same {expected.order}"
    after_begin = events[:-1] >= 0
    overlap = same_lane & begins & after_begin & expected.sleeps
    if overlap.any():
        tell = f"began before offset {{}} {lane} had ended".format
        yield Finding("handlers that overlap", after[overlap], before[overlap], tell)
    descending = same_lane & begins & ~overlap & (after < before)
    if descending.any():
        yield Finding(
            "records out of order", after[descending], before[descending], f"began after offset {{}} {lane}".format
        )


async def check_commits(work: Work, group: str) -> list[str]:
    """Where the group's committed offsets are not the end offsets, in sentences."""
    places = [Partition(work.topic, partition) for partition in range(work.partitions)]
    try:
        _, ends = await end_offsets(work.bootstrap_servers, work.topic, work.partitions)
        async with (
            asyncio.timeout(DEADLINE),
            AIOKafkaConsumer(
                bootstrap_servers=work.bootstrap_servers, group_id=group, enable_auto_commit=False
            ) as consumer,
        ):
            consumer.assign(places)
            committed = [await consumer.committed(place) for place in places]
    except (KafkaError, TimeoutError, BrokerUnreachable) as error:
        return [f"the group's committed offsets could not be read: {type(error).__name__}: {error}"]
    wrong = [
        f"partition {partition}: committed up to offset {at or 0} of {end}"
        for partition, (at, end) in enumerate(zip(committed, ends, strict=True))
        if (at or 0) != end
    ]
    return wrong if len(wrong) <= SHOWN else [*wrong[:SHOWN], f"partitions not committed: {len(wrong)} in all"]
