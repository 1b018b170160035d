"""(f) Added latency: how long a record waits within the library, and from the producer to its handler.

A producer in a process of its own sends at a steady pace, a consumer in another runs a no-op handler. Measured for each
record: from the moment the Kafka client's ``fetch`` gave it out to the start of its handler, and from the moment before
it was handed to the producer. The first two seconds of sending are told apart: processes warm up.

Once at 20,000 records/s, and once at half of what the same consumer reaches with a backlog, measured just before, if
the producer can pace that: ``rate_seen`` says what it did. Producer, broker and consumer share the machine.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioparallel.cli.bench.check import Expected, check_events
from aioparallel.cli.bench.latency_consumer import CONCURRENCY, ROW
from aioparallel.cli.bench.model import Case, CreateTopic
from aioparallel.cli.bench.stream import Stream
from aioparallel.cli.bench.worker import Worker
from aioparallel.errors import AioparallelError

__all__ = ["Course", "figures", "latency_figures", "measure", "problems"]

PARTITIONS: Final = 8
KEYS: Final = 2_000
VALUE_SIZE: Final = 100  # bytes
RATE: Final = 20_000.0  # records a second
SECONDS: Final = 20.0  # of sending, the warm-up included
WARM_UP: Final = 2.0  # seconds
BACKLOG: Final = 500_000  # records
JOIN_TIMEOUT: Final = 30.0
SEND_TIMEOUT: Final = 120.0
SHARES: Final = {"p50": 500, "p99": 990, "p999": 999, "max": 1_000}
"""Of a thousand."""
LAST_TIMEOUT: Final = 30.0  # seconds from the last acknowledged record to the last handler


async def measure(
    bootstrap_servers: str, create_topic: CreateTopic, scale: int, seed: int, progress: Callable[[str], None]
) -> list[Case]:
    """The cases ``f-20000`` and ``f-half``. With ``scale`` above 1 sending takes that much less than 20 seconds, but
    a second after the warm-up at least."""
    seconds = WARM_UP + max(1.0, (SECONDS - WARM_UP) / scale)
    with tempfile.TemporaryDirectory() as folder:
        course = Course(bootstrap_servers, create_topic, Path(folder), seed)
        steady = Case("f", "f-20000", "Added latency at 20,000 records/s", concurrency=CONCURRENCY)
        progress(f"latency at {RATE:,.0f} records/s, {seconds:.0f} s")
        await course.paced(steady, RATE, seconds)
        half = Case("f", "f-half", "Added latency at half of the highest rate", concurrency=CONCURRENCY)
        progress("the highest rate of the same consumer")
        highest = await course.highest_rate(half, BACKLOG // scale)
        if highest:
            half.figures["highest_rate"] = highest
            progress(f"latency at {highest / 2:,.0f} records/s, {seconds:.0f} s")
            await course.paced(half, highest / 2, seconds)
    return [steady, half]


@dataclass(frozen=True)
class Course:
    """Where all of it happens. What goes wrong becomes a problem of the case."""

    bootstrap_servers: str
    create_topic: CreateTopic
    folder: Path
    seed: int

    async def paced(self, case: Case, rate: float, seconds: float) -> None:
        """Send at that rate to a consumer that has joined; fills the case."""
        stream = Stream(round(rate * seconds), PARTITIONS, KEYS, self.seed)
        case.records = stream.records
        try:
            rows, sent = await self._run(stream, rate)
        except (AioparallelError, TimeoutError) as error:
            case.problems.append(str(error))
            return
        case.problems += problems(rows, stream)
        case.figures |= figures(rows, rate)
        case.figures["producer_latest_ms"] = round(sent["latest"], 3)

    async def highest_rate(self, case: Case, records: int) -> float | None:
        """Records a second, from the first handler to the last, of a backlog; None with a problem in the case."""
        stream = Stream(records, PARTITIONS, KEYS, self.seed)
        try:
            rows, _ = await self._run(stream, None)
        except (AioparallelError, TimeoutError) as error:
            case.problems.append(str(error))
            return None
        case.problems += problems(rows, stream)
        return float(round(records / (int(rows["began"][-1] - rows["began"][0]) / 1e9)))

    async def _run(self, stream: Stream, rate: float | None) -> tuple[NDArray[np.void], dict[str, Any]]:
        topic = f"bench-f-{uuid.uuid4().hex[:8]}"
        await self.create_topic(topic, PARTITIONS)
        evidence = self.folder / topic
        common = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic": topic,
            "partitions": PARTITIONS,
            "records": stream.records,
        }
        sender = Worker(
            "sender", {**common, "keys": KEYS, "seed": self.seed, "size": VALUE_SIZE, "rate": rate}, self.folder
        )
        consumer = Worker("latency_consumer", {**common, "group": topic, "evidence": str(evidence)}, self.folder)
        if rate is None:
            async with sender:
                sent = await sender.told(SEND_TIMEOUT)
            async with consumer:
                await consumer.told(JOIN_TIMEOUT)
                await consumer.told(LAST_TIMEOUT)
        else:
            async with consumer:
                await consumer.told(JOIN_TIMEOUT)
                async with sender:
                    sent = await sender.told(SEND_TIMEOUT)
                await consumer.told(LAST_TIMEOUT)
        rows = np.fromfile(evidence, dtype=ROW)
        evidence.unlink()
        return rows, sent


def figures(rows: NDArray[np.void], rate: float) -> dict[str, Any]:
    """Rates in records/s, latencies in ms, those of the warm-up by themselves."""
    sent = rows["sent"]
    late = sent - sent.min() >= WARM_UP * 1e9
    warm = np.sort(sent[late])
    found: dict[str, Any] = {"rate_asked": round(rate)}
    if len(warm) > 1:
        found["rate_seen"] = round(float((len(warm) - 1) / ((warm[-1] - warm[0]) / 1e9)))
    for name, since in (("arrival_to_handler", "arrived"), ("produce_to_handler", "sent")):
        waited = rows["began"] - rows[since]
        found |= latency_figures(name, waited[late])
        found |= latency_figures(f"warm_up_{name}", waited[~late])
    return found


def latency_figures(name: str, nanoseconds: NDArray[np.int64]) -> dict[str, float]:
    """The median, 99th and 99.9th percentile and the highest, in ms, as ``<name>_p50_ms`` and so on.

    By nearest rank: each is a latency that was seen, and at least that share of all is not above it. None of nothing.
    """
    if not len(nanoseconds):
        return {}
    ordered = np.sort(nanoseconds)
    # The rank is rounded up.
    ranks = {share: -(-len(ordered) * thousandths // 1_000) for share, thousandths in SHARES.items()}
    return {f"{name}_{share}_ms": round(int(ordered[rank - 1]) / 1e6, 3) for share, rank in ranks.items()}


def problems(rows: NDArray[np.void], stream: Stream) -> list[str]:
    """Whether each produced record was handled once, and each key in order."""
    events = [rows["offset"][rows["partition"] == partition] for partition in range(stream.partitions)]
    found = check_events(events, Expected(stream.keys_by_offset, sleeps=False, order="key"))
    if len(np.setdiff1d(np.arange(stream.records), rows["serial"])):
        found.append("values are not those that were produced")
    return found
