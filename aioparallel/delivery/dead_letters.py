"""Sends records whose retries have ended to the dead-letter topic, a function, or the next retry topic.

Until that succeeds, the record stays *producing*, so incomplete and uncommitted, and is tried again for ever. If the
record is too large for the topic, a part of it is left out (:mod:`~aioparallel.delivery.shrinking`), as the policy
says.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from aioparallel.config.policies import DeadLetterFunction, FailurePolicy
from aioparallel.delivery.letters import Letter, read_letter, write_letter
from aioparallel.delivery.shrinking import CutLetters, SentLetter, smaller
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import DeliveryListener, Done, Unfit
from aioparallel.event_loop.left_behind import ended
from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.errors import HandlerCancelled, ProduceFailed
from aioparallel.records.history import failure_of
from aioparallel.records.record import Outgoing, Record
from aioparallel.records.user_errors import repr_of

__all__ = ["DeadLetters", "LetterBox"]

logger = logging.getLogger(__name__)

# Seconds between two tries to dead-letter a record, doubled each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_CANCEL_GRACE = 0.5  # seconds that a cancelled dead-letter function has to end
_CALLS = 100  # the most records that dead-letter functions handle at once, those between two tries included
_TRACEBACK_LENGTH = 4_000  # characters; of a longer traceback only the end is kept


class LetterBox(Protocol):
    """Sends dead letters to topics, as an :class:`~aioparallel.engine.sinks.OutputSink` sends outputs."""

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for more, else what to await before asking again."""

    def deliver(self, record: Record[Any, Any], letter: Sequence[Outgoing], listener: DeliveryListener) -> None:
        """Send it, even without capacity."""


class DeadLetters:
    """The :class:`~aioparallel.engine.sinks.DeadLetterSink` of a run. Make it within the running loop."""

    def __init__(
        self,
        policy: FailurePolicy,
        group_id: str,
        outbox: LetterBox | None,
        timeout: float,
        cut: CutLetters | None = None,
    ) -> None:
        self._policy = policy
        self._context = copy_context()
        self._waiters = Waiters()
        self._group_id = group_id
        self._outbox = outbox
        self._timeout = timeout  # seconds for one call of a dead-letter function
        self._tasks: set[asyncio.Task[None]] = set()
        self._called: set[Record[Any, Any]] = set()  # records of which a function is called, until it succeeds
        self._closed = False
        self._timers: dict[Record[Any, Any], asyncio.TimerHandle] = {}
        self.cut = CutLetters() if cut is None else cut
        """Dead letters that lack a part of their record."""
        self.undelivered: dict[Record[Any, Any], str] = {}
        """Records that could not be dead-lettered so far, and why."""

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for more, else what to await before asking again."""
        if isinstance(self._policy.dead_letter, str | None):
            return self._outbox.room() if self._outbox is not None else None
        # The bound of the calls counts for retry topics as well: both are few compared with outputs.
        return None if len(self._called) < _CALLS else self._waiters.enter()

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Send the record to the retry topic, or to the policy's topic or function. Tries until it succeeds or the
        source is dropped. ``done`` is called once, later."""
        where = retry_topic or self._policy.dead_letter
        assert where is not None
        if isinstance(where, str) and self._is_own_letter(record):
            # Not within this call: the caller has not finished with the record yet.
            self._timers[record] = asyncio.get_running_loop().call_later(0, self._leave_in_place, record, where, done)
        elif isinstance(where, str):
            due = None if retry_topic is None else steady_time() + self._policy.retry_topics[retry_topic]
            letter = self._letter(record, where, error, due)
            self._send(record, letter, done if retry_topic is None else _of_handler(done, error), 1)
        else:
            self._called.add(record)
            self._call(_Call(where, record, error, done))

    def _is_own_letter(self, record: Record[Any, Any]) -> bool:
        """Whether the record is a dead letter that this group has written. Another dead letter of it would be read and
        written again without end. A record of a retry topic is not one."""
        if record._history is not None and record._history.is_restored:
            return False
        letter = read_letter(record)
        return letter is not None and letter.due is None and letter.group == self._group_id

    def _leave_in_place(self, record: Record[Any, Any], where: str, done: Done) -> None:
        self._timers.pop(record, None)
        logger.warning(
            "%s is a dead letter of this group already and failed again: it is not written to %s again, and stays "
            "where it is. Do not read its topic, or read it with another group",
            record.place,
            where,
            extra={"action": "letter_of_a_letter", **coordinates(record)},
        )
        done(record, None)

    async def close(self) -> None:
        """Stop all tries: records that are not dead-lettered stay uncommitted. Running functions are cancelled and get
        half a second to end."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await ended(tasks, _CANCEL_GRACE)

    # -- a topic ----------------------------------------------------------------------------------------

    def _letter(self, record: Record[Any, Any], topic: str, error: Exception, due: float | None) -> SentLetter:
        last = record.last_failure or failure_of(error, time.time())
        letter = Letter(
            origin=record.origin,
            group=self._group_id,
            attempts=record.attempt,
            first=record.first_failure or last,
            last=last,
            traceback="".join(traceback.format_exception(error))[-_TRACEBACK_LENGTH:],
            due=due,
            deliveries=record.delivery_count if record.delivery_count > 1 else None,
        )
        headers = write_letter(record.headers, letter)
        return SentLetter(topic, record.raw_value, record.raw_key, headers)

    def _send(self, record: Record[Any, Any], letter: Outgoing, done: Done, tries: int) -> None:
        self._timers.pop(record, None)
        assert self._outbox is not None
        self._outbox.deliver(record, (letter,), _Try(partial(self._sent, letter, done, tries)))

    def _sent(
        self, letter: Outgoing, done: Done, tries: int, record: Record[Any, Any], error: Exception | None
    ) -> None:
        is_too_large = isinstance(error, ProduceFailed) and error.too_large and record._source.current
        if is_too_large and (less := self.smaller(letter)) is not None:
            # Not within this call: each step would add frames to the stack.
            self._timers[record] = asyncio.get_running_loop().call_later(0, self._send, record, less, done, tries)
            return
        if is_too_large and error is not None and self._goes_on(letter):
            self.undelivered.pop(record, None)
            logger.warning(
                "%s: it is too large for the retry topic %s with the headers that it gets there, so it ends at once as "
                "after the last retry topic: %s",
                record.place,
                letter.topic,
                error,
                extra={"action": "retry_topic_too_small", **coordinates(record)},
            )
            done(record, Unfit(error))
            return
        if error is None:
            self.cut.note(record, letter)
        if self._is_over(record, letter.topic, done, tries, error):
            return
        if isinstance(letter, SentLetter) and letter.whole is not None:
            letter = letter.whole  # the topic may accept larger records by then
        # If the assignment is dropped meanwhile, the next try still writes, and notes the drop after that. The next
        # owner of the partition may write the same dead letter again.
        self._timers[record] = asyncio.get_running_loop().call_later(
            _pause(tries), self._send, record, letter, done, tries + 1
        )

    def smaller(self, letter: Outgoing) -> SentLetter | None:
        """Return a smaller dead letter after one was refused for its size; None: it cannot be smaller. A record in a
        retry topic stays whole, because it is handled from there."""
        is_whole = letter.topic in self._policy.retry_topics
        return smaller(letter, "hold" if is_whole else self._policy.dead_letter_too_large)

    def _goes_on(self, letter: Outgoing) -> bool:
        """Whether a record that is too large for a retry topic ends as after the last retry topic."""
        return letter.topic in self._policy.retry_topics and self._policy.dead_letter_too_large != "hold"

    # -- a function -------------------------------------------------------------------------------------

    # Each try is a task, and the code after it runs in a callback of that task. The function may cancel its own task,
    # or raise a foreign CancelledError. Code in the same task might then never run, and the record would be lost.
    def _call(self, call: _Call) -> None:
        self._timers.pop(call.record, None)
        task = asyncio.get_running_loop().create_task(
            call.run(self._timeout), name="aioparallel-dead-letter", context=self._context.copy()
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._tried, call))

    def _tried(self, call: _Call, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = call.failure_in(task)
        if failure is not None and self._closed:
            return
        if self._is_over(call.record, f"the function {call.name}", call.done, call.tries, failure):
            self._called.discard(call.record)
            if self._called:
                self._waiters.wake(1)
            else:
                self._waiters.wake_all()  # a waiter that was woken before may have been cancelled
            return
        self._timers[call.record] = asyncio.get_running_loop().call_later(_pause(call.tries), self._call, call)

    # -- both -------------------------------------------------------------------------------------------

    def _is_over(self, record: Record[Any, Any], where: str, done: Done, tries: int, error: Exception | None) -> bool:
        """Return whether the record is dead-lettered, or its source is dropped. Otherwise log the error."""
        if error is None or not record._source.current:
            self.undelivered.pop(record, None)
            done(record, error)
            return True
        self.undelivered[record] = f"{where}: {failure_of(error, 0).message}"
        logger.log(
            logging.ERROR if tries in (1, 10) or tries % 100 == 0 else logging.DEBUG,
            "%s offset %d cannot be dead-lettered (try %d): %s: %s; it stays uncommitted, its key waits, and it is "
            "tried again",
            record.topic_partition,
            record.offset,
            tries,
            where,
            repr_of(error),
            extra={"action": "dead_letter_failed", **coordinates(record)},
        )
        return False


def _of_handler(done: Done, error: Exception) -> Done:
    """Report the handler's error, not the producer's, if the retry topic does not accept the record."""

    def report(record: Record[Any, Any], outcome: Exception | None) -> None:
        done(record, Unfit(error) if isinstance(outcome, Unfit) else outcome)

    return report


class _Call:
    """The calls of a dead-letter function for one record."""

    __slots__ = ("_error", "_function", "_has_returned", "done", "name", "record", "tries")

    def __init__(self, function: DeadLetterFunction, record: Record[Any, Any], error: Exception, done: Done) -> None:
        self._function = function
        self._error = error
        self._has_returned = False
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.record = record
        self.done = done
        self.tries = 0

    async def run(self, timeout: float) -> None:
        """Call the function once."""
        self.tries += 1
        async with asyncio.timeout(timeout):
            await self._function(self.record, self._error)
            self._has_returned = True  # counts even if it has cancelled its task

    def failure_in(self, task: asyncio.Task[None]) -> Exception | None:
        """Return the error of a call, given its task; None if it succeeded."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._has_returned or error is None:
            return None
        if isinstance(error, Exception):
            return error
        if isinstance(error, asyncio.CancelledError):
            return HandlerCancelled()
        return RuntimeError(f"it raised {type(error).__name__}")


class _Try:
    """Receives the result of one attempt to send a dead letter."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def delivered(self, records: Sequence[Record[Any, Any]]) -> None:
        for record in records:
            self._done(record, None)

    def undelivered(self, record: Record[Any, Any], error: Exception) -> None:
        self._done(record, error)


def _pause(tries: int) -> float:
    return float(min(_FIRST_PAUSE * 2 ** min(tries - 1, 10), _LONGEST_PAUSE))
