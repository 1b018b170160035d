"""Handlers as people write them, and worse: each behaviour is one method, drawn by the record's place and attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from aioparallel.records.errors import ClientError, ConsumerStateError, Reject, RetryLater
from aioparallel.records.record import Outgoing, Record

from .truth import Place, Run

if TYPE_CHECKING:
    from .members import Member

__all__ = ["Behaviours", "run_of"]

_OUT = "out"
_PATIENCE = 3  # attempts of one record, over all members, that may misbehave
_LONG = 1.5  # seconds that a handler without a deadline hangs

_mine: ContextVar[Place | None] = ContextVar("mine", default=None)


class Trouble(Exception):
    """What handlers raise."""


def run_of(output: Outgoing) -> tuple[int, int] | None:
    """The run and index that an output's value names; None for a dead letter."""
    if output.topic != _OUT:
        return None
    number, index = (output.value or b"").split(b":")
    return int(number), int(index)


class Behaviours:
    """The handler of one member."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._play = member.play
        self._truth = member.play.truth
        self._plan = member.play.plan
        self._loop = asyncio.get_running_loop()
        self._names = list(self._plan.behaviours)
        self._weights = list(self._plan.behaviours.values())

    async def handle(self, record: Record) -> object:
        """Given to the consumer."""
        place = Place(record.topic_partition, record.offset)
        attempt = self._play.attempts[place] = self._play.attempts.get(place, 0) + 1
        run = self._truth.started(self._member.name, place, attempt)
        if self._member.is_paused(record):
            self._truth.violated(f"{self._member.name} starts {place} although it is paused")
        if _mine.get() is not None:
            self._truth.violated(f"the context of {_mine.get()} has leaked into {place}")
        _mine.set(place)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            self._truth.violated(f"{place} begins under a cancellation that was meant for another")
        seed = hash((self._plan.seed, place.partition.partition, place.offset, attempt))
        rng = random.Random(seed)
        name = self._choose(rng, attempt)
        self._play.tell(
            lambda: f"{self._member.name} starts {place} #{run.number} key {record.key!r} attempt {attempt}: {name}"
        )
        behave: Callable[[Record, Run, random.Random], Awaitable[object]] = getattr(self, "_" + name)
        try:
            value = await behave(record, run, rng)
        except BaseException as error:
            if run.has_returned:
                raise  # what goes on for it tells of its end
            self._failed(run, error, record)
            raise
        if not run.has_returned:
            self._returned(run, value, record)
        return value

    def _choose(self, rng: random.Random, attempt: int) -> str:
        name = rng.choices(self._names, self._weights)[0]
        if (attempt > _PATIENCE or self._play.is_healed) and name not in _QUIET:
            return rng.choice(("at_once", "suspend", "produce"))
        return name

    def _returned(self, run: Run, value: object, record: Record) -> None:
        if value is None:
            task = asyncio.current_task()
            # In a task of its own, or with a cancellation to be taken back, it takes turns of the loop to be known.
            is_late = self._plan.options["isolation"] == "task" or task is None or task.cancelling()
            self._truth.ended(run, "returned", is_over=True, done_at=self._loop.time() + (0.001 if is_late else 0))
        elif isinstance(value, list | Outgoing):
            self._gave(run, len(value) if isinstance(value, list) else 1, record)
        else:
            self._failed(run, TypeError(), record)

    def _gave(self, run: Run, outputs: int, record: Record | None) -> None:
        self._truth.ended(run, f"gave {outputs} outputs", is_over=outputs > 0 and self._may_be_skipped(record))
        self._truth.produces(run, outputs)

    def _failed(self, run: Run, error: BaseException, record: Record) -> None:
        if isinstance(error, asyncio.CancelledError):
            run.was_cancelled = True
        is_over = self._may_be_skipped(None if isinstance(error, Reject) else record)
        self._truth.ended(run, f"raised {type(error).__name__}", is_over=is_over)

    def _may_be_skipped(self, record: Record | None) -> bool:
        """Whether the policy passes over the record, if this attempt has failed: nobody hears of that."""
        most = self._plan.retry.max_attempts
        is_last = record is None or (most is not None and record.attempt >= most)
        return is_last and self._plan.give_up == "skip"

    # -- quick ones

    async def _at_once(self, record: Record, run: Run, rng: random.Random) -> None:
        pass

    async def _suspend(self, record: Record, run: Run, rng: random.Random) -> None:
        await self._sleep(run, rng.uniform(0, self._plan.pause))

    async def _turns(self, record: Record, run: Run, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 5)):
            await self._sleep(run, 0)

    async def _sleep(self, run: Run, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            run.was_cancelled = True
            raise

    # -- failures

    async def _fail(self, record: Record, run: Run, rng: random.Random) -> None:
        raise Trouble("at once")

    async def _fail_later(self, record: Record, run: Run, rng: random.Random) -> None:
        await self._suspend(record, run, rng)
        raise Trouble("later")

    async def _retry_later(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        raise RetryLater(rng.choice((0, 0.01, 0.3)))

    async def _reject(self, record: Record, run: Run, rng: random.Random) -> None:
        raise Reject("never")

    async def _generator_exit(self, record: Record, run: Run, rng: random.Random) -> None:
        await self._suspend(record, run, rng)
        self._member.may_end_with.add("GeneratorExit")
        raise GeneratorExit

    async def _interrupt(self, record: Record, run: Run, rng: random.Random) -> None:
        self._member.may_end_with.add("KeyboardInterrupt")
        raise KeyboardInterrupt

    # -- deadlines and cancellations

    @property
    def _hanging(self) -> float:
        timeout = self._plan.options["handler_timeout"]
        return _LONG if timeout is None else 20 * timeout

    async def _hang(self, record: Record, run: Run, rng: random.Random) -> None:
        await self._sleep(run, self._hanging)
        if self._plan.options["handler_timeout"] is not None:
            self._truth.violated(f"{self._member.name} {run.place} #{run.number} was not cancelled at its deadline")

    async def _ignore_cancellation(self, record: Record, run: Run, rng: random.Random) -> None:
        until = self._loop.time() + rng.uniform(0.2, 3.0)
        while (left := until - self._loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                run.was_cancelled = True
        if rng.random() < 0.5:
            raise Trouble("ignored it")

    async def _swallow_and_return(self, record: Record, run: Run, rng: random.Random) -> None:
        try:
            await asyncio.sleep(self._hanging)
        except asyncio.CancelledError:
            run.was_cancelled = True

    async def _swallow_and_uncancel(self, record: Record, run: Run, rng: random.Random) -> None:
        try:
            await asyncio.sleep(self._hanging)
        except asyncio.CancelledError:
            run.was_cancelled = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)

    async def _cancel_itself(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def _cancel_itself_and_wait(self, record: Record, run: Run, rng: random.Random) -> None:
        await self._cancel_itself(record, run, rng)
        await self._sleep(run, 0.01)

    async def _raise_cancelled(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        raise asyncio.CancelledError

    async def _leave_a_stray(self, record: Record, run: Run, rng: random.Random) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._play.later(rng.uniform(0, 0.3), task.cancel)
        await self._suspend(record, run, rng)

    async def _time_out_inside(self, record: Record, run: Run, rng: random.Random) -> None:
        try:
            async with asyncio.timeout(rng.uniform(0, 0.2)):
                await self._sleep(run, rng.uniform(0, 0.4))
        except TimeoutError:
            run.was_cancelled = False
            if rng.random() < 0.5:
                raise

    # -- deferred

    async def _defer(self, record: Record, run: Run, rng: random.Random) -> object:
        handle = record.defer(timeout=5.0)
        self._went_on(run)

        def complete() -> None:
            if handle.complete():
                self._truth.ended(run, "completed", is_over=True)

        self._play.later(rng.uniform(0, 0.3), complete)
        self._end_at_the_latest(record, run, 5.0)
        return None

    async def _defer_and_fail(self, record: Record, run: Run, rng: random.Random) -> None:
        handle = record.defer(timeout=5.0)
        self._went_on(run)
        how = rng.choice(("fail", "reject", "raise"))
        if how == "raise":
            run.has_returned = False
            raise Trouble("after it was deferred")

        def fail() -> None:
            error: Exception = Reject("deferred") if how == "reject" else Trouble("deferred")
            if handle.reject("deferred") if how == "reject" else handle.fail(error):
                self._failed(run, error, record)

        self._play.later(rng.uniform(0, 0.3), fail)
        self._end_at_the_latest(record, run, 5.0)

    async def _defer_too_long(self, record: Record, run: Run, rng: random.Random) -> None:
        timeout = rng.uniform(0.01, 0.3)
        handle = record.defer(timeout=timeout)
        self._went_on(run)
        self._end_at_the_latest(record, run, timeout)

        def too_late() -> None:
            if handle.complete():
                self._truth.violated(f"the deferral of {run.place} #{run.number} was completed after its time")

        self._play.later(timeout + 0.1, too_late)

    async def _defer_outputs(self, record: Record, run: Run, rng: random.Random) -> None:
        handle = record.defer(timeout=5.0)
        self._went_on(run)

        def complete() -> None:
            outputs = self._outputs(record, run, rng.randint(0, 3))
            if handle.complete(outputs):
                self._gave(run, len(outputs), record)

        self._play.later(rng.uniform(0, 0.2), complete)
        self._end_at_the_latest(record, run, 5.0)

    def _went_on(self, run: Run) -> None:
        run.has_returned = True

    def _end_at_the_latest(self, record: Record, run: Run, seconds: float) -> None:
        def end() -> None:
            if run in self._truth.running[self._member.name]:
                self._failed(run, TimeoutError(), record)

        # A moment before its time: what follows may start within the same turn of the loop.
        self._play.later(max(0.0, seconds - 0.001), end)

    # -- outputs

    def _outputs(self, record: Record, run: Run, count: int) -> list[Outgoing]:
        return [Outgoing(_OUT, b"%d:%d" % (run.number, index), record.key) for index in range(count)]

    async def _produce(self, record: Record, run: Run, rng: random.Random) -> object:
        if rng.random() < 0.4:
            await self._suspend(record, run, rng)
        return self._outputs(record, run, 1)[0]

    async def _produce_many(self, record: Record, run: Run, rng: random.Random) -> object:
        if rng.random() < 0.4:
            await self._suspend(record, run, rng)
        return self._outputs(record, run, rng.randint(0, 4))

    async def _stream(self, record: Record, run: Run, rng: random.Random) -> object:
        self._went_on(run)
        return self._streamed(record, run, rng, fails=False)

    async def _stream_that_fails(self, record: Record, run: Run, rng: random.Random) -> object:
        self._went_on(run)
        return self._streamed(record, run, rng, fails=True)

    async def _streamed(self, record: Record, run: Run, rng: random.Random, *, fails: bool) -> AsyncIterator[Outgoing]:
        outputs = self._outputs(record, run, rng.randint(0, 3))
        try:
            for output in outputs:
                if rng.random() < 0.5:
                    await self._suspend(record, run, rng)
                yield output
            if fails:
                raise Trouble("half way")
        except BaseException as error:
            self._failed(run, error, record)
            raise
        self._gave(run, len(outputs), record)

    async def _wrong_output(self, record: Record, run: Run, rng: random.Random) -> object:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        return 42

    # -- looking at the consumer from within

    async def _look(self, record: Record, run: Run, rng: random.Random) -> None:
        self._member.look()
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
            self._member.look()

    async def _commit(self, record: Record, run: Run, rng: random.Random) -> None:
        try:
            await self._member.commit_now()
        except asyncio.CancelledError:
            run.was_cancelled = True
            raise
        except (ClientError, ConsumerStateError) as error:
            said = str(error)
            self._play.tell(lambda: f"{self._member.name} commit_now: {said}")

    async def _pause(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        self._member.pause(rng.uniform(0, 0.3))

    async def _pause_some(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        if not self._play.is_healed:
            self._member.pause_some(record, rng)

    async def _set_concurrency(self, record: Record, run: Run, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await self._suspend(record, run, rng)
        self._member.set_concurrency(rng.choice((1, 2, 5, 20)))

    async def _stop(self, record: Record, run: Run, rng: random.Random) -> None:
        if not self._play.is_healed:
            self._member.stop(drain=rng.random() < 0.5)


_QUIET: Any = frozenset({"at_once", "suspend", "turns", "produce", "produce_many", "stream", "look", "commit"})
