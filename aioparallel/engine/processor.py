"""Scheduler, workers, endings and retries together: all that is needed to run records, from wherever they come.

A Kafka partition feeds it through the fetcher; anything else through ``flow.py``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable, Sequence

from aioparallel.batches import Call
from aioparallel.engine.batch_endings import BatchEndings
from aioparallel.engine.blockages import WorstBlockage
from aioparallel.engine.cancellation import Stuck
from aioparallel.engine.deadlines import Watch
from aioparallel.engine.drains import Drains
from aioparallel.engine.endings import Endings
from aioparallel.engine.failure_log import FailureLog
from aioparallel.engine.fairness import MakeTurnQueue, round_robin
from aioparallel.engine.lingering import Lingering
from aioparallel.engine.retries import Retries
from aioparallel.engine.scheduler import AnyRecord, Scheduler
from aioparallel.engine.shortages import Shortages
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import DeadLetterSink, NoOutputs, OutputSink
from aioparallel.engine.sources import Source
from aioparallel.engine.workers import WorkerPool
from aioparallel.handlers import Stack
from aioparallel.handling import Handling
from aioparallel.left_behind import LeftBehind
from aioparallel.observe.stats import Waiting
from aioparallel.policies import RetryBudget
from aioparallel.record_logging import coordinates

__all__ = ["Processor"]

logger = logging.getLogger(__name__)

# Seconds for which a partition that is full is not told of again.
_TELL_AGAIN = 60.0
# Seconds that a handler has to end after its second cancellation, when it is left behind.
_LAST_GRACE = 0.2


class Processor:
    """Runs admitted records under the order and bounds of ``handling``, and with ``retry_budget``. Made within a
    running event loop.

    ``output_sink`` takes what handlers return, ``dead_letter_sink`` the records that failed for good. The owner sets
    the functions of ``signals``. ``turns``: makes the queue of sources that take turns.
    """

    def __init__(
        self,
        stack: Stack,
        handling: Handling,
        retry_budget: RetryBudget,
        signals: Signals,
        *,
        output_sink: OutputSink | None = None,
        dead_letter_sink: DeadLetterSink | None = None,
        log: FailureLog | None = None,
        turns: MakeTurnQueue = round_robin,
    ) -> None:
        self._drains = Drains()
        # All that is in flight may fail at once and be parked beyond the bound that is looked at before starts.
        self.scheduler = Scheduler(
            handling.ordering,
            handling.order_by,
            slots=handling.max_concurrency,
            max_parked=handling.parked_bound - handling.max_concurrency,
            signals=signals,
            on_drained=self._drains.drained,
            on_full=self._fullness_changed,
            batchings=stack.batchings,
            turns=turns,
        )
        self._told_full: dict[Hashable, float] = {}
        self.left_behind: Sequence[LeftBehind] = ()
        """After :meth:`close`: handlers that go on."""
        self._retries = Retries(self.scheduler, self.notify)
        self.has_deadlines = handling.handler_timeout is not None
        """Whether handlers are cancelled that run for too long."""
        watch = None if handling.handler_timeout is None else Watch(handling.handler_timeout)
        log = log or FailureLog()
        self.shortages = Shortages(log.fields)
        """What handlers lacked lately."""
        endings = Endings(
            self.scheduler,
            retry_budget,
            output_sink or NoOutputs(),
            dead_letter_sink or NoOutputs(),
            self._retries,
            signals,
            self.notify,
            watch,
            log,
            self.shortages,
        )
        assembler = self.scheduler.assembler
        self._lingering = None if assembler is None else Lingering(assembler, self.notify)
        self._pool = WorkerPool(
            self.scheduler,
            stack.handler,
            handling.max_concurrency,
            endings,
            signals,
            watch,
            None if assembler is None else BatchEndings(self.scheduler, endings),
            task_per_record=handling.isolation == "task",
        )

    def admit(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Run these records, ascending by offset within their source."""
        if records:
            self.scheduler.admit(source, records)
            self._pool.notify()

    def notify(self) -> None:
        """Something may have become ready: let a worker look."""
        if self.scheduler.has_ready:
            self._pool.notify()

    @property
    def gathers(self) -> bool:
        """Whether some records go into batches."""
        return self.scheduler.assembler is not None

    def set_no_more_input(self, source: Source, no_more_input: bool) -> None:
        """Set whether the source brings no more records before some of its records start or end: its batches do not
        wait then."""
        assembler = self.scheduler.assembler
        if assembler is not None and no_more_input is not source.no_more_input:
            assembler.set_no_more_input(source, no_more_input)
            self.notify()

    @property
    def stuck(self) -> list[Stuck]:
        """Handlers that ignore the cancellation at their deadline."""
        return self._pool.stuck

    def time(self) -> float:
        """On the loop's clock; in any thread."""
        return self._pool.time()

    @property
    def oldest(self) -> tuple[AnyRecord, float] | None:
        """The record, or the first of a batch, whose handler runs for longest, and the seconds."""
        found = self._pool.oldest
        if found is None:
            return None
        return found[0].records[0] if isinstance(found[0], Call) else found[0], found[1]

    @property
    def waiting(self) -> list[Waiting]:
        """Where records wait for room, those first that wait for longest."""
        return self._retries.at_gates

    def only_waits(self, until: float) -> bool:
        """Whether all records that have not ended wait for their next attempt, and none of them comes to it before
        ``until``, on the loop's clock."""
        scheduler = self.scheduler
        if scheduler.ready:  # what is due counts as parked until it is taken
            return False
        return scheduler.unfinished == scheduler.parked and self._retries.next_time >= until

    @property
    def blockages(self) -> list[WorstBlockage]:
        """The longest blockages of the event loop in the last minute, one for each handler, the longest first."""
        return self._pool.loop_watch.worst()

    async def drain(self, sources: Sequence[Source], seconds: float, cancel_grace: float) -> None:
        """Start nothing more of these sources and wait for what is in flight.

        After ``seconds`` the handlers still running are cancelled, and get ``cancel_grace`` seconds to end.
        """
        for source in sources:
            self.scheduler.stop(source)
        self.notify()  # what was gathered with theirs may wait for nothing more
        if seconds > 0 and await self._drains.wait(sources, seconds):
            return
        if self.cancel(sources):
            await self._drains.wait(sources, cancel_grace)

    def cancel(self, sources: Sequence[Source]) -> int:
        """Cancel the handlers in flight of these sources. Returns how many."""
        wanted = set(sources)
        return self._pool.cancel(lambda record: record._source in wanted)

    async def close(self, timeout: float) -> None:
        """End the workers; names the handlers that do not end within ``timeout`` seconds. They are cancelled once more,
        and no event loop waits for those that go on all the same."""
        self._retries.close()
        if self._lingering is not None:
            self._lingering.close()
        for record in await self._pool.close(timeout):
            logger.warning(
                "handler for %s did not end after it was cancelled; it is left behind",
                record.place,
                extra={"action": "handler_abandoned", **coordinates(record)},
            )
        self.left_behind = tuple(await self._pool.leave(_LAST_GRACE))
        for left in self.left_behind:
            logger.error(
                "handler for %s goes on though it was cancelled twice: its event loop ends without it. It stands at:\n"
                "%s",
                left.record.place,
                left.stack,
                extra={"action": "handler_not_stopped", **coordinates(left.record)},
            )

    def _fullness_changed(self, source: Source) -> None:
        if source.full:
            if not self._is_worth_a_line(source):
                return
            logger.warning(
                "%s: starts retries only, until fewer records wait for one: max_parked leaves this partition no more "
                "room (%d of its records wait, %d of all)",
                source.name,
                len(source.parked),
                self.scheduler.parked,
                extra={"action": "max_parked", "parked": len(source.parked)},
            )
        else:
            logger.debug("%s: starts new records again", source.name, extra={"action": "max_parked_over"})
            self.notify()

    def _is_worth_a_line(self, source: Source) -> bool:
        """To and fro, with each record that comes back, would be a line a second for each partition."""
        now = time.monotonic()
        if now - self._told_full.get(source.name, -math.inf) < _TELL_AGAIN:
            return False
        self._told_full[source.name] = now
        return True
