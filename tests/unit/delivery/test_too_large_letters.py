"""Records that are too large for where they are put away: they come to an end, and what is missing is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy, Transactions
from aioparallel.delivery.letters import Letter, original_headers, read_letter
from aioparallel.records.errors import ConfigurationError, RecordStopped
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer
from tests.support.memory.consuming import committed, consumer_of
from tests.support.waiting import until

ONCE = RetryPolicy(max_attempts=1)
LIMIT = 2_000
both = pytest.mark.parametrize("together", [False, True], ids=["alone", "in transactions"])


def broker_with(*records: tuple[bytes | None, bytes | None], own: tuple[tuple[str, bytes], ...] = ()) -> InMemoryBroker:
    """Topics that take LIMIT bytes of a record, and these records, which are there already."""
    broker = InMemoryBroker()
    for topic in ("t", "dlq", "later"):
        broker.create_topic(topic)
    broker.max_message_bytes = LIMIT
    for key, value in records:
        broker.append("t", value, key=key, headers=own)
    return broker


async def refuse(record: Record) -> None:
    """Each."""
    raise ValueError("no good")


def make(broker: InMemoryBroker, together: bool, policy: FailurePolicy, **options: Any) -> Any:
    if together:
        producer = InMemoryTransactionalProducer(broker, "g")
        options |= {"producer": producer, "commits": Transactions(interval=0.02)}
        client = InMemoryClient(broker, "g", isolation_level="read_committed")
        return ParallelConsumer("t", group_id="g", client=client, failures=policy, **options)
    return consumer_of(broker, failures=policy, **options)


async def run(broker: InMemoryBroker, together: bool, handler: Any = refuse, **policy: Any) -> Any:
    """To the end of the log; its statistics."""
    given = FailurePolicy(**{"retry": ONCE, "dead_letter": "dlq", **policy})
    async with asyncio.timeout(60), make(broker, together, given, until="end") as consumer:
        await consumer.run(handler)
        return consumer.stats()
    raise AssertionError


def letters(broker: InMemoryBroker) -> list[tuple[Record, Letter]]:
    found = [(record, read_letter(record)) for record in broker.records("dlq")]
    return [(record, letter) for record, letter in found if letter is not None]


@both
async def test_a_record_just_below_the_limit_is_put_away_without_its_value(
    together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key goes on, its offset is committed; the letter says what is not in it, statistics count it, and so does the
    log."""
    broker = broker_with((b"a", b"v" * (LIMIT - 50)), (b"a", b"small"), own=(("trace", b"1"),))
    stats = await run(broker, together)
    (large, letter), (small, whole) = letters(broker)
    assert (large.key, large.value, original_headers(large.headers)) == (b"a", b"", (("trace", b"1"),))
    assert (letter.origin.topic, letter.origin.partition, letter.origin.offset) == ("t", 0, 0)
    assert letter.left_out is not None
    assert letter.left_out.value == LIMIT - 50
    assert (letter.last.type, letter.last.message) == ("ValueError", "no good")
    assert (small.value, whole.left_out) == (b"small", None)
    assert (stats.dead_lettered, stats.cut_letters, stats.succeeded) == (2, 1, 0)
    assert committed(broker) == 2
    (line,) = [record for record in caplog.records if getattr(record, "action", "") == "dead_letter_cut"]
    assert line.message.startswith(
        "t-0 offset 0: its dead letter in dlq lacks a part of the record (value=1950 kept=0 "
    )


@both
async def test_a_key_or_headers_that_are_too_large_come_to_an_end_as_well(together: bool) -> None:
    """Each of them goes where it is what is too large."""
    large = b"k" * (LIMIT - 50)
    broker = broker_with((large, b"v"))
    await run(broker, together)
    ((record, letter),) = letters(broker)
    assert (record.key, record.value) == (None, b"v")
    assert letter.left_out is not None
    assert (letter.left_out.key, letter.left_out.value) == (len(large), None)

    broker = broker_with((b"k", b"v"), own=(("large", large), ("trace", b"1")))
    await run(broker, together)
    ((record, letter),) = letters(broker)
    assert (record.key, record.value, original_headers(record.headers)) == (b"k", b"v", (("trace", b"1"),))
    assert letter.left_out is not None
    assert letter.left_out.headers == len(large) + len("large")


@both
async def test_truncated_it_has_what_the_topic_takes(together: bool) -> None:
    """The first half here."""
    broker = broker_with((b"a", b"v" * (LIMIT + 200)))
    await run(broker, together, dead_letter_too_large="truncate")
    ((record, letter),) = letters(broker)
    assert record.value == b"v" * (LIMIT // 2 + 100)
    assert letter.left_out is not None
    assert (letter.left_out.value, letter.left_out.kept) == (LIMIT + 200, LIMIT // 2 + 100)


async def test_held_it_waits_until_its_topic_takes_it() -> None:
    """As a problem that names it; then it is there with all that it had."""
    broker = broker_with((b"a", b"v" * (LIMIT - 50)))
    policy = FailurePolicy(retry=ONCE, dead_letter="dlq", dead_letter_too_large="hold")
    consumer = consumer_of(broker, failures=policy)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(refuse))
        await until(lambda: consumer.health().problems)
        (problem,) = consumer.health().problems
        assert problem.kind == "dead_letter_failed"
        assert "larger than the topic takes" in problem.message
        await consumer.commit_now()
        assert not letters(broker)
        assert committed(broker) == 0
        broker.max_message_bytes = None
        await until(lambda: consumer.stats().dead_lettered == 1)
        consumer.stop()
        await running
        assert consumer.stats().cut_letters == 0
    ((record, letter),) = letters(broker)
    assert (record.value, letter.left_out, letter.last.message) == (b"v" * (LIMIT - 50), None, "no good")


@both
async def test_a_record_that_is_too_large_for_a_retry_topic_becomes_a_dead_letter(
    together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is handled without its value. The letter says what the handler has failed with."""
    broker = broker_with((b"a", b"v" * (LIMIT - 50)))
    await run(broker, together, retry_topics={"later": 0.1})
    assert not broker.records("later")
    ((record, letter),) = letters(broker)
    assert record.value == b""
    assert (letter.last.type, letter.attempts) == ("ValueError", 1)
    assert committed(broker) == 1
    assert "later" in caplog.text


@both
async def test_without_a_dead_letter_it_ends_as_give_up_says(together: bool) -> None:
    """Skipped, or the end of the run; a function is called."""
    broker = broker_with((b"a", b"v" * (LIMIT - 50)))
    stats = await run(broker, together, dead_letter=None, retry_topics={"later": 0.1}, give_up="skip")
    assert (stats.skipped, stats.dead_lettered) == (1, 0)
    assert committed(broker) == 1

    broker = broker_with((b"a", b"v" * (LIMIT - 50)))
    with pytest.raises(RecordStopped, match="t-0 offset 0"):
        await run(broker, together, dead_letter=None, retry_topics={"later": 0.1})
    assert not committed(broker)

    broker = broker_with((b"a", b"v" * (LIMIT - 50)))
    put_away: list[tuple[bytes | None, str]] = []

    async def put(record: Record[Any, Any], error: Exception) -> None:
        put_away.append((record.value, type(error).__name__))

    stats = await run(broker, together, dead_letter=put, retry_topics={"later": 0.1})
    assert [value for value, _ in put_away] == [b"v" * (LIMIT - 50)]
    assert stats.dead_lettered == 1
    assert committed(broker) == 1


async def test_a_retry_topic_takes_what_fits_without_the_texts_of_its_error() -> None:
    """The whole record, as ever: it is handled again from there."""
    broker = broker_with((b"a", b"v" * (LIMIT - 700)))

    handled: list[bytes | None] = []

    async def handle(record: Record) -> None:
        if record.topic == "t":
            raise ValueError("x" * 900)
        handled.append(record.value)

    policy = FailurePolicy(retry=ONCE, dead_letter="dlq", retry_topics={"later": 0.1})
    async with consumer_of(broker, failures=policy) as consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: handled)
        consumer.stop()
        await running
    assert handled == [b"v" * (LIMIT - 700)]
    assert not letters(broker)


def test_the_option_is_checked() -> None:
    """By name and value."""
    wrong: Any = "drop"
    with pytest.raises(ConfigurationError, match="FailurePolicy dead_letter_too_large='drop': must be"):
        FailurePolicy(dead_letter_too_large=wrong)
