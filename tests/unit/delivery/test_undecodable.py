"""A record that cannot be decoded is a failure of its own: no handler has it, and the failure policy gives it up."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Literal

import pytest
from aiokafka.record.memory_records import MemoryRecords

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy, batches
from aioparallel.clients.aiokafka.batch_encoding import BatchEncoder
from aioparallel.clients.aiokafka.raw_batches import frame_at, records_in
from aioparallel.clients.producing.numbering import Identity
from aioparallel.config.handling import Ordering
from aioparallel.config.policies import RetryBudget, Verdict
from aioparallel.delivery.letters import Letter, original_headers, read_letter, write_letter
from aioparallel.delivery.producer import PendingOutput
from aioparallel.engine.outcomes.failures import Failures
from aioparallel.records.errors import ConfigurationError, RecordStopped, UndecodableRecord
from aioparallel.records.record import Failure, Headers, Origin, raw_name, readable_name
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import Seen, committed, consumer_of
from tests.support.waiting import until

RAW = b"na\xffme".decode("utf-8", "surrogateescape")
HEADERS: Headers = (("trace", b"1"), (RAW, b"2"), ("none", None))
FOREVER = RetryPolicy()


@pytest.fixture
def broker() -> InMemoryBroker:
    """The third record of five, of the same key, has a header whose name is not UTF-8."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    broker.create_topic("dlq", 1)
    for number in range(5):
        broker.append("t", b"%d" % number, key=b"k", headers=HEADERS if number == 2 else (), partition=0)
    return broker


@pytest.mark.parametrize("kind", ["records", "batches", "tasks"])
async def test_it_becomes_a_dead_letter_at_once_and_its_neighbours_are_handled(
    broker: InMemoryBroker, kind: Literal["records", "batches", "tasks"]
) -> None:
    """Whatever the retry policy allows; no handler, deserialiser or middleware has seen it. The letter has it as it
    was: key, value, and headers with a name that everybody can read, beside which are its bytes."""
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    async def handle_all(batch: Any) -> None:
        seen.extend(record.offset for record in batch)

    async def middleware(given: Any, call_next: Any) -> Any:
        assert RAW not in [name for one in (given if kind == "batches" else [given]) for name, _ in one.headers]
        return await call_next(given)

    consumer = consumer_of(
        broker,
        failures=FailurePolicy(retry=FOREVER, dead_letter="dlq"),
        until="end",
        middleware=[middleware],
        isolation="task" if kind == "tasks" else "context",
        value_deserializer=lambda value: value if value != b"2" else 1 // 0,
    )
    async with asyncio.timeout(60), consumer:
        await consumer.run(batches(handle_all, size=5) if kind == "batches" else handle)
        stats = consumer.stats()
    assert sorted(seen) == [0, 1, 3, 4]
    assert (stats.succeeded, stats.dead_lettered, stats.failed_attempts) == (4, 1, 1)
    assert committed(broker) == 5
    (record,) = broker.records("dlq")
    assert (record.key, record.value) == (b"k", b"2")
    assert record.headers[:3] == (("trace", b"1"), ("na\\xffme", b"2"), ("none", None))
    assert original_headers(record.headers) == HEADERS
    letter = read_letter(record)
    assert letter is not None
    assert letter.attempts == 1
    assert letter.last.type == "aioparallel.errors.UndecodableRecord"
    assert "b'na\\xffme'" in letter.last.message


async def test_it_is_skipped_where_the_policy_says_so(broker: InMemoryBroker) -> None:
    """Its offset is complete like any other."""
    seen = Seen()
    policy = FailurePolicy(retry=FOREVER, give_up="skip")
    async with asyncio.timeout(60), consumer_of(broker, failures=policy, until="end") as consumer:
        await consumer.run(seen)
        assert consumer.stats().skipped == 1
    assert seen.offsets == [0, 1, 3, 4]
    assert committed(broker) == 5


async def test_without_a_way_out_it_stops_the_run_and_says_why(broker: InMemoryBroker) -> None:
    """At once, for no attempt would change it. Nothing behind it in its lane has run."""
    seen = Seen()
    async with asyncio.timeout(60), consumer_of(broker, failures=FailurePolicy(), until="end") as consumer:
        with pytest.raises(RecordStopped, match=r"t-0 offset 2 failed for good.*is no.* UTF-8.*dead_letter"):
            await consumer.run(seen)
    assert seen.offsets == [0, 1]
    assert committed(broker) == 2


async def test_a_function_puts_it_away_with_its_bytes(broker: InMemoryBroker) -> None:
    """It has the record with the names of its headers as they were read."""
    found: list[tuple[Record, Exception]] = []

    async def put_away(record: Record, error: Exception) -> None:
        found.append((record, error))

    policy = FailurePolicy(retry=FOREVER, dead_letter=put_away)
    async with asyncio.timeout(60), consumer_of(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: committed(broker) == 5)
        consumer.stop()
        await running
    ((record, error),) = found
    assert (record.key, record.value, record.headers) == (b"k", b"2", HEADERS)
    assert isinstance(error, UndecodableRecord)


@pytest.mark.parametrize("ordering", list(Ordering))
async def test_no_function_for_the_order_is_asked_about_it(broker: InMemoryBroker, ordering: Ordering) -> None:
    """It may count on what is missing in the record."""

    def by_header(record: Record) -> object:
        assert all(raw_name(name) is None for name, _ in record.headers)
        return record.key

    seen = Seen()
    policy = FailurePolicy(give_up="skip")
    order = {"order_by": by_header} if ordering is Ordering.KEY else {"ordering": ordering}
    async with asyncio.timeout(60):
        async with consumer_of(broker, failures=policy, until="end", **order) as consumer:
            await consumer.run(seen)
    assert sorted(seen.offsets) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("verdict", "end"), [("skip", "skip"), ("stop", "stop"), ("dead_letter", "dead_letter"), (5.0, "dead_letter")]
)
def test_a_retry_function_chooses_how_it_ends_but_tries_nothing_again(verdict: Verdict, end: str) -> None:
    """Seconds mean the end of the policy."""
    failures = Failures(FailurePolicy(retry=lambda *_: verdict, dead_letter="dlq").retry_budget)
    decision = failures.decide(Record("t", 0, 0), UndecodableRecord("why"), 0.0, 0.0)
    assert (decision.delay, decision.end) == (None, end)


def test_it_is_not_delivered_again() -> None:
    """A queue's tracker would read the same."""
    retry_budget = RetryBudget(lambda *_: "release", "dead_letter", redelivers=True)
    decision = Failures(retry_budget).decide(Record("t", 0, 0), UndecodableRecord("why"), 0.0, 0.0)
    assert decision.end == "dead_letter"


def test_a_retry_function_is_checked_here_as_well() -> None:
    """What it says must be possible."""
    failures = Failures(FailurePolicy(retry=lambda *_: "dead_letter").retry_budget)
    with pytest.raises(ConfigurationError, match="no dead_letter"):
        failures.decide(Record("t", 0, 0), UndecodableRecord("why"), 0.0, 0.0)


# -- written -------------------------------------------------------------------------------------------------


def pending(*outputs: Outgoing) -> list[PendingOutput]:
    made = [PendingOutput(output) for output in outputs]
    for one in made:
        one.timestamp = 1_000
    return made


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_name_is_written_as_the_bytes_it_was_read_from(compression: str | None) -> None:
    """In a batch with others, before it and behind it; each comes back as it went."""
    encoder = BatchEncoder(compression, 1 << 20)
    plain, raw = Outgoing("t", b"v" * 50, b"k", [("name", b"x")]), Outgoing("t", b"v" * 50, b"k", HEADERS)
    assert encoder.check(raw) is None
    entries = pending(plain, raw, plain, raw, plain)
    found, number = [], 0
    while entries:
        data, count = encoder(entries, Identity(-1, -1), -1, 1 << 20)
        assert count
        frame = frame_at(data, 0)
        assert frame is not None
        found += [tuple(one.headers) for one in records_in(frame, 0)]
        assert MemoryRecords(data).next_batch().validate_crc()
        assert struct.unpack_from(">i", data, 57) == (count,)
        entries, number = entries[count:], number + 1
    assert found == [(("name", b"x"),), HEADERS] * 2 + [(("name", b"x"),)]
    assert number <= 3


def test_its_size_is_looked_at_and_what_no_bytes_become_is_refused() -> None:
    """As of any output."""
    encoder = BatchEncoder(None, 200)
    assert "bytes large" in (encoder.check(Outgoing("t", b"v" * 200, None, HEADERS)) or "")
    assert "its headers must be" in (encoder.check(Outgoing("t", b"v", None, [("\ud800", b"")])) or "")


def test_a_letter_keeps_the_bytes_of_names_through_several_lives() -> None:
    """Written, read, written anew. What is damaged leaves the readable names; what an old version wrote has none."""
    failure = Failure(1.0, "E", "no")
    letter = Letter(Origin("t", 0, 1, 2), "g", 1, failure, failure, "")
    odd = (*HEADERS, ("aioparallel.replayed.origin", b"x"), ("\\xff", b"a text"), (RAW + "é", b"3"))
    written = write_letter(odd, letter)
    assert all(raw_name(name) is None for name, _ in written)
    assert original_headers(written) == odd
    again = write_letter(written, letter)
    assert again == written
    damaged = tuple((name, b"1=zz" if name == "aioparallel.raw_names" else value) for name, value in written)
    assert [name for name, _ in original_headers(damaged)] == [readable_name(name) for name, _ in odd]
    assert "aioparallel.raw_names" not in dict(write_letter((("h", b"x"),), letter))
