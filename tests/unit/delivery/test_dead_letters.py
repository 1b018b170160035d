"""The end of patience: dead letters, retry topics, skipping, stopping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, Producing, Record, Reject, RetryLater, RetryPolicy
from aioparallel.delivery.dead_letters import DeadLetters
from aioparallel.delivery.letters import Letter, original_headers, read_letter, write_letter
from aioparallel.engine.sources import Source
from aioparallel.records.errors import ConfigurationError, RecordStopped, TopicNotFound
from aioparallel.records.record import Failure, Origin
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

THRICE = RetryPolicy(first_delay=0.01, multiplier=1, max_attempts=3)


def broker_with(keys: list[bytes | None], *topics: str) -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in ("t", "dlq", *topics):
        broker.create_topic(topic)
    produce(broker, keys)
    return broker


async def fail_a(record: Record) -> None:
    if record.key == b"a":
        raise ValueError(f"no good: {record.offset}")


async def run(broker: InMemoryBroker, handler: Any, **options: Any) -> Any:
    async with asyncio.timeout(120), consumer_of(broker, until="end", **options) as consumer:
        await consumer.run(handler)
        return consumer.stats()
    raise AssertionError


def letters(broker: InMemoryBroker, topic: str = "dlq") -> list[tuple[Record, Letter]]:
    found = [(record, read_letter(record)) for record in broker.records(topic)]
    assert all(letter for _, letter in found)
    return [(record, letter) for record, letter in found if letter]


async def test_a_dead_letter_is_the_record_with_its_story() -> None:
    """Key, value and headers unchanged; the headers tell origin, group, attempts, times and the last error."""
    broker = broker_with([b"b"])
    broker.append("t", b"\xff\x00", key=b"a", headers=(("trace", b"1"), ("none", None)), timestamp=1234)
    before = time.time()
    stats = await run(broker, fail_a, failures=FailurePolicy(retry=THRICE, dead_letter="dlq"))
    ((record, letter),) = letters(broker)
    assert (record.key, record.value) == (b"a", b"\xff\x00")
    assert original_headers(record.headers) == (("trace", b"1"), ("none", None))
    assert letter.origin == Origin("t", 0, 1, 1234)
    assert (letter.group, letter.attempts, letter.due) == ("g", 3, None)
    assert (letter.last.type, letter.last.message) == ("ValueError", "no good: 1")
    assert before - 1 < letter.first.at < letter.last.at < time.time() + 1
    assert "fail_a" in letter.traceback
    assert "ValueError: no good: 1" in letter.traceback
    assert (stats.succeeded, stats.dead_lettered, stats.failed_attempts) == (1, 1, 3)
    assert committed(broker) == 2


async def test_dead_letters_of_a_key_keep_its_order() -> None:
    """Each letter is acknowledged before the key goes on."""
    broker = broker_with([b"a", b"b", b"a", b"a"])
    await run(broker, fail_a, failures=FailurePolicy(retry=THRICE, dead_letter="dlq"))
    assert [letter.origin.offset for _, letter in letters(broker)] == [0, 2, 3]


async def test_while_the_dead_letter_cannot_be_written_nothing_is_committed_past_it() -> None:
    """Its record stays incomplete and its key waits, others go on; health says so; later it is written once."""
    broker = broker_with([b"a", b"b", b"a"])
    broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.MESSAGE_TOO_LARGE))
    started: list[int] = []

    async def handle(record: Record) -> None:
        started.append(record.offset)
        await fail_a(record)

    consumer = consumer_of(broker, failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq"))
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: consumer.health().problems)
        (problem,) = consumer.health().problems
        assert problem.kind == "dead_letter_failed"
        assert "t-0 offset 0" in problem.message
        await consumer.commit_now()
        assert committed(broker) == 0
        assert started == [0, 1]
        broker.faults.heal()
        await until(lambda: consumer.stats().dead_lettered == 2)
        assert consumer.health().healthy
        consumer.stop()
        await running
    assert [letter.origin.offset for _, letter in letters(broker)] == [0, 2]
    assert committed(broker) == 3


async def test_a_function_may_take_the_place_of_the_topic() -> None:
    """It is called with record and exception, again while it raises, and the offset completes when it has returned."""
    broker = broker_with([b"a", b"b"])
    put_away: list[tuple[int, str]] = []
    calls = 0

    async def put(record: Record[Any, Any], error: Exception) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("the archive is down")
        put_away.append((record.offset, str(error)))

    stats = await run(broker, fail_a, failures=FailurePolicy(retry=THRICE, dead_letter=put))
    assert put_away == [(0, "no good: 0")]
    assert stats.dead_lettered == 1
    assert committed(broker) == 2


async def test_skip_completes_the_record_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Each skipped record has its line."""
    broker = broker_with([b"a"] * 30)
    stats = await run(
        broker, fail_a, failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip"), max_concurrency=1
    )
    assert stats.skipped == 30
    assert committed(broker) == 30
    assert caplog.text.count("SKIPPED") == 30


async def test_stop_ends_the_run_and_the_record_runs_again() -> None:
    """RecordStopped names the record and its error; the offset is not committed."""
    broker = broker_with([b"b", b"a", b"b"])
    with pytest.raises(RecordStopped, match=r"t-0 offset 1 failed for good \(attempt 3\): ValueError") as caught:
        await run(broker, fail_a, failures=FailurePolicy(retry=THRICE))
    assert isinstance(caught.value.__cause__, ValueError)
    assert committed(broker) == 1


async def test_retries_without_delay_do_not_stand_still() -> None:
    """Timers whose time has come at once, beside others: all are tried to the end."""
    broker = broker_with([b"a"] * 3 + [None] * 20)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)
        raise ValueError

    def decide(record: Record[Any, Any], error: Exception, attempts: int) -> Any:
        return "skip" if attempts == 5 else 0.001 * (record.offset % 3)

    stats = await run(broker, handle, failures=FailurePolicy(retry=decide))
    assert (stats.skipped, stats.failed_attempts) == (23, 115)


async def test_reject_ends_the_patience_at_once() -> None:
    """No more tries, whatever the policy allows."""
    broker = broker_with([b"a"])

    async def handle(record: Record) -> None:
        raise Reject("not ours")

    stats = await run(broker, handle, failures=FailurePolicy(dead_letter="dlq"))
    ((_, letter),) = letters(broker)
    assert (letter.attempts, letter.last.type, letter.last.message) == (1, "aioparallel.errors.Reject", "not ours")
    assert stats.failed_attempts == 1


async def test_retry_later_waits_as_long_as_it_says_and_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """Its delay takes the policy's place; nothing above DEBUG is logged; it counts no attempt and no failure."""
    broker = broker_with([b"a"])
    seen: list[tuple[int, float, bool]] = []

    async def handle(record: Record) -> None:
        seen.append((record.attempt, time.monotonic(), record.last_failure is not None))
        if len(seen) == 1:
            raise RetryLater(0.15)

    stats = await run(broker, handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=60)))
    (first, second) = seen
    assert (first[0], first[2], second[0], second[2]) == (1, False, 1, False)
    assert (stats.succeeded, stats.failed_attempts) == (1, 0)
    assert 0.14 < second[1] - first[1] < 30
    assert "asks to be tried again" not in caplog.text


async def test_a_function_decides_in_place_of_a_policy() -> None:
    """It sees record, error and attempts, and says seconds or an end."""
    broker = broker_with([b"a", b"c"])
    asked: list[tuple[bytes | None, str, int]] = []

    def decide(record: Record[Any, Any], error: Exception, attempts: int) -> Any:
        asked.append((record.key, type(error).__name__, attempts))
        return "dead_letter" if attempts == 2 else 0.01

    async def handle(record: Record) -> None:
        if record.key == b"a":
            raise KeyError

    await run(broker, handle, failures=FailurePolicy(retry=decide, dead_letter="dlq"))
    assert asked == [(b"a", "KeyError", 1), (b"a", "KeyError", 2)]
    assert len(letters(broker)) == 1


@pytest.mark.parametrize("said", ["dead_letter", "later", -1, None])
async def test_a_function_that_says_something_else_ends_the_run(said: object) -> None:
    """With a message that names the record; nothing is lost."""
    broker = broker_with([b"a"])
    with pytest.raises(ConfigurationError, match="t-0 offset 0"):
        await run(broker, fail_a, failures=FailurePolicy(retry=lambda record, error, attempts: said))  # type: ignore[arg-type,return-value]
    assert committed(broker) in (None, 0)


async def test_a_missing_dead_letter_topic_is_told_before_anything_runs() -> None:
    """At the start, not at the first poison record."""
    broker = broker_with([b"a"])
    with pytest.raises(TopicNotFound, match=r"nowhere \(dead_letter=\)"):
        await run(broker, fail_a, failures=FailurePolicy(retry=THRICE, dead_letter="nowhere"))


async def test_retry_topics_let_the_key_go_on_and_end_in_the_dead_letter() -> None:
    """A failed record goes through the chain with its delays, its history and its origin; its key goes on meanwhile."""
    broker = broker_with([b"a", b"a"], "retry.1", "retry.2")
    calls: list[tuple[str, int, int, float]] = []

    async def handle(record: Record) -> None:
        calls.append((record.topic, record.origin.offset, record.attempt, time.monotonic()))
        if record.origin.offset == 0:
            raise ValueError("poison")

    policy = FailurePolicy(
        retry=RetryPolicy(first_delay=0.01, max_attempts=2),
        retry_topics={"retry.1": 0.2, "retry.2": 0.4},
        dead_letter="dlq",
    )
    consumer = consumer_of(broker, failures=policy)
    async with asyncio.timeout(120), consumer:
        running = asyncio.ensure_future(consumer.run({"t": handle}))
        await until(lambda: broker.records("dlq"))
        await until(lambda: consumer.stats().lag == 0)
        consumer.stop()
        await running
    assert [call[:3] for call in calls if call[1] == 0] == [
        ("t", 0, 1),
        ("t", 0, 2),
        ("retry.1", 0, 3),
        ("retry.1", 0, 4),
        ("retry.2", 0, 5),
        ("retry.2", 0, 6),
    ]
    times = [call[3] for call in calls if call[1] == 0]
    assert times[2] - times[1] >= 0.19
    assert times[4] - times[3] >= 0.39
    assert next(call[3] for call in calls if call[1] == 1) < times[2]
    ((record, letter),) = letters(broker)
    assert letter.origin[:3] == ("t", 0, 0)
    assert (letter.attempts, letter.due) == (6, None)
    assert len(record.headers) == 11


async def test_headers_of_a_letter_mean_nothing_in_other_topics() -> None:
    """Somebody has copied a record of a retry topic, say: it runs at once, as a new one, and keeps its headers."""
    broker = broker_with([], "retry.1")
    failure = Failure(12.5, "a.B", "no")
    letter = Letter(Origin("elsewhere", 3, 7, -1), "g", 4, failure, failure, "tb", time.time() + 1_000)
    headers = write_letter((("h", b"x"),), letter)
    broker.append("t", b"copied", headers=headers)
    calls: list[tuple[int, str, int]] = []

    async def handle(record: Record) -> None:
        calls.append((record.attempt, record.origin.topic, len(record.headers)))

    policy = FailurePolicy(retry=THRICE, retry_topics={"retry.1": 0.2}, dead_letter="dlq")
    async with asyncio.timeout(20):
        await run(broker, {"t": handle}, failures=policy)
    assert calls == [(1, "t", len(headers))]


def test_letters_are_read_as_they_are_written() -> None:
    """Also with odd texts; an earlier letter's headers are replaced; what is no letter is none."""
    failure = Failure(12.5, "a.B", "ünï\ud800")
    letter = Letter(Origin("t", 3, 7, -1), "g", 2, failure, failure._replace(at=13.0), "tb", 99.25)
    headers = write_letter((("h", b"x"),), letter)
    again = read_letter(Record("dlq", 0, 0, headers=headers))
    assert again is not None
    assert again.origin == letter.origin
    assert (again.attempts, again.traceback, again.due, again.first.at, again.last.at) == (2, "tb", 99.25, 12.5, 13.0)
    assert again.last.message == "ünï?"
    assert len(write_letter(headers, letter)) == len(headers)
    assert read_letter(Record("t", 0, 0, headers=(("h", b"x"),))) is None
    assert read_letter(Record("t", 0, 0, headers=(*headers, ("aioparallel.attempts", b"many")))) is None


async def test_a_failed_output_follows_the_policy_to_the_dead_letter() -> None:
    """The record, not the output, becomes the dead letter."""
    broker = broker_with([b"a"])

    async def handle(record: Record) -> Outgoing:
        return Outgoing("t", b"x", partition=9)

    await run(
        broker,
        handle,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq"),
        producing=Producing(delivery_timeout=0.3),
    )
    ((record, letter),) = letters(broker)
    assert (record.key, letter.last.type) == (b"a", "aioparallel.errors.ProduceFailed")


class _Untold(Exception):
    """It cannot even be told."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def _raise_cancelled() -> None:
    raise asyncio.CancelledError


async def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def _raise_untold() -> None:
    raise _Untold


async def _raise_generator_exit() -> None:
    raise GeneratorExit


@pytest.mark.parametrize("fail", [_raise_cancelled, _cancel_itself, _raise_untold, _raise_generator_exit])
async def test_a_function_is_called_again_however_it_has_failed(fail: Callable[[], Awaitable[None]]) -> None:
    """Also when it awaits what somebody has cancelled, or cancels its own task: the record, and all behind it of its
    key, would wait for ever."""
    broker = broker_with([b"a", b"a"])
    tries: list[int] = []

    async def put_away(record: Record, error: Exception) -> None:
        tries.append(record.offset)
        if len(tries) == 1:
            await fail()

    async def handle(record: Record) -> None:
        if record.offset == 0:
            raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    async with consumer_of(broker, failures=failures) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: tries and consumer.health().problems, 20)
        await until(lambda: committed(broker) == 2, 20)
        consumer.stop()
        await running
    assert tries == [0, 0]


async def test_a_function_that_cancels_its_task_and_returns_has_put_the_record_away() -> None:
    """It is not called a second time."""
    broker = broker_with([b"a"])
    tries: list[int] = []

    async def put_away(record: Record, error: Exception) -> None:
        tries.append(record.offset)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def handle(record: Record) -> None:
        raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    async with consumer_of(broker, failures=failures) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == 1, 20)
        consumer.stop()
        await running
    assert tries == [0]


async def test_who_waits_for_room_comes_though_those_before_it_are_gone() -> None:
    """A hundred calls end at once and wake a hundred that wait; those are cancelled in that moment, for their partition
    goes. The next in the line has nobody else to wake it."""
    gate = asyncio.Event()

    async def put_away(record: Record, error: Exception) -> None:
        await gate.wait()

    put: list[Record] = []
    dead_letters = DeadLetters(FailurePolicy(dead_letter=put_away), "g", None, 10)
    source = Source("t-0")
    for offset in range(100):
        record: Record = Record("t", 0, offset)
        record._source = source
        assert dead_letters.room() is None
        dead_letters.dispose(record, ValueError(), None, lambda record, _: put.append(record))
    waiting = [dead_letters.room() for _ in range(101)]
    gate.set()
    await until(lambda: len(put) == 100, 5)
    last = waiting[-1]
    assert isinstance(last, asyncio.Future)
    await until(last.done, 5)
    await dead_letters.close()


async def test_a_letter_that_cannot_be_written_ends_the_run_wherever_the_record_failed() -> None:
    """A handler has put something else in the place of the record's bytes, and its output fails: nobody could write
    the letter, and the record would stay producing for ever."""
    broker = broker_with([b"a", b"a"])

    async def handle(record: Record) -> Outgoing:
        record.value = {"decoded": True}  # type: ignore[assignment]
        return Outgoing("no such topic", b"")

    options: dict[str, Any] = {
        "failures": FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq"),
        "producing": Producing(delivery_timeout=0.2),
    }
    async with consumer_of(broker, **options) as consumer:
        with pytest.raises(TypeError, match="value is a dict") as caught:
            async with asyncio.timeout(5):
                await consumer.run(handle)
    assert "offset 0" in caught.value.__notes__[0]
