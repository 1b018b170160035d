"""confluent-kafka's share consumer as a contestant of ``benchmarks/share.py``: see ``java_share/Share.java``."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from confluent_kafka import AcknowledgeType, ShareConsumer

from aioparallel.testing.event_log import EventLog
from benchmarks.cpu import cpu_seconds

START: Final = 60.0
"""Seconds until the first record."""
WRITING: Final = threading.Lock()
"""An event log is written by one thread at a time."""


def handle(message: Any, log: EventLog, milliseconds: int, slow: int, every: int) -> None:
    """The handler of one record."""
    partition, offset = message.partition(), message.offset()
    with WRITING:
        log.began(partition, offset)
    if milliseconds:
        time.sleep((slow if every and offset % every == 0 else milliseconds) / 1000)
    with WRITING:
        log.ended(partition, offset)


def run(servers: str, topic: str, threads: int, pool: ThreadPoolExecutor, given: list[str]) -> dict[str, float]:
    """One run."""
    group, *numbers, path = given
    count, limit = int(numbers[0]), float(numbers[1])
    milliseconds, slow, every = map(int, numbers[2:])
    consumer = ShareConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": threads,
        }
    )
    consumer.subscribe([topic])
    ended, first, used = 0, 0.0, 0.0
    now = started = time.perf_counter()
    with EventLog(Path(path)) as log:
        while ended < count and (now - first < limit if first else now - started < START):
            messages = list(consumer.poll(0.5))
            if error := next((one.error() for one in messages if one.error()), None):
                raise RuntimeError(error)
            if messages and not first:
                first, used = time.perf_counter(), cpu_seconds()
            if milliseconds:
                done, _ = wait([pool.submit(handle, one, log, milliseconds, slow, every) for one in messages])
                for future in done:
                    future.result()
            else:
                for one in messages:
                    handle(one, log, 0, 0, 0)
            for one in messages:
                consumer.acknowledge(one, AcknowledgeType.ACCEPT)
            ended += len(messages)
            now = time.perf_counter()
        used = cpu_seconds() - used
        if refused := next((one for one in consumer.commit_sync(30.0).values() if one), None):
            raise refused
        consumer.close()
    return {"seconds": now - first, "ended": ended, "cpu": used}


def main() -> None:
    """Runs, one for each line of standard input."""
    servers, topic, threads, _ = sys.argv[1:]
    with ThreadPoolExecutor(int(threads)) as pool:
        for line in sys.stdin:
            print(json.dumps(run(servers, topic, int(threads), pool, line.split())), flush=True)


if __name__ == "__main__":
    main()
