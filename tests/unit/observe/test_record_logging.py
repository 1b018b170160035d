"""Log lines name their record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from aioparallel import (
    Batch,
    ConfigurationError,
    FailurePolicy,
    Record,
    RecordFilter,
    RetryPolicy,
    batches,
    name_records,
    parallel_map,
)
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import consumer_of, produce

logger = logging.getLogger("tests.of.a.handler")
FIELDS = ("topic", "partition", "offset", "attempt", "key")


class Lines(logging.Handler):
    """Stores log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)

    def of(self, logger: str) -> list[dict[str, Any]]:
        return [line.__dict__ for line in self.kept if line.name.startswith(logger)]


@pytest.fixture
def lines() -> Iterator[Lines]:
    made, root = Lines(), logging.getLogger()
    root.addHandler(made)
    level = root.level
    root.setLevel(logging.INFO)
    yield made
    root.removeHandler(made)
    root.setLevel(level)


def shown(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in FIELDS)


async def run(handler: Any, **options: Any) -> None:
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    produce(broker, [b"a", b"b", None])
    async with asyncio.timeout(20), consumer_of(broker, until="end", middleware=[name_records], **options) as consumer:
        await consumer.run(handler)


async def test_what_a_handler_logs_is_about_its_record(lines: Lines) -> None:
    """Before and after an await, and in a task that it creates, with many at once. Lines from elsewhere have no
    record."""

    async def beside(record: Record) -> None:
        logger.info("beside %d", record.offset)

    async def handle(record: Record) -> None:
        logger.info("first %d", record.offset)
        await asyncio.gather(beside(record), asyncio.sleep(0.01))
        logger.info("last %d", record.offset)

    lines.addFilter(RecordFilter())
    await run(handle)
    logger.info("after")
    found = lines.of(logger.name)
    assert len(found) == 10
    for line in found[:-1]:
        assert shown(line) == ("t", 0, int(str(line["args"][0])), 1, None)
    assert shown(found[-1]) == (None,) * 5


@pytest.mark.parametrize(
    ("keys", "expected"), [("hash", ["333fcb4ee1aa7c11", None]), ("clear", ["a", None]), ("omit", [None, None])]
)
async def test_keys_are_shown_as_asked(lines: Lines, keys: Any, expected: list[str | None]) -> None:
    """As text, as a hash that is the same for the same key, or not at all. A record without a key has none."""

    async def handle(record: Record) -> None:
        logger.info("%d", record.offset)

    lines.addFilter(RecordFilter(keys=keys))
    await run(handle, key_deserializer=lambda raw: raw.decode().upper())
    found = {line["offset"]: line.get("key") for line in lines.of(logger.name)}
    assert [found[0], found[2]] == expected


async def test_lines_about_failures_say_where_and_of_which_group(lines: Lines) -> None:
    """The library's own lines, with the key as the filter says."""

    async def handle(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("no such customer")

    lines.addFilter(RecordFilter(keys="clear"))
    await run(handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=0, max_attempts=2), give_up="skip"))
    first, second = lines.of("aioparallel.engine.outcomes.failure_log")
    assert shown(first) == ("t", 0, 1, 1, "b")
    assert shown(second) == ("t", 0, 1, 2, "b")
    assert first["group_id"] == second["group_id"]
    assert first["error"] == "ValueError"


async def test_of_a_batch_the_first_is_named_and_of_items_nothing(lines: Lines) -> None:
    """A batch has several records; an item of parallel_map is no record."""

    async def handle(batch: Batch[Record]) -> None:
        logger.info("batch")

    lines.addFilter(RecordFilter())
    await run(batches(handle, size=3))
    assert shown(lines.of(logger.name)[0]) == ("t", 0, 0, 1, None)

    async def item(number: int) -> int:
        logger.info("item")
        return number

    assert [one.value async for one in parallel_map(item, [7], middleware=[name_records])] == [7]
    assert shown(lines.of(logger.name)[-1]) == (None,) * 5


def test_another_way_to_show_keys_is_refused() -> None:
    """The error names the allowed values."""
    with pytest.raises(ConfigurationError, match="RecordFilter keys='md5': must be one of omit, hash, clear"):
        RecordFilter(keys="md5")  # type: ignore[arg-type]
