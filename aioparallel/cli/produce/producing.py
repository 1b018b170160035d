"""Sends a record for each line, and reports how many were written."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.console import counted, has_terminal, make_console, say, say_error
from aioparallel.cli.produce.command import Producing
from aioparallel.cli.produce.lines import LineParser
from aioparallel.cli.produce.reading import lines_of
from aioparallel.cli.reading_client import CONNECT_TIMEOUT, STOP_TIMEOUT
from aioparallel.clients.aiokafka import AiokafkaProducer
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records.errors import ConfigurationError, ProduceFailed, TopicNotFound
from aioparallel.records.record import Outgoing, Produced

__all__ = ["produce_lines"]

DELIVERY_TIMEOUT: Final = 60.0  # seconds
UNACKNOWLEDGED: Final = 32 * 1024 * 1024
"""Bytes of records that wait for their acknowledgement before reading goes on."""
OVERHEAD: Final = 100
"""Bytes of a record besides its line."""
FAILURES_SHOWN: Final = 10


async def produce_lines(topic: str, files: Sequence[Path], how: Producing, where: Cluster) -> bool:
    """``aioparallel produce``."""
    options = connecting_options(where)
    for file in files:
        if not file.is_file():
            raise ConfigurationError("FILES", str(file), "must be a file that exists")
    if not files and sys.stdin is None:
        raise ConfigurationError("FILES", None, "must be given: standard input is closed")
    producer = AiokafkaProducer(
        where.bootstrap_servers,
        delivery_timeout=DELIVERY_TIMEOUT,
        consumer_options=options,
        producer_options={"compression_type": None if how.compression == "none" else how.compression, "linger_ms": 5},
    )
    try:
        await producer.start(CONNECT_TIMEOUT)
        partitions = {one.partition for one in await producer.partitions([topic], CONNECT_TIMEOUT)}
        if not partitions:
            raise TopicNotFound([topic], where.bootstrap_servers)
        if how.partition is not None and how.partition not in partitions:
            raise ConfigurationError("partition", how.partition, f"{topic} has the partitions 0 to {max(partitions)}")
        if not files and has_terminal():
            say(f"Each line becomes a record of {topic}. Ctrl-D ends.")
        sending = _Sending(producer)
        try:
            await sending.run(files, LineParser(topic, how))
        finally:
            await sending.finish(STOP_TIMEOUT)
            sending.report(topic)
    finally:
        await producer.stop(STOP_TIMEOUT)
    return not sending.failed


class _Line(PendingOutput):
    """A record that was sent, and the line it comes from."""

    __slots__ = ("place", "sending", "size")

    def __init__(self, output: Outgoing, place: str, size: int, sending: _Sending) -> None:
        super().__init__(output)
        self.place = place
        self.size = size
        self.sending = sending

    def placed(self, place: Produced) -> None:
        self.sending.answered(self, None)

    def failed(self, failure: ProduceFailed) -> None:
        self.sending.answered(self, failure)


class _Sending:
    """Sends lines with a bounded number of bytes unacknowledged. ``written``: acknowledged records. ``failed``: reasons
    with their counts, also of lines that may be written."""

    def __init__(self, producer: AiokafkaProducer) -> None:
        self.written = 0
        self.failed: Counter[str] = Counter()
        self._producer = producer
        self._unacknowledged = 0
        self._outstanding = 0
        self._doubtful = 0
        self._capacity = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()

    async def run(self, files: Sequence[Path], parser: LineParser) -> None:
        """Send every line, and wait until the last one is answered. Raises ConfigurationError at a line without key;
        the lines before it are written."""
        with _progress(files) as advance:
            for name, descriptor in _inputs(files):
                number = 0
                async for lines in lines_of(descriptor):
                    for line in lines:
                        number += 1
                        await self._send(parser, line, f"line {number:,} of {name}")
                    advance(sum(len(line) + 1 for line in lines))
            await self._none.wait()

    async def _send(self, parser: LineParser, line: bytes, place: str) -> None:
        size = len(line) + OVERHEAD
        output = parser.record(line, place)
        while self._unacknowledged >= UNACKNOWLEDGED:
            self._capacity.clear()
            await self._capacity.wait()
        self._unacknowledged += size
        self._outstanding += 1
        self._none.clear()
        self._producer.send_one(_Line(output, place, size, self))

    def answered(self, line: _Line, failure: ProduceFailed | None) -> None:
        """Count the answer."""
        self._unacknowledged -= line.size
        self._outstanding -= 1
        self._capacity.set()
        if not self._outstanding:
            self._none.set()
        if failure is None:
            self.written += 1
            return
        # A batch whose answer is missing may be in the log.
        what = "was not acknowledged and may be written or not" if failure.passing else "was not written"
        if self.failed.total() < FAILURES_SHOWN:
            say_error(f"{line.place} {what}: {failure}")
        self.failed[str(failure)] += 1
        self._doubtful += failure.passing

    async def finish(self, timeout: float) -> None:
        """After an interruption: wait for outstanding answers, ``timeout`` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._none.wait()

    def report(self, topic: str) -> None:
        """Say how many records were written."""
        said = f"{counted(self.written, 'record')} written to {topic}"
        if refused := self.failed.total() - self._doubtful:
            said += f", {counted(refused, 'line')} not written"
        if doubtful := self._outstanding + self._doubtful:
            said += f", {counted(doubtful, 'line')} not acknowledged: they may be written or not"
        say(f"{said}.")


def _inputs(files: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Name and file descriptor of each input."""
    if not files:
        yield "standard input", sys.stdin.fileno()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            yield str(file), opened.fileno()


@contextmanager
def _progress(files: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while files are read, nothing elsewhere. Call the result with the number of bytes read."""
    console = make_console(stderr=True)
    columns = (TextColumn("writing"), BarColumn(), TaskProgressColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (files and console.is_terminal)) as bar:
        task = bar.add_task("", total=sum(file.stat().st_size for file in files))
        yield lambda size: bar.advance(task, size)
