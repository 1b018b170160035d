"""kill -9 of Spark and of the enriching consumer of the flights pipeline, five times each: without its copies, topic
``enriched`` has each flight once and in the order of its aircraft. ``make load-pipeline``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from aioparallel import Record
from aioparallel.records.source_headers import coordinates_of
from aioparallel.testing import DeliveryChecker, LocalKafka, OrderChecker
from aioparallel.testing.event_log import read_events
from examples.flights.service import run_service
from examples.flights_pipeline.comparing import expected_totals
from examples.flights_pipeline.enriching import enrich_all
from examples.flights_pipeline.filling import fill
from examples.flights_pipeline.settings import ENRICHED, PARTITIONS, RAW, WORK, Settings
from examples.flights_pipeline.stages import clear, create_topics
from tests.support.kafka.reading import read_all

from .flights_programs import READ, Consumer, Ends, SparkJob, silent, until_growing

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

FLIGHTS: Final = 60_000
PER_TRIGGER: Final = 5_000
SPARK_KILLS: Final = (1_000, 7_000, 3_000, 8_000, 2_000)
"""Records that Spark has written since its start when it is killed: within the micro-batch that it begins anew, or
within the one after that. Together less than there are flights, so that the last run has some left."""
ENRICHER_KILLS: Final = (1_000, 6_000, 3_000, 8_000, 4_000)
"""The same of the enriching consumer."""

READ_DEADLINE: Final = 180.0
"""Seconds in which a reader gets to the end of topic ``enriched``."""

COMPACTED_SOON: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
"""Of what readers have seen, so that some of it is compacted while they run."""

Tell = Callable[[str], None]


class Place(NamedTuple):
    """Where a record stands in its topic. A flight is known everywhere by its place in ``raw``."""

    partition: int
    offset: int


class Note(NamedTuple):
    """A flight as a reader of topic ``enriched`` was given it."""

    place: Place
    offset: int
    """In topic ``enriched``: copies differ by it."""
    key: bytes


def place_of(record: Record) -> Place:
    """By its headers."""
    source = coordinates_of(record.headers)
    assert source is not None
    assert source.topic == RAW
    return Place(source.partition, source.offset)


def copies(records: Iterable[Record]) -> list[Record]:
    """Those whose flight stands before them already."""
    seen: set[Place] = set()
    found = []
    for record in records:
        place = place_of(record)
        if place in seen:
            found.append(record)
        seen.add(place)
    return found


async def expected_flights(servers: str) -> dict[Place, bytes]:
    """Key by place of all flights that took place; as many as pandas finds in the CSV file."""
    raw = await read_all(servers, RAW)
    assert len(raw) == FLIGHTS
    flown = {
        Place(record.partition, record.offset): record.key or b""
        for record in raw
        if json.loads(record.value or b"{}")["dep_time"] is not None
    }
    assert len(flown) == expected_totals(FLIGHTS).loc["all"].iloc[0]["flights"]
    return flown


def expected_notes(enriched: list[Record], again: list[Record], expected: dict[Place, bytes]) -> set[Note]:
    """What a reader is to be given: the first record of each flight, under the key of its aircraft."""
    left_out = {(record.partition, record.offset) for record in again}
    first = [record for record in enriched if (record.partition, record.offset) not in left_out]
    assert {place_of(record): record.key for record in first} == expected
    return {Note(place_of(record), record.offset, record.key or b"") for record in first}


class Pipeline:
    """Both programs of the pipeline side by side, each killed in mid-run and started again."""

    def __init__(self, servers: str, service: str, settings: Settings, ends: Ends, tell: Tell) -> None:
        self._servers = servers
        self._service = service
        self._settings = settings
        self._ends = ends
        self._tell = tell

    async def run(self) -> None:
        """Kill each of them five times, and let both finish at last."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._run_spark())
            both.create_task(self._run_enrichers())
        await enrich_all(self._servers, self._service, silent)

    async def _run_spark(self) -> None:
        spark = SparkJob(self._settings, self._servers)
        try:
            for number, by in enumerate(SPARK_KILLS, 1):
                spark.start()
                written = await until_growing(self._ends, WORK, by, spark.check)
                processes = await spark.kill()
                self._tell(f"kill {number} of Spark, {processes} processes, at {written:,} records of work")
            spark.start()
            await spark.finish()
        finally:
            await spark.close()

    async def _run_enrichers(self) -> None:
        for number, by in enumerate(ENRICHER_KILLS, 1):
            async with Consumer(
                self._settings.logs / "enricher.log", "enrich", self._servers, self._service
            ) as enricher:
                written = await until_growing(self._ends, ENRICHED, by, enricher.check)
                await enricher.kill()
            self._tell(f"kill {number} of the enricher, at {written:,} records of enriched")


class Reading:
    """A group that reads topic ``enriched`` without copies, in two lives."""

    def __init__(self, servers: str, by: str, directory: Path, name: str) -> None:
        self.first: list[Note] = []
        self.second: list[Note] = []
        self._arguments = (servers, name, by)
        self._directory = directory
        self._name = name

    async def run(self, flights: int, *, is_killed: bool) -> None:
        """Stop it, or kill it, when half of the flights are noted; then to the end of the topic."""
        first, second = (self._directory / f"{self._name}-{life}.notes" for life in (1, 2))
        async with self._start(first, "never") as consumer:
            while len(_notes(first)) < flights // 2:
                await asyncio.sleep(0.02)
                consumer.check()
            if is_killed:
                await consumer.kill()
            else:
                await consumer.finish()
        async with self._start(second, "end") as consumer:
            await consumer.ended(READ_DEADLINE)
        self.first, self.second = _notes(first), _notes(second)
        assert self.first
        assert self.second

    def _start(self, notes: Path, until: str) -> Consumer:
        return Consumer(self._directory / f"{self._name}.log", "read", *self._arguments, str(notes), until)


def _notes(path: Path) -> list[Note]:
    """Of a file to which lines are appended; one that is not whole is not counted."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    words = (line.split(b" ", 3) for line in lines)
    return [Note(Place(int(partition), int(raw)), int(offset), key) for partition, raw, offset, key in words]


def check_reading(reading: Reading, expected: set[Note], *, is_killed: bool) -> int:
    """These and no others, in the order of each key, and each once. Where the first life was killed, once in each life:
    what it had not committed comes again as itself, and even then not as a copy. How many are in both."""
    order, delivery = OrderChecker(), DeliveryChecker[Note]()
    for note in expected:
        delivery.produced(note)
    for life in (reading.first, reading.second):
        for note in life:
            order.started(note.key, *note.place)
            order.ended(note.key, *note.place)
            delivery.handled(note)
        assert len(set(life)) == len(life)
        if is_killed:
            order.crashed()
    order.check()
    twice = delivery.statistics().duplicates
    delivery.check(max_duplicates=twice if is_killed else 0)
    return twice


def check_asked(events: Path, work: list[Record], again: list[Record]) -> None:
    """The service was asked for the first record of each flight, and for none of its copies."""
    every, left_out = ({Place(record.partition, record.offset) for record in some} for some in (work, again))
    asked = DeliveryChecker[Place]()
    for place in every - left_out:
        asked.produced(place)
    for event in read_events(events):
        asked.handled(Place(event.partition, event.offset))
    asked.check()


async def test_five_kills_of_each(tmp_path: Path, tell: Tell) -> None:
    """Killed in mid-run, Spark with all its processes: both of their topics hold copies then. Readers that
    deduplicate, by record or by key, stopped or killed half way, have each flight once, an aircraft's in order."""
    began = time.monotonic()
    settings = Settings(tmp_path / "out", FLIGHTS, per_trigger=PER_TRIGGER)
    clear(settings)
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        await create_topics(kafka)
        await kafka.create_topic(READ, PARTITIONS, COMPACTED_SOON)
        await fill(servers, RAW, FLIGHTS, silent)
        expected = await expected_flights(servers)
        async with run_service(settings.logs / "service") as service, Ends(servers) as ends:
            await Pipeline(servers, f"{service}/0", settings, ends, tell).run()
        work, enriched = await read_all(servers, WORK), await read_all(servers, ENRICHED)
        of_spark, of_enricher = copies(work), copies(enriched)
        tell(
            f"{len(expected):,} flights: {len(of_spark):,} copies in work, {len(of_enricher):,} in enriched, after "
            f"{time.monotonic() - began:.0f} s"
        )
        assert of_spark
        assert of_enricher
        check_asked(settings.logs / "service-0.events", work, of_spark)
        notes = expected_notes(enriched, of_enricher, expected)
        for by, is_killed in ("record", False), ("key", False), ("record", True), ("key", True):
            name = f"by-{by}-{'killed' if is_killed else 'stopped'}"
            reading = Reading(servers, by, tmp_path, name)
            await reading.run(len(expected), is_killed=is_killed)
            twice = check_reading(reading, notes, is_killed=is_killed)
            tell(f"reader {name}: {len(reading.first):,} and {len(reading.second):,} flights, {twice} of them in both")
        async with Ends(servers) as ends:
            written, kept = await ends.records(READ), len(await read_all(servers, READ))
        tell(f"compaction kept {kept} of the {written} records that say what readers have seen")
    tell(f"{time.monotonic() - began:.0f} s in all")
