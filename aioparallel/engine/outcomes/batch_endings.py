"""From the end of a batch's handler to the outcomes of its records.

All outcomes that are already certain are applied in one step. Records that succeeded are complete. Records behind a
failed one in the same lane are put back. Each failed record follows the failure policy by itself, as in ``endings.py``.

If outputs must be sent first, the whole call is *producing* until the last output is acknowledged, and settled then.
This keeps the order within a lane. Outputs of the batch as a whole belong to all its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextvars import Context

from aioparallel.engine.isolation import Ended
from aioparallel.engine.outcomes.endings import Endings
from aioparallel.engine.outcomes.failures import Decision
from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.engine.sinks import Abandoned
from aioparallel.engine.watch.cancellation import CancelReason, Worker
from aioparallel.handlers.batches import Call
from aioparallel.handlers.running_out import out_of_resources
from aioparallel.records.errors import InvalidOutput, InvalidValues, RetryLater
from aioparallel.records.history import history_of
from aioparallel.records.wording import kind_of

__all__ = ["BatchEndings"]

_Outputs = list[tuple[AnyRecord, object]]
"""Outputs, each with the record for which the delivery result is reported."""
_Failed = tuple[AnyRecord, Exception, Decision | None]


class BatchEndings:
    """Gives the records of a call their outcomes. ``endings`` does what is the same for single records."""

    def __init__(self, scheduler: Scheduler, endings: Endings) -> None:
        self._scheduler = scheduler
        self._endings = endings

    async def finish(self, worker: Worker, call: Call, context: Context, ended: Ended) -> None:
        """Take a call from in flight to the outcomes of its records. Raises what must end the worker."""
        failure, whole = ended.error, False
        call.was_drained = worker.cancel_reason is CancelReason.DRAIN
        outputs: _Outputs = []
        if failure is None:
            try:
                await worker.take_back_cancels()  # a late cancellation must not reach the code below
                value = ended.value
                if isinstance(value, AsyncIterable):
                    value = await self._endings.collected(worker, call, context, value)
                call.is_over = True
                whole = not isinstance(value, Mapping)
                outputs = self._collected(call, value)
                if outputs:
                    await self._endings.wait_for_capacity(self._endings.output_sink.room)
            except BaseException as error:
                failure = error
        call.is_over = True
        if failure is not None:
            # All records fail, except those that the handler marked as failed before.
            if (error_of_all := self._endings.failure_of(worker, call, failure)) is not None:
                await self._fail(worker, self._all_failed(call, error_of_all))
        elif outputs:
            self._send(call, outputs, whole)
        else:
            await self._fail(worker, [(*one, self._endings.decide(*one)) for one in self._settled(call, {})])
        await worker.take_back_cancels()

    # -- outputs ----------------------------------------------------------------------------------------

    def _collected(self, call: Call, value: object) -> _Outputs:
        """Return the outputs of the records that succeeded. Raises InvalidOutput."""
        if value is None:
            return []
        left = self._succeeded_in(call)
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
                    f"the handler of {call.place} returned outputs for the batch as a whole, but {len(behind)} of "
                    "its records come after a failed record of their key and run again: return {record: outputs}, so "
                    "that their outputs are not written twice"
                )
            return [(left[0], collected)]
        known = set(call.records)
        if strange := [key for key in value if key not in known]:
            raise InvalidOutput(
                f"the handler of {call.place} returned outputs for {len(strange)} keys that are not records of its "
                f"batch, the first {kind_of(strange[0])}: the keys of the mapping must be records of the batch, "
                "{record: outputs}"
            )
        found = [
            (record, self._endings.output_sink.collect(record, value[record])) for record in left if record in value
        ]
        return [(record, collected) for record, collected in found if collected is not None]

    @staticmethod
    def _succeeded_in(call: Call) -> list[AnyRecord]:
        """The records that have not failed and are not behind a failed one in their lane."""
        out = call.blocked(call.failures) | call.failures.keys()
        return [record for place, record in enumerate(call.records) if place not in out]

    def _send(self, call: Call, outputs: _Outputs, whole: bool) -> None:
        self._scheduler.produce_together(call)
        # A partition may have been dropped while the outputs waited for capacity: its next owner runs its records.
        if whole:
            outputs = outputs if not all(source.dropped for source in call.parts) else []
        else:
            outputs = [one for one in outputs if not one[0]._source.dropped]
        listener = _BatchListener(self, call, [record for record, _ in outputs], whole)
        together = self._succeeded_in(call) if whole else ()
        output_sink = self._endings.output_sink
        for record, collected in outputs:
            if output_sink.is_exact and listener.holds_back(record):
                listener.delivered((record,))  # the record is put back, so none of its outputs may be sent
            else:
                output_sink.deliver(record, collected, listener, together)
        if not outputs:
            self.sent(call, {})

    def sent(self, call: Call, errors: Mapping[AnyRecord, Exception], whole: Exception | None = None) -> None:
        """Settle the call once the results of all its outputs are known. ``errors``: records whose outputs were not
        delivered. ``whole``: outputs of the whole batch were not delivered, so all records without an error of their
        own get this one."""
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
        self._endings.after_end(worker_comes)

    # -- outcomes ---------------------------------------------------------------------------------------

    def _settled(self, call: Call, errors: Mapping[AnyRecord, Exception]) -> list[tuple[AnyRecord, Exception]]:
        """Settle the call. Returns the failed records that need an outcome, with their errors."""
        by_handler = {call.records[place]: error for place, error in call.failures.items()}
        failed = dict(errors) | by_handler
        still = self._scheduler.settle(call, failed)
        if still:
            self._endings.skip_put_back(call)
        if call.was_drained:  # the handler marked as failed what the drain kept it from doing
            for record in still:
                if record in by_handler:
                    self._scheduler.put_back(record)
            still = [record for record in still if record not in by_handler]
        return [(record, failed[record]) for record in still]

    def _all_failed(self, call: Call, failure: Exception) -> list[_Failed]:
        """Settle the call: all records failed with this error, except those with an error of their own."""
        assert call.batching is not None
        failure = out_of_resources(failure) or failure
        others = 0 if isinstance(failure, InvalidValues) else len(call.records) - 1
        # A request for a delay blames no record, so the whole batch runs again together.
        stay_together = call.batching.terms.on_error == "together" or isinstance(failure, RetryLater)
        if others and not stay_together:
            for record in call.records:
                history_of(record).alone = True
        alone = {call.records[place]: one for place, one in call.failures.items()}
        still = self._scheduler.settle(call, set(call.records))
        self._endings.skip_put_back(call)
        delays: dict[int, float] = {}
        found: list[_Failed] = []
        is_logged = False
        for record in still:
            if record in alone:
                found.append((record, alone[record], self._endings.decide(record, alone[record])))
                continue
            decision = self._endings.decide(record, failure, others, quiet=is_logged)
            is_logged = True
            if decision is not None and decision.delay and stay_together:
                # One delay for all, or they would become due one by one.
                decision = decision._replace(delay=delays.setdefault(record.attempt, decision.delay))
            found.append((record, failure, decision))
        return found

    async def _fail(self, worker: Worker, failed: Iterable[_Failed]) -> None:
        """Apply decisions on records in flight. Dead letters wait for capacity, one after the other."""
        waiting, now = [], asyncio.get_running_loop().time()
        for record, error, decision in failed:
            if decision is not None and (decision.retry_topic or decision.end == "dead_letter"):
                waiting.append((record, error, decision))
            else:
                self._endings.follow(record, error, decision, now)
        for index, (record, error, decision) in enumerate(waiting):
            try:
                await worker.take_back_cancels()
                await self._endings.wait_for_capacity(self._endings.dead_letter_sink.room)
            except asyncio.CancelledError:  # by a drain, or from outside
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
    """Collects the delivery results of one call."""

    def __init__(self, endings: BatchEndings, call: Call, records: Sequence[AnyRecord], whole: bool) -> None:
        self._endings = endings
        self._call = call
        self._awaited = set(records)
        self._whole = whole
        self._errors: dict[AnyRecord, Exception] = {}
        self._closed: set[tuple[object, object]] = set()  # lanes of the records with errors
        self._error_of_all: Exception | None = None

    def holds_back(self, record: AnyRecord) -> bool:
        """Whether an output of an earlier record in its lane was not delivered."""
        return record._lane is not None and (record._source, record._lane) in self._closed

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        self._awaited.difference_update(records)
        if not self._awaited:
            self._endings.sent(self._call, self._errors, self._error_of_all)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        if self._whole:
            self._error_of_all = error
        else:
            self._errors[record] = error
            self._closed.add((record._source, record._lane))
        self.delivered((record,))
