"""From the end of a batch's handler to the outcomes of its records.

All that is certain is settled in one step: those that have succeeded are complete, what is behind a failed one of its
lane goes back. Each that has failed follows the failure policy by itself, as in ``endings.py``. Where outputs are to
leave first, the whole call is *producing* until the last of them is acknowledged, and settled then: the order of a lane
holds across its records, and outputs of the batch as a whole belong to all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextvars import Context

from aioparallel.batches import Call
from aioparallel.engine.cancellation import CancelReason, Worker
from aioparallel.engine.endings import Endings, comes_of_drain, log_exit, own, stray
from aioparallel.engine.failures import Decision
from aioparallel.engine.isolation import Ended
from aioparallel.engine.scheduler import AnyRecord, Scheduler
from aioparallel.engine.sinks import Abandoned
from aioparallel.errors import InvalidOutput, InvalidValues, RetryLater
from aioparallel.history import history_of
from aioparallel.running_out import out_of_resources
from aioparallel.wording import kind_of

__all__ = ["BatchEndings"]

_Outputs = list[tuple[AnyRecord, object]]
"""What is to leave, and the record that it is told of."""
_Failed = tuple[AnyRecord, Exception, Decision | None]


class BatchEndings:
    """Gives the records of a call their outcomes; what they have in common with others is done by ``endings``."""

    def __init__(self, scheduler: Scheduler, endings: Endings) -> None:
        self._scheduler = scheduler
        self._endings = endings

    async def finish(self, worker: Worker, call: Call, context: Context, ended: Ended) -> None:
        """The call is in flight when this begins and is not when it ends. Raises what must end the worker."""
        failure, whole = ended.error, False
        call.was_drained = worker.cancel_reason is CancelReason.DRAIN
        outputs: _Outputs = []
        if failure is None:
            try:
                await worker.take_back_cancels()  # one that came too late must not hit what follows
                value = ended.value
                if isinstance(value, AsyncIterable):
                    value = await self._endings.collected(worker, call, context, value)
                call.is_over = True
                whole = not isinstance(value, Mapping)
                outputs = self._collected(call, value)
                if outputs:
                    await self._endings.until_room(self._endings.output_sink.room)
            except BaseException as error:
                failure = error
        call.is_over = True
        if failure is not None:
            await self._failed(worker, call, failure)
        elif outputs:
            self._let_leave(call, outputs, whole)
        else:
            await self._fail(worker, [(*one, self._endings.decide(*one)) for one in self._settled(call, {})])
        await worker.take_back_cancels()

    # -- outputs ----------------------------------------------------------------------------------------

    def _collected(self, call: Call, value: object) -> _Outputs:
        """Of those that have succeeded. Raises InvalidOutput."""
        if value is None:
            return []
        left = self._left_in(call)
        if not isinstance(value, Mapping):
            if not left:
                return []
            try:
                collected = self._endings.output_sink.collect(left[0], value)
            except InvalidOutput as error:
                if not error.found:
                    raise
                raise InvalidOutput(
                    f"the handler of {call.place} returned {error.found}: it may return None, an Outgoing or an "
                    "iterable of them for the batch as a whole, or {record: outputs}"
                ) from None
            if collected is None:
                return []
            if self._endings.output_sink.is_exact and (behind := call.blocked(call.failures)):
                raise InvalidOutput(
                    f"the handler of {call.place} returned outputs for the batch as a whole, though {len(behind)} of "
                    "its records stand behind a failed one of their key and run again: return {record: outputs}, so "
                    "that nothing of those is written twice"
                )
            return [(left[0], collected)]
        known = set(call.records)
        if strange := [key for key in value if key not in known]:
            raise InvalidOutput(
                f"the handler of {call.place} returned outputs for {len(strange)} keys that are no records of its "
                f"batch, the first {kind_of(strange[0])}: a mapping says which outputs are of which record, "
                "{record: outputs}"
            )
        found = [
            (record, self._endings.output_sink.collect(record, value[record])) for record in left if record in value
        ]
        return [(record, collected) for record, collected in found if collected is not None]

    @staticmethod
    def _left_in(call: Call) -> list[AnyRecord]:
        """Those that have not failed, nor stand behind one that has."""
        out = call.blocked(call.failures) | call.failures.keys()
        return [record for place, record in enumerate(call.records) if place not in out]

    def _let_leave(self, call: Call, outputs: _Outputs, whole: bool) -> None:
        self._scheduler.produce_together(call)
        # While they waited for room a partition may have been dropped: its next owner runs what is its.
        if whole:
            outputs = outputs if not all(source.dropped for source in call.parts) else []
        else:
            outputs = [one for one in outputs if not one[0]._source.dropped]
        listener = _BatchListener(self, call, [record for record, _ in outputs], whole)
        together = self._left_in(call) if whole else ()
        output_sink = self._endings.output_sink
        for record, collected in outputs:
            if output_sink.is_exact and listener.holds_back(record):
                listener.delivered((record,))  # it goes back, so nothing of it leaves now
            else:
                output_sink.deliver(record, collected, listener, together)
        if not outputs:
            self.left(call, {})

    def left(self, call: Call, errors: Mapping[AnyRecord, Exception], whole: Exception | None = None) -> None:
        """All that was to leave has left, or has not: these. ``whole``: what was to leave was of the whole batch, and
        has not, so this is the error of all its records that have none of their own."""
        worker_comes, now = self._scheduler.has_ready, asyncio.get_running_loop().time()
        if isinstance(whole, Abandoned):
            errors, whole = dict.fromkeys(call.records, whole), None
        found: Iterable[_Failed]
        if whole is not None:
            found = self._all_failed(call, whole)
        else:
            failed = self._settled(call, errors)
            found = [(*one, None if isinstance(one[1], Abandoned) else self._endings.decide(*one)) for one in failed]
        for record, error, decision in found:
            if isinstance(error, Abandoned):
                self._scheduler.put_back(record)
            else:
                self._endings.follow(record, error, decision, now)
        self._endings.look_around(worker_comes)

    # -- outcomes ---------------------------------------------------------------------------------------

    def _settled(self, call: Call, errors: Mapping[AnyRecord, Exception]) -> list[tuple[AnyRecord, Exception]]:
        """Settle it. Returns what has failed, each by itself now."""
        by_handler = {call.records[place]: error for place, error in call.failures.items()}
        failed = dict(errors) | by_handler
        still = self._scheduler.settle(call, failed)
        if call.was_drained:  # the handler calls failed what it was kept from
            for record in still:
                if record in by_handler:
                    self._scheduler.put_back(record)
            still = [record for record in still if record not in by_handler]
        return [(record, failed[record]) for record in still]

    async def _failed(self, worker: Worker, call: Call, error: BaseException) -> None:
        """The handler has failed, and with it all records of the batch that have not failed by themselves."""
        if comes_of_drain(worker, error):
            self._scheduler.put_back_together(call)  # those of stopped sources end as dropped
            return
        if isinstance(error, asyncio.CancelledError):
            failure = self._cancelled(worker, call, error)
        elif isinstance(error, Exception):
            failure = error
        else:
            log_exit(call, error)
            self._scheduler.put_back_together(call)
            raise error
        await self._fail(worker, self._all_failed(call, failure))

    def _all_failed(self, call: Call, failure: Exception) -> list[_Failed]:
        """Settle it: all have failed of this, but for those that have failed by themselves."""
        assert call.batching is not None
        failure = out_of_resources(failure) or failure
        beside = 0 if isinstance(failure, InvalidValues) else len(call.records) - 1
        # A request for a delay blames no record, so the whole batch comes again.
        stay_together = call.batching.terms.on_error == "together" or isinstance(failure, RetryLater)
        if beside and not stay_together:
            for record in call.records:
                history_of(record).alone = True
        alone = {call.records[place]: one for place, one in call.failures.items()}
        still = self._scheduler.settle(call, set(call.records))
        delays: dict[int, float] = {}
        found: list[_Failed] = []
        is_told = False
        for record in still:
            if record in alone:
                found.append((record, alone[record], self._endings.decide(record, alone[record])))
                continue
            decision = self._endings.decide(record, failure, beside, quiet=is_told)
            is_told = True
            if decision is not None and decision.delay and stay_together:
                # One time for all, or they would come back one by one.
                decision = decision._replace(delay=delays.setdefault(record.attempt, decision.delay))
            found.append((record, failure, decision))
        return found

    def _cancelled(self, worker: Worker, call: Call, error: asyncio.CancelledError) -> Exception:
        """What the records have failed with."""
        if (failure := self._endings.own_failure(worker, error)) is not None:
            return failure
        strays = [stray(record) for record in call.records]  # of each, whatever the others are
        if not all(strays):
            return own(error)
        self._scheduler.put_back_together(call)
        raise error

    async def _fail(self, worker: Worker, failed: Iterable[_Failed]) -> None:
        """These are in flight, each by itself. Those that are to be put away wait for room, one after the other."""
        waiting, now = [], asyncio.get_running_loop().time()
        for record, error, decision in failed:
            if decision is not None and (decision.retry_topic or decision.end == "dead_letter"):
                waiting.append((record, error, decision))
            else:
                self._endings.follow(record, error, decision, now)
        for index, (record, error, decision) in enumerate(waiting):
            try:
                await worker.take_back_cancels()
                await self._endings.until_room(self._endings.dead_letter_sink.room)
            except asyncio.CancelledError:  # in a drain, or from outside
                for left, _, _ in waiting[index:]:
                    self._scheduler.put_back(left)
                if worker.cancel_reason is None:
                    raise
                return
            if record._source.dropped:
                self._scheduler.put_back(record)
            else:
                self._scheduler.produce(record)
                self._endings.follow(record, error, decision)


class _BatchListener:
    """Hears what became of the outputs of one call."""

    def __init__(self, endings: BatchEndings, call: Call, records: Sequence[AnyRecord], whole: bool) -> None:
        self._endings = endings
        self._call = call
        self._awaited = set(records)
        self._whole = whole
        self._errors: dict[AnyRecord, Exception] = {}
        self._closed: set[tuple[object, object]] = set()  # lanes of these
        self._error_of_all: Exception | None = None

    def holds_back(self, record: AnyRecord) -> bool:
        """Whether it stands behind one of its lane of which something was not taken."""
        return record._lane is not None and (record._source, record._lane) in self._closed

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        """See :class:`~aioparallel.engine.sinks.DeliveryListener`."""
        self._awaited.difference_update(records)
        if not self._awaited:
            self._endings.left(self._call, self._errors, self._error_of_all)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        """See :class:`~aioparallel.engine.sinks.DeliveryListener`."""
        if self._whole:
            self._error_of_all = error
        else:
            self._errors[record] = error
            self._closed.add((record._source, record._lane))
        self.delivered((record,))
