"""The cases as data: their work, contestants, goals and remarks.

(a) to (e) and (j) to (l) are played in rounds: all contestants do the same work in turn. (f), (h) and (i) are scripts,
(g) is measured in one process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from benchmarks.contestant import HandlerKind, Script
from benchmarks.contestants.observing import Observed
from benchmarks.measures import (
    OURS,
    Goal,
    cpu_over,
    figure,
    memory_over,
    over_bound,
    rate_over,
    seconds_under,
)
from benchmarks.workload import Lane, Shape
from examples.flights.flights import FLIGHTS

__all__ = ["CASES", "GROUPS", "READERS", "REMARKS", "Case", "chosen", "sets"]

READERS: Final = ("ours", "getmany", "async-for", "task-per-record", "java", "java-256m", "faststream", "pyrallel")
SLEEPERS: Final = ("ours", "least", "ceiling", "task-per-record", "java", "java-256m", "faststream", "pyrallel")
AGAINST_JAVA: Final = ("ours", "java")

WHOLE_MILLISECONDS: Final = (0, 1_000, 2_000, 3_000, 4_000, 5_000)  # microseconds, like all sleeps below
KEY_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
# (concurrency, records): with 100 ms each this takes 5 seconds, or what one core handles in about that time.
CONCURRENCIES: Final = ((10, 500), (100, 5_000), (1_000, 50_000), (20_000, 200_000))


@dataclass(frozen=True, slots=True)
class Case:
    """A case before it is run. ``name``: begins with the letter of its group. ``contestants``: in the order of the
    report.

    ``limit``: seconds, see ``Work.limit``. ``members``: processes of one group. ``quick``: whether quick runs include
    it. ``batch``: see ``Work.batch``. ``bounded_by``: the contestant that does the least possible work. ``together``:
    cases with the same name here run in the same rounds, so that they can be compared. ``observed``: by what the second
    side of ``compare`` is observed.
    """

    name: str
    title: str
    shape: Shape
    contestants: tuple[str, ...] = (OURS,)
    ordering: Lane = "key"
    concurrency: int = 100
    handler: HandlerKind = "return"
    goals: tuple[Goal, ...] = ()
    limit: float = 30.0
    script: Script | Literal["maps"] = "rounds"
    members: int = 1
    quick: bool = True
    batch: int = 0
    bounded_by: str | None = None
    together: str = ""
    observed: Observed = ""

    @property
    def group(self) -> str:
        """The letter of the group."""
        return self.name[0]

    def smaller(self, scale: int) -> Case:
        """The case with fewer records, but enough to use all slots."""
        least = 5 * self.concurrency if self.handler == "sleep" and self.group == "e" else 1
        return replace(self, shape=replace(self.shape, records=max(self.shape.records // scale, least)))


def throughput() -> Iterator[Case]:
    """(a) The cost of a record whose handler does nothing."""
    shape, title = Shape(300_000, 2_000, 8), "No-op handler, 8 partitions, 2,000 keys, concurrency 100"
    goals = (
        Goal("KEY, no-op: rate ours / getmany", rate_over("getmany"), ">=", 0.45, 0.6),
        Goal("KEY, no-op: rate ours / async-for", rate_over("async-for"), ">=", 1.6, 2.5),
        Goal("KEY, no-op: rate ours / java", rate_over("java"), ">=", 2.5, 4.0),
    )
    yield Case("a-key", f"{title}, order by key", shape, READERS, goals=goals, bounded_by="getmany")
    without_order = tuple(name for name in READERS if name not in ("java-256m", "pyrallel"))
    case = Case("a-unordered", f"{title}, no order", shape, without_order, bounded_by="getmany")
    yield replace(case, ordering="unordered", quick=False)


def key_counts() -> Iterator[Case]:
    """(b) How close the time is to the least time that the order allows. With few keys there are fewer records, as each
    key's records sleep for 2.5 ms one after the other."""
    rows: list[tuple[str, int, Lane, str]] = [("b-partition", 20, "partition", "order by partition")]
    rows += [(f"b-key-{keys}", keys, "key", "order by key") for keys in KEY_COUNTS]
    rows += [("b-unordered", 20, "unordered", "no order")]
    for name, keys, ordering, order in rows:
        lanes = 1 if ordering == "partition" else keys if ordering == "key" else 100
        what = name.removeprefix("b-").replace("key-", "keys ")
        yield Case(
            name,
            f"Handlers of 0 to 5 ms, 1 partition, {keys:,} {'key' if keys == 1 else 'keys'}, concurrency 100, {order}",
            Shape(min(1_000 * lanes, 10_000), keys, 1, WHOLE_MILLISECONDS),
            AGAINST_JAVA,
            ordering,
            handler="sleep",
            goals=(
                Goal(f"{what}: java seconds / ours", seconds_under("java"), ">", 1.0),
                Goal(f"{what}: ours seconds / bound", over_bound(), "<=", 1.2, 1.1),
            ),
            quick=name in ("b-partition", "b-key-20", "b-unordered"),
        )


def sleeping() -> Iterator[Case]:
    """(c) Thousands of waiting handlers."""
    goals = (
        Goal("10 ms: rate ours / ceiling", rate_over("ceiling"), ">=", 0.85, 0.95),
        Goal("10 ms: rate ours / java", rate_over("java"), ">=", 2.0),
        Goal("10 ms: peak memory ours / java-256m", memory_over("java-256m"), "<=", 1 / 3),
    )

    def case(name: str, ms: int, concurrency: int, shape: Shape, contestants: tuple[str, ...]) -> Case:
        title = f"Handlers of {ms} ms, 8 partitions, {shape.keys:,} keys, concurrency {concurrency:,}, order by key"
        sleeps = replace(shape, sleep=(ms * 1_000,))
        found = Case(name, title, sleeps, contestants, concurrency=concurrency, handler="sleep", bounded_by="least")
        return replace(found, together=f"c-{concurrency}")

    def no_op(concurrency: int, shape: Shape) -> Case:
        """The cost of a record whose handler never suspends, for comparison."""
        title = f"No-op handler, 8 partitions, {shape.keys:,} keys, concurrency {concurrency:,}, order by key"
        name = f"c-no-op-{concurrency}"
        return Case(name, title, shape, concurrency=concurrency, quick=False, together=f"c-{concurrency}")

    beside = ("ours", "least", "ceiling", "java")
    yield replace(case("c-sleep", 10, 1_000, Shape(300_000, 2_000, 8), SLEEPERS), goals=goals)
    yield no_op(1_000, Shape(300_000, 2_000, 8))
    yield case("c-sleep-2000", 10, 2_000, Shape(300_000, 20_000, 8), beside)
    yield no_op(2_000, Shape(300_000, 20_000, 8))
    yield case("c-sleep-5000", 100, 5_000, Shape(250_000, 50_000, 8), beside)


def real_data() -> Iterator[Case]:
    """(d) Real keys: some frequent, most rare, some missing."""
    shape = Shape(FLIGHTS, 0, 8, (2_000,), "flights")
    title = "Flights of 2013 by tail number, handlers of 2 ms, 8 partitions, concurrency 1,000, order by key"
    contestants = ("ours", "least", "java")
    yield Case("d-flights", title, shape, contestants, concurrency=1_000, handler="sleep", bounded_by="least")


def cost() -> Iterator[Case]:
    """(e) Whether a record costs more with many keys or many concurrent handlers."""
    for keys in (1_000, 10_000, 100_000, 1_000_000):
        title = f"No-op handler, 8 partitions, {keys:,} keys, concurrency 100, order by key"
        goal = Goal("CPU a record, 1,000,000 keys / 1,000 keys", cpu_over("e-keys-1000"), "<=", 1.5)
        goals = (goal,) if keys == 1_000_000 else ()
        quick = keys in (1_000, 1_000_000)
        case = Case(f"e-keys-{keys}", title, Shape(1_000_000, keys, 8), goals=goals, quick=quick, together="e-keys")
        yield replace(case, contestants=("ours", "getmany"), bounded_by="getmany") if keys == 1_000 else case
    for concurrency, records in CONCURRENCIES:
        title = f"Handlers of 100 ms, 8 partitions, 100,000 keys, concurrency {concurrency:,}, order by key"
        shape = Shape(records, 100_000, 8, (100_000,))
        beside = ("20,000 / 1,000", cpu_over("e-concurrency-1000"))
        goal = Goal("CPU a record, concurrency 20,000 / 100", cpu_over("e-concurrency-100"), "<=", 1.5, beside=beside)
        yield Case(
            f"e-concurrency-{concurrency}",
            title,
            shape,
            concurrency=concurrency,
            handler="sleep",
            goals=(goal,) if concurrency == 20_000 else (),
            quick=concurrency in (100, 20_000),
            contestants=("ours", "least") if concurrency == 20_000 else ("ours",),
            bounded_by="least" if concurrency == 20_000 else None,
            together="e-concurrency",
        )


def latency() -> Iterator[Case]:
    """(f) How long a record waits in the library, and from the producer to its handler."""
    shape = Shape(400_000, 2_000, 8)
    p99 = figure("arrival_to_handler_p99_ms")
    goals = (Goal("20,000 records/s: arrival to handler, p99", p99, "<=", 5.0, 2.0, "ms"),)
    title = "Added latency at 20,000 records/s"
    yield Case("f-20000", title, shape, concurrency=1_000, goals=goals, limit=120.0, script="pace")
    yield replace(
        Case("f-half", "Added latency at half of the highest rate", shape, concurrency=1_000, script="pace"),
        limit=120.0,
    )


def offset_maps() -> Iterator[Case]:
    """(g) Time to encode and decode maps, their density, and how long committing them blocks the event loop."""
    encode, decode = (
        Goal(f"100,000 offsets: slowest {what}", figure(f"{what}_ms"), "<=", 5.0, unit="ms")
        for what in ("encode", "decode")
    )
    density = Goal(
        "offsets in 4,096 characters: ours / best Java format, lowest", figure("density_ratio"), ">=", 2.3, 3.0
    )
    hold = Goal(
        "500 dirty partitions with 10,000-offset maps: longest hold of the event loop",
        figure("longest_hold_ms"),
        "<=",
        20.0,
        5.0,
        "ms",
        ("full maps", figure("full_longest_hold_ms")),
    )
    nothing = Shape(0, 0, 1)
    yield Case(
        "g-time", "Time to write and read a map of 100,000 offsets", nothing, goals=(encode, decode), script="maps"
    )
    yield Case(
        "g-density", "Offsets in 4,096 characters, ours against the best Java format", nothing, goals=(density,),
        script="maps",
    )  # fmt: skip
    held = Shape(0, 0, 500)
    yield Case("g-hold", "Longest hold of the event loop by a commit of 500 maps", held, goals=(hold,), script="maps")


def crash() -> Iterator[Case]:
    """(h) What is repeated after a crash behind one stuck record."""
    title = "A crash behind one stuck record"
    shape = Shape(100_000, 10_000, 1)
    yield Case("h-recovery", title, shape, ("ours", "by-hand"), concurrency=1_000, limit=120.0, script="crash")


def members() -> Iterator[Case]:
    """(i) One, two and four processes of one group."""
    for count in (1, 2, 4):
        yield Case(
            f"i-members-{count}",
            f"{count} process{'es' if count > 1 else ''} of one group",
            Shape(500_000, 2_000, 8, (10_000,)),
            concurrency=1_000,
            limit=60.0,
            script="members",
            members=count,
            quick=count < 4,
        )


def producing() -> Iterator[Case]:
    """(j) One output for each record."""
    title = "One output for each record, 8 partitions, 2,000 keys, concurrency 100, order by key"
    goals = (Goal("process and produce: rate ours / a bare producer's", rate_over("producer"), ">=", 0.8),)
    contestants = ("ours", "producer", "java")
    case = Case("j-produce", title, Shape(200_000, 2_000, 8), contestants, handler="produce", goals=goals)
    yield replace(case, bounded_by="producer")


def decoding() -> Iterator[Case]:
    """(k) Values that are decoded before the handler."""
    title = "No-op handler, flights of 2013 decoded from JSON, 8 partitions, concurrency 100, order by key"
    contestants = ("ours", "getmany", "async-for", "task-per-record", "java")
    shape = Shape(FLIGHTS, 0, 8, source="flights")
    yield Case("k-json", title, shape, contestants, handler="json", bounded_by="getmany")


def batching() -> Iterator[Case]:
    """(l) Handlers of many records."""
    shape, title = Shape(500_000, 100_000, 8), "No-op handler of 500 records at once, 8 partitions"
    contestants = ("ours", "getmany")

    def goals(order: str) -> tuple[Goal, ...]:
        return (Goal(f"batches of 500, {order}: rate ours / getmany", rate_over("getmany"), ">=", 0.75),)

    case = Case("l-key", f"{title}, 100,000 keys, order by key", shape, contestants, batch=500, goals=goals("KEY"))
    case = replace(case, bounded_by="getmany")
    yield case
    yield replace(case, name="l-unordered", title=f"{title}, no order", ordering="unordered", goals=goals("UNORDERED"))
    yield Case(
        "l-sleep",
        "Handlers of 5 ms for 100 records at once, 8 partitions, concurrency 10, no order",
        Shape(500_000, 100_000, 8, (5_000,)),
        ("ours", "least", "ceiling"),
        "unordered",
        bounded_by="least",
        concurrency=10,
        handler="sleep",
        batch=100,
        goals=(Goal("batches of 100, 5 ms: rate ours / ceiling", rate_over("ceiling"), ">=", 0.9),),
    )


_MAKERS = (
    throughput, key_counts, sleeping, real_data, cost, latency, offset_maps, crash, members, producing, decoding,
    batching,
)  # fmt: skip
CASES: Final = tuple(case for make in _MAKERS for case in make())


def sets(cases: Iterable[Case]) -> list[list[Case]]:
    """Groups of cases that run in the same rounds, in the order of their first case."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.together or case.name, []).append(case)
    return list(found.values())


def chosen(letters: str, only: Collection[str], *, quick: bool, scale: int) -> list[Case]:
    """The cases of these groups with the given contestants; all of them if none is given."""
    found = []
    for case in CASES:
        contestants = tuple(name for name in case.contestants if not only or name in only)
        if case.group in letters and contestants and (case.quick or not quick):
            found.append(replace(case.smaller(scale), contestants=contestants))
    return found


GROUPS: Final = {
    "a": "Handlers that return at once: what a record costs",
    "b": "Handlers of 0 to 5 ms on one partition: keys make the parallelism",
    "c": "Thousands of handlers waiting at once: how near to the event loop's ceiling",
    "d": "Real data: flights keyed by tail number",
    "e": "What more keys and more concurrency cost",
    "f": "Added latency",
    "g": "Offset maps",
    "h": "Recovery with one slow record",
    "i": "Several members of one group",
    "j": "Process and produce",
    "k": "Decoded values",
    "l": "Handlers of many records at once",
}

REMARKS: Final = {
    "a": """\
The work is the same for all, the guarantees are not. `faststream` keeps no order and is at most once: it commits what
it has read, whatever becomes of it. `task-per-record` keeps no order either, and a crash loses running records.
`pyrallel` has the `poll_batch_size` that is best for the kind of handler (10,000 for those that return at once, 50 for
those that wait), as its tuning guide advises; with its default it is several times slower. All other settings are
defaults, except that `faststream` runs without its log of each record, dependency injection and decoding.""",
    "c": """\
`least` reads the same records with `getmany` into as many tasks, without order, ledger or commits of completed records.
`ceiling` reads nothing from Kafka: as many tasks as the concurrency, which only sleep. The peak memory includes the
benchmark's own plan and event log, of the same size for all that read.""",
    "d": """\
Flights without a tail number have no key. In aioparallel each of them is a lane of its own; in the Java library those
of a partition are one lane and run one after the other.""",
    "e": """\
At a concurrency of 10 or 100 the process is nearly idle, and its constant work (fetches, heartbeats, timers) is divided
by few records.""",
    "f": """\
Measured for each record: from the time when the Kafka client's `fetch` returned it to the start of its handler, and
from the time before it was passed to the producer. The first two seconds of sending are reported separately, as
processes warm up. Half of the highest rate refers to the same consumer with a backlog, just before; if the producer
cannot send at that rate, `rate_seen` has the actual one. Producer, broker and consumer share the machine.""",
    "g": """\
`g-hold` commits maps of 10,000 offsets with the patterns of `g-time` in turn; the figures `full_...` are the same with
maps of about 4,000 characters, as large as Kafka accepts.""",
    "h": """\
When everything possible behind a stuck record is handled and committed, the consumer is killed (SIGKILL) and started
again; now the stuck record ends at once. `repeated` are records whose handler had ended and ran again. Compare
`seconds_from_first_handler`, from the first handler after the restart to lag 0: `seconds_to_recover` counts from the
restart, including the start of Python and the seconds for which the broker waits for the dead member.""",
    "i": """\
Rates are of all members together, from their common start. What the Kafka client has fetched by then, at most 1 MiB of
a partition, costs nothing later. All share the machine with the broker: more members than cores cannot be faster.""",
    "j": """\
`producer` reads nothing while the clock runs: it sends the same records with `AIOKafkaProducer`, idempotent like all,
and waits for the acknowledgements at its end. Ours ends with the last acknowledgement, Java with the last callback.""",
    "k": """\
All in Python decode with `aioparallel.deserializers.from_json` (Python's `json`), Java with Gson.""",
    "l": """\
`getmany` passes each list of records that it reads, of one partition, to its handler, in order of the partition and
without commits of its own. `ceiling` is the same number of calls that only sleep.""",
}
"""What a reader must know to judge a group's figures."""
