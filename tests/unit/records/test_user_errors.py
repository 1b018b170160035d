"""Objects of users whose texts cannot be made: no line is lost, and nothing fails for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aioparallel import Batch, ConfigurationError, FailurePolicy, Record, RetryLater, RetryPolicy, batches, parallel_map
from aioparallel.observe.record_logging import RecordFilter, name_records
from aioparallel.records.errors import WorkCancelled
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.web import ConsumerService, answers
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until


class Mute:
    """Of no text, in any way."""

    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__


class MuteError(Mute, Exception):
    """As an error."""


class MuteLater(RetryLater):
    """As a wish."""

    def __str__(self) -> str:
        raise KeyError("no text")


def mute_label(item: object, index: int) -> Any:
    return Mute()


def raising_label(item: object, index: int) -> str:
    raise asyncio.CancelledError


def lines(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if getattr(one, "action", "") == action]


def broker_with(*keys: bytes) -> InMemoryBroker:
    made = InMemoryBroker()
    made.create_topic("t", 1)
    produce(made, keys)
    return made


async def test_a_failed_attempt_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of an item whose label cannot be made, with an error that has no text."""

    async def fails(item: int) -> None:
        raise MuteError

    for label in (mute_label, raising_label):
        async for outcome in parallel_map(fails, [1], label=label, on_error="skip"):
            raise AssertionError(outcome)
    told = lines(caplog, "handler_failed") + lines(caplog, "record_skipped")
    assert len(told) == 2
    assert all(one.startswith("item 0 (its label raised CancelledError) failed") for one in told)
    assert all("MuteError (its text could not be made: CancelledError)" in one for one in told)


async def test_a_wish_for_a_delay_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG."""
    caplog.set_level(logging.DEBUG, "aioparallel")
    attempts = []

    async def later(item: int) -> None:
        attempts.append(item)
        if len(attempts) == 1:
            raise MuteLater(0)

    async for _ in parallel_map(later, [1], retry=RetryPolicy()):
        pass
    (line,) = lines(caplog, "retry_later")
    assert "its text could not be made: KeyError" in line


async def test_a_record_that_cannot_be_put_away_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Where the dead-letter function raises such an error."""
    tries = []

    async def put_away(record: Record[Any, Any], error: Exception) -> None:
        tries.append(record)
        if len(tries) == 1:
            raise MuteError

    async def fails(record: Record[Any, Any]) -> None:
        raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    async with consumer_of(broker_with(b"k"), failures=failures, until="end") as consumer:
        await consumer.run(fails)
    (line,) = lines(caplog, "dead_letter_failed")
    assert "MuteError (its text could not be made" in line


async def test_an_option_is_refused() -> None:
    """Whatever was given for it."""
    with pytest.raises(ConfigurationError, match=r"^items=Mute \(its text could not be made: CancelledError\): must"):
        parallel_map(later, Mute())  # type: ignore[arg-type]


async def later(item: object) -> None:
    pass


async def test_what_is_no_item_of_a_batch_is_refused() -> None:
    """By its kind."""

    @batches
    async def handle(batch: Batch[int]) -> list[int]:
        with pytest.raises(ValueError, match="Mute"):
            batch.fail(Mute(), ValueError())
        return list(batch)

    async for outcome in parallel_map(handle, [1]):
        assert outcome.value == 1


async def test_lines_about_an_item_and_statistics_show_its_key() -> None:
    """As far as there is one."""
    record = Record[Any, Any]("t", 0, 1, Mute(), None)
    shown = logging.LogRecord("any", logging.INFO, __file__, 1, "line", (), None)

    async def log(item: object) -> None:
        assert RecordFilter(keys="clear").filter(shown)

    await name_records(record, log)
    assert vars(shown)["key"] == "(its text could not be made: CancelledError)"

    class Lane(Mute):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Lane)

        def __hash__(self) -> int:
            return 1

    blocked = asyncio.Event()

    async def waits(record: Record[Any, Any]) -> None:
        await blocked.wait()

    on = broker_with(b"a", b"b", b"c")
    service = ConsumerService(lambda: consumer_of(on, order_by=lambda record: Lane()), waits)
    async with service:

        def longest() -> Any:
            body: Any = answers.stats(answers.together((service,))).body
            return body["consumer"] and body["consumer"]["longest_lane"]

        await until(longest)
        assert len(longest()["key"]) == 16
        blocked.set()


# -- functions of keys --------------------------------------------------------------------------------------


def raises(error: BaseException) -> Callable[[object], Any]:
    def function(item: object) -> Any:
        raise error

    return function


def unhashable(item: object) -> Any:
    return []


@pytest.mark.parametrize(
    ("order_by", "kind"),
    [
        (raises(asyncio.CancelledError()), WorkCancelled),
        (raises(MuteError()), MuteError),
        (raises(ValueError("own")), ValueError),
        (unhashable, TypeError),
    ],
)
async def test_an_order_that_cannot_be_had_ends_the_run(
    order_by: Callable[[object], Any], kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """With its error, which names the record; not as if somebody had cancelled the reading."""
    async with consumer_of(broker_with(b"k"), order_by=order_by) as consumer:
        with pytest.raises(kind) as raised:
            await consumer.run(later)
        assert not consumer.health().live
    assert any("t-0 offset 0" in note for note in raised.value.__notes__)
    assert len(lines(caplog, "run_failed")) == 1


async def test_keys_that_cancel_when_they_are_compared_end_a_flow() -> None:
    """With an error, and not as if the loop's own body had been cancelled."""

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise asyncio.CancelledError

    with pytest.raises(WorkCancelled, match="compared"):
        async for _ in parallel_map(later, [1, 2, 3], key=lambda item: Key()):
            pass
