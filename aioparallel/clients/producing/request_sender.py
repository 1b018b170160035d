"""Sends produce requests, and handles answers and missing answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aioparallel.clients.producing.brokers import Brokers
from aioparallel.clients.producing.open_requests import ProduceRequest, Requests
from aioparallel.clients.producing.partition_queue import RecordBatch
from aioparallel.clients.producing.produce_answers import Answer, Verdict
from aioparallel.clients.producing.queues import PartitionQueues

__all__ = ["LONGEST_PAUSE", "RequestSender"]

logger = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 1.0
"""Longest pause in seconds between two attempts."""
_SHORTEST_PAUSE: Final = 0.01
"""Seconds before the second attempt, at least. Each further pause is twice as long."""
_LOOK_AGAIN: Final = 1.0
"""Seconds between metadata checks while a broker is silent."""


class RequestSender:
    """Sends batches to the brokers, returns the answers to the queues, and disconnects from silent brokers.

    ``on_answered`` is called when batches may have become ready. ``retry_backoff``: seconds.
    """

    def __init__(
        self, partition_queues: PartitionQueues, brokers: Brokers, retry_backoff: float, on_answered: Callable[[], None]
    ) -> None:
        self._partition_queues = partition_queues
        self._brokers = brokers
        self._retry_backoff = retry_backoff
        self._on_answered = on_answered
        self.requests = Requests()
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None

    def send(self, node: int, batches: Sequence[RecordBatch]) -> None:
        loop = asyncio.get_running_loop()
        request = self.requests.begin(node, self._brokers.address_of(node), batches, loop.time())
        task = loop.create_task(self._send(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._look is None:
            self._look = loop.call_at(self.requests.next_look(loop.time()) or 0.0, self._look_at_silent)

    def metadata_changed(self) -> None:
        """Send the requests of silent brokers to the new leaders, if there are any.

        The batches keep their numbers: whichever broker writes one first, the other refuses or recognises it."""
        now = asyncio.get_running_loop().time()
        deserted = self.requests.deserted(now, self._brokers.leader_of, self._brokers.address_of)
        self.cut(deserted, "its partitions have another leader")

    def cut(self, nodes: Iterable[int], why: str) -> None:
        """Close the connections to these nodes, so that their requests get no further."""
        for node in nodes:
            logger.warning(
                "Closing the connection to broker %d (%s): %s",
                node,
                self._brokers.address_of(node),
                why,
                extra={"action": "cut", "node": node},
            )
            self._brokers.cut(node)

    def close(self) -> set[asyncio.Task[None]]:
        """Stop sending. Returns the tasks that are ending."""
        if self._look is not None:
            self._look.cancel()
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    async def _send(self, request: ProduceRequest) -> None:
        answers: Sequence[Answer] = ()
        try:
            answers = await self._brokers.produce(request.node, request.batches)
        finally:
            now = asyncio.get_running_loop().time()
            self.requests.end(request, now, is_answered=any(answer.is_heard for answer in answers))
        again: list[RecordBatch] = []
        for batch, answer in zip(request.batches, answers, strict=True):
            if answer.verdict is not Verdict.WRITTEN:
                _log_answer(batch, answer.verdict, answer.explain(len(batch.data)))
            if answer.verdict is Verdict.AGAIN:
                again.append(batch)
            self._partition_queues.answered(batch, answer)
        self._on_answered()
        if again:
            self._brokers.doubt()
            attempts = max(batch.attempts for batch in again)
            pause = max(_SHORTEST_PAUSE, self._retry_backoff) * 2 ** min(attempts - 1, 10)
            await asyncio.sleep(min(LONGEST_PAUSE, pause))
            for batch in again:
                self._partition_queues.resume(batch)
            self._on_answered()

    def _look_at_silent(self) -> None:
        """While a broker is silent, check every second whether its partitions have another leader."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_silent = bool(self.requests.silent(now))
        at = now + _LOOK_AGAIN if is_silent else self.requests.next_look(now)
        self._look = None if at is None else loop.call_at(at, self._look_at_silent)
        if is_silent:
            self._brokers.doubt()
            self.metadata_changed()


def _log_answer(batch: RecordBatch, verdict: Verdict, reason: str) -> None:
    queue = batch.queue
    is_taken_apart = verdict in {Verdict.SPLIT, Verdict.TOO_LARGE} and len(batch.entries) > 1 and queue.batch is batch
    logger.log(
        logging.INFO if is_taken_apart or verdict is Verdict.AGAIN else logging.WARNING,
        "A batch of %d for %s-%d %s (%s): %s",
        len(batch.entries),
        queue.topic,
        queue.partition,
        "was split and is sent again" if is_taken_apart else "was not written",
        verdict.value,
        reason,
        extra={
            "action": "batch_not_written",
            "verdict": verdict.name.lower(),
            "topic": queue.topic,
            "partition": queue.partition,
        },
    )
