"""The cases in which contestants do the same work, (a) to (e): what the work is and who takes part, as data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from aioparallel.cli.bench.workload import Lane, Shape
from aioparallel.cli.demo.flights import FLIGHTS

__all__ = ["UNCHECKED", "CaseSpec", "contest_cases"]

UNCHECKED = frozenset({"ceiling"})
"""Contestants that read no records, so there is nothing to check."""

OURS = ("ours",)
AGAINST_JAVA = ("ours", "java")
ALL = ("ours", "getmany", "async-for", "task-per-record", "java", "java-256m", "faststream", "pyrallel")
UNORDERED = ("ours", "getmany", "async-for", "task-per-record", "java", "faststream")
SLEEPING = ("ours", "ceiling", "task-per-record", "java", "java-256m", "faststream", "pyrallel")

LIMIT = 30.0  # seconds, see Work.limit
LONG_LIMIT = 60.0  # for (b): 10,000 records one after the other sleep for 25 seconds

NO_OP = (0,)
WHOLE_MILLISECONDS = (0, 1_000, 2_000, 3_000, 4_000, 5_000)  # microseconds, as all sleeps below
KEY_COUNTS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
# (concurrency, records): with 100 ms each that is 10 seconds, or about what one core does in that time.
CONCURRENCIES = ((10, 1_000), (100, 10_000), (1_000, 100_000), (20_000, 300_000))


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """A case before it is run. ``contestants``: names, in the order in which they are shown. ``limit``: seconds, see
    ``Work.limit``. ``group`` and ``name`` as in :class:`aioparallel.cli.bench.model.Case`."""

    group: str
    name: str
    title: str
    shape: Shape
    ordering: Lane
    concurrency: int
    contestants: tuple[str, ...]
    limit: float = LIMIT


def contest_cases(groups: Collection[str], scale: int = 1) -> list[CaseSpec]:
    """The cases of these groups (letters, as ``"abc"`` or a list; others are left out), with record counts divided by
    ``scale``."""
    makers = {"a": throughput, "b": key_counts, "c": sleeping, "d": real_data, "e": cost}
    return [case for group, make in makers.items() if group in groups for case in make(scale)]


def throughput(scale: int) -> Iterator[CaseSpec]:
    """(a) What a record costs when its handler does nothing."""
    shape = Shape(500_000 // scale, 2_000, 8, NO_OP)
    title = "No-op handler, 8 partitions, 2,000 keys, concurrency 100"
    yield CaseSpec("a", "a-key", f"{title}, order by key", shape, "key", 100, ALL)
    yield CaseSpec("a", "a-unordered", f"{title}, no order", shape, "unordered", 100, UNORDERED)


def key_counts(scale: int) -> Iterator[CaseSpec]:
    """(b) How near to the bound the time comes that the order allows."""

    def row(name: str, keys: int, ordering: Lane, order: str) -> CaseSpec:
        shape = Shape(10_000 // scale, keys, 1, WHOLE_MILLISECONDS)
        title = f"Handlers of 0 to 5 ms, 1 partition, {keys:,} {'key' if keys == 1 else 'keys'}, concurrency 100"
        return CaseSpec("b", name, f"{title}, {order}", shape, ordering, 100, AGAINST_JAVA, LONG_LIMIT)

    yield row("b-partition", 20, "partition", "order by partition")
    for keys in KEY_COUNTS:
        yield row(f"b-key-{keys}", keys, "key", "order by key")
    yield row("b-unordered", 20, "unordered", "no order")


def sleeping(scale: int) -> Iterator[CaseSpec]:
    """(c) A thousand handlers waiting at once."""
    shape = Shape(500_000 // scale, 2_000, 8, (10_000,))
    title = "Handlers of 10 ms, 8 partitions, 2,000 keys, concurrency 1,000, order by key"
    yield CaseSpec("c", "c-sleep", title, shape, "key", 1_000, SLEEPING)


def real_data(scale: int) -> Iterator[CaseSpec]:
    """(d) Keys as they come: some frequent, most not, some missing."""
    shape = Shape(FLIGHTS // scale, 0, 8, (2_000,), "flights")
    title = "Flights of 2013 by tail number, handlers of 2 ms, 8 partitions, concurrency 1,000, order by key"
    yield CaseSpec("d", "d-flights", title, shape, "key", 1_000, AGAINST_JAVA)


def cost(scale: int) -> Iterator[CaseSpec]:
    """(e) Whether a record costs more with many keys, or with many handlers at once."""
    for keys in (1_000, 10_000, 100_000, 1_000_000):
        shape = Shape(1_000_000 // scale, keys, 8, NO_OP)
        title = f"No-op handler, 8 partitions, {keys:,} keys, concurrency 100, order by key"
        yield CaseSpec("e", f"e-keys-{keys}", title, shape, "key", 100, OURS)
    for concurrency, records in CONCURRENCIES:
        # Fewer would end before all slots were in use.
        shape = Shape(max(records // scale, 5 * concurrency), 100_000, 8, (100_000,))
        title = f"Handlers of 100 ms, 8 partitions, 100,000 keys, concurrency {concurrency:,}, order by key"
        yield CaseSpec("e", f"e-concurrency-{concurrency}", title, shape, "key", concurrency, OURS)
