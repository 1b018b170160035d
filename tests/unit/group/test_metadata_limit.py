"""How many characters of metadata the broker takes, as refusals tell it."""

from __future__ import annotations

from aioparallel.config.options import Options
from aioparallel.engine.schedule.counters import Counters
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import MetadataLimit, Sample
from aioparallel.group.sampling import Sampler
from aioparallel.records.record import TopicPartition


class _Scheduler:
    """What a sampler asks of one."""

    counters: Counters


def sampler() -> Sampler:
    """That has written nothing yet."""
    scheduler = _Scheduler()
    scheduler.counters = Counters.__new__(Counters)
    return Sampler(Options(), scheduler, lambda: None, blocks=True)  # type: ignore[arg-type]


def samples(*lengths: int) -> list[Sample]:
    """One for each length of its text."""
    return [
        Sample(Assignment(TopicPartition("t", number)), Committed(0, "x" * length), (0, 0), -1, cut=False)
        for number, length in enumerate(lengths)
    ]


def test_a_request_that_is_refused_as_a_whole_says_nothing_about_short_texts() -> None:
    """It was too large for what its partitions are together: the longest text is halved, and one without a text takes
    nothing from the others. (It set the limit to 0, and never came up again.)"""
    of_all = sampler()
    of_all.too_large(samples(4_000, 10, 0), 3)
    assert of_all.limit.characters == 2_000
    of_all.too_large(samples(0), 1)
    assert of_all.limit.characters == 2_000


def test_what_is_refused_by_itself_is_believed() -> None:
    """Others of its request were taken, so each refused one was too long."""
    of_some = sampler()
    of_some.too_large(samples(4_000, 300), 3)
    assert of_some.limit.characters == 150


def test_what_was_taken_once_is_a_floor_until_it_is_refused() -> None:
    """A setting that was lowered meanwhile is learnt all the same."""
    limit = MetadataLimit()
    limit.accepted(1_500)
    limit.refused(2_000)
    assert limit.characters == 1_500
    limit.refused(1_500)
    assert limit.characters == 750
